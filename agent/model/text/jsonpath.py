# SPDX-License-Identifier: Apache-2.0
"""`-o jsonpath=TEMPLATE` and the paths of `-o custom-columns=`, as kubectl reads them.

    template  text and {…} in turn; in braces a path, a quoted text, `range PATH` or `end`
    path      .name  ['name']  [0]  [-1]  [1:3]  [*]  .*  ..name  [?(@.a=="x")]  ['a','b']

A path that leads nowhere gives nothing, as kubectl has it for objects of a list.
"""

import json
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from agent.model.refused import Refused

Values = list[object]
TOKEN = re.compile(
    r"""\.\.(?P<deep>\*|[\w-]+) | \.(?P<name>\*|(?:\\.|[^\s.\[\]\\])+)
    | \[\s*\?\((?P<filter>(?:[^()'"]|'[^']*'|"[^"]*")*)\)\s*\]
    | \[(?P<inside>(?:[^\]'"]|'[^']*'|"[^"]*")*)\]""",
    re.VERBOSE,
)
BRACED = re.compile(r"""\{((?:[^{}'"]|'[^']*'|"(?:\\.|[^"\\])*")*)\}""")
QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)\"""")
CONDITION = re.compile(r"\s*(.+?)\s*(?:(==|!=|<=|>=|<|>)\s*(.+?)\s*)?", re.DOTALL)
COMPARE: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq, "!=": operator.ne,
    "<": lambda one, other: one < other, "<=": lambda one, other: one <= other,  # type: ignore[operator]
    ">": lambda one, other: one > other, ">=": lambda one, other: one >= other,  # type: ignore[operator]
}  # fmt: skip
DEEPEST = 64
# Paths and ranges multiply what they find with each step.
MOST_VALUES, MOST_SIGNS, SIGNS_PER_TEXT = 100_000, 8 << 20, 24


def render(template: str, data: object) -> str:
    """What the template makes of the data."""
    pieces = _pieces(template)
    text, rest = _rendered(pieces, 0, data, _Room())
    if rest < len(pieces):
        raise _wrong(template, "{end} without {range}")
    return text


def read_path(path: str, data: object) -> Values:
    """All values that a path leads to, in their order."""
    found: Values = [data]
    place = 0
    path = path.strip().removeprefix("$").removeprefix("@")
    if path and path[0] not in ".[":
        path = f".{path}"
    if path in ("", "."):
        return found
    while place < len(path):
        token = TOKEN.match(path, place)
        if token is None:
            raise _wrong(path, f'"{path[place:]}" is not understood')
        found = list(islice((inner for one in found for inner in _step(token, one)), MOST_VALUES + 1))
        if len(found) > MOST_VALUES:
            raise _wrong(path, f"finds more than {MOST_VALUES} values; a path that finds fewer is possible")
        place = token.end()
    return found


def shown(value: object) -> str:
    """As kubectl prints it: texts as they are, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _pieces(template: str) -> list[tuple[bool, str]]:
    """Parts of a template, and whether each stood in braces."""
    found: list[tuple[bool, str]] = []
    place = 0
    if "{" not in template:
        template = "{" + template + "}"
    for part in BRACED.finditer(template):
        if text := template[place : part.start()]:
            found.append((False, text))
        found.append((True, part[1].strip()))
        place = part.end()
    if rest := template[place:]:
        found.append((False, rest))
    if any(not braced and set(text) & {"{", "}"} for braced, text in found):
        raise _wrong(template, "a brace is open or closed without the other")
    return found


class _Room:
    """For all that a template writes, whatever range it stands in."""

    def __init__(self) -> None:
        self._left = MOST_SIGNS

    def kept(self, text: str, template: str) -> str:
        self._left -= len(text) + SIGNS_PER_TEXT
        if self._left < 0:
            raise _wrong(template, f"writes more than {MOST_SIGNS} characters; -o json has everything")
        return text


def _rendered(pieces: Sequence[tuple[bool, str]], place: int, data: object, room: _Room) -> tuple[str, int]:
    """Up to the end of the template, or the `end` of a range, and where that was."""
    written: list[str] = [room.kept("", "{range}")]
    while place < len(pieces):
        braced, text = pieces[place]
        place += 1
        if not braced:
            written.append(room.kept(text, text))
        elif quoted := QUOTED.fullmatch(text):
            written.append(room.kept(_unquoted(quoted), text))
        elif text == "end":
            return "".join(written), place - 1
        elif text.partition(" ")[0] == "range":
            # Even without any value, what stands between belongs to the range.
            values = read_path(text.partition(" ")[2], data)
            texts = [_rendered(pieces, place, value, room) for value in values]
            written += [one for one, _ in texts]
            place = (texts[0] if texts else _rendered(pieces, place, None, room))[1] + 1
            if place > len(pieces):
                raise _wrong("".join(part for _, part in pieces), "{range} without {end}")
        else:
            written.append(" ".join(room.kept(shown(one), text) for one in read_path(text, data)))
    return "".join(written), place


def _unquoted(quoted: "re.Match[str]") -> str:
    if quoted[1] is not None:
        return re.sub(r"\\(.)", r"\1", quoted[1])
    try:
        return str(json.loads(f'"{quoted[2]}"'))
    except ValueError as error:
        raise _wrong(quoted[0], "no text in quotes") from error


def _step(token: "re.Match[str]", value: object) -> Iterator[object]:
    if (deep := token["deep"]) is not None:
        yield from (inner for one in _below(value) for inner in _named(deep, one))
    elif (name := token["name"]) is not None:
        yield from _named(re.sub(r"\\(.)", r"\1", name), value)
    elif (condition := token["filter"]) is not None:
        yield from (one for one in value if _holds(condition, one)) if isinstance(value, list) else ()
    else:
        yield from _inside(token["inside"].strip(), value)


def _named(name: str, value: object) -> Iterator[object]:
    if name == "*":
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    elif isinstance(value, dict) and name in value:
        yield value[name]


def _inside(text: str, value: object) -> Iterator[object]:
    """Between brackets: names in quotes, places, a slice, or all."""
    if text == "*":
        yield from _named("*", value)
    elif names := [_unquoted(one) for one in QUOTED.finditer(text)]:
        yield from (inner for name in names for inner in _named(name, value))
    elif isinstance(value, list):
        try:
            for part in text.split(","):
                numbers = [int(one) if one.strip() else None for one in part.split(":")]
                place = numbers[0]
                if len(numbers) > 1:
                    yield from value[slice(*numbers)]
                elif place is not None and -len(value) <= place < len(value):
                    yield value[place]
        except ValueError as error:
            raise _wrong(f"[{text}]", "expected a number, a slice, a name in quotes or *") from error


def _below(value: object, depth: int = 0) -> Iterator[object]:
    yield value
    if depth < DEEPEST:
        for inner in _named("*", value):
            yield from _below(inner, depth + 1)


def _holds(condition: str, item: object) -> bool:
    parts = CONDITION.fullmatch(condition)
    if parts is None:
        raise _wrong(condition, "expected @.PATH, or @.PATH == VALUE")
    left, sign, right = parts.groups()
    values = _operand(left, item)
    if sign is None:
        return bool(values)
    try:
        return any(COMPARE[sign](one, other) for one in values for other in _operand(right, item))
    except TypeError:
        return False


def _operand(text: str, item: object) -> Values:
    if text.startswith("@"):
        return read_path(text, item)
    if quoted := QUOTED.fullmatch(text):
        return [_unquoted(quoted)]
    try:
        return [json.loads(text)]
    except ValueError as error:
        raise _wrong(text, "expected a text in quotes, a number, true or false") from error


def _wrong(text: str, why: str) -> Refused:
    return Refused("selection", f"jsonpath {text}: {why}")

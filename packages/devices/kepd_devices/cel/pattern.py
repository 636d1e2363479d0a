# SPDX-License-Identifier: Apache-2.0
"""Regular expressions whose time grows with the text alone, whatever they say: all ways are followed at once.

What can be written: signs, `.`, classes, `^ $ \\A \\z \\b \\B`, `\\d \\s \\w` and their opposites, groups, `|`, and
repetitions up to 1 000. What looks ahead or back cannot be written, as in RE2.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgspec

MOST_STATES = 5000
MOST_REPEATS = 1000
DEEPEST = 50
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
SETS: dict[str, Callable[[str], bool]] = {
    "d": lambda sign: sign in "0123456789",
    "s": lambda sign: sign in " \t\n\f\r",
    "w": lambda sign: sign == "_" or (sign.isascii() and sign.isalnum()),
}
NAMED = re.compile(r"\[:(\^?)([a-z]+):\]")
NAMED_SETS: dict[str, Callable[[str], bool]] = {
    "alpha": lambda sign: sign.isascii() and sign.isalpha(),
    "digit": SETS["d"],
    "alnum": lambda sign: sign.isascii() and sign.isalnum(),
    "upper": lambda sign: "A" <= sign <= "Z",
    "lower": lambda sign: "a" <= sign <= "z",
    "space": lambda sign: sign in " \t\n\f\r\v",
    "xdigit": lambda sign: sign in "0123456789abcdefABCDEF",
    "word": SETS["w"],
}
COUNTED = re.compile(r"\{(\d{1,4})(,(\d{0,4}))?\}")
Takes = Callable[[str], bool]


class PatternRefused(ValueError):
    """No pattern, or one that cannot be written here."""


class PatternState(msgspec.Struct):
    """Takes one sign, or stands at a place; then goes to all of `next`. Without any it is the end."""

    takes: Takes | None = None
    stands: str = ""
    next: list[int] = []


Piece = tuple[int, list[int]]
"""Where it begins, and the states whose `next` is still open."""


@lru_cache(maxsize=256)
def pattern(text: str) -> "Pattern":
    """Raises PatternRefused."""
    return _Reader(text).read()


class Pattern:
    def __init__(self, states: list[PatternState], first: int, last: int) -> None:
        self._states = states
        self._first = first
        self._last = last

    @property
    def size(self) -> int:
        return len(self._states)

    def is_in(self, text: str) -> bool:
        """Whether any part of the text is what it describes."""
        now: set[int] = set()
        for place in range(len(text) + 1):
            self._enter(self._first, text, place, now)
            if self._last in now:
                return True
            now = self._after(now, text, place) if place < len(text) else now
        return False

    def _after(self, now: set[int], text: str, place: int) -> set[int]:
        """The states that are reached by the sign at this place."""
        found: set[int] = set()
        for one in now:
            state = self._states[one]
            if state.takes is not None and state.takes(text[place]):
                for onward in state.next:
                    self._enter(onward, text, place + 1, found)
        return found

    def _enter(self, first: int, text: str, place: int, into: set[int]) -> None:
        todo = [first]
        while todo:
            number = todo.pop()
            state = self._states[number]
            if number not in into and (not state.stands or _stands(state.stands, text, place)):
                into.add(number)
                if state.takes is None:
                    todo += state.next


def _stands(where: str, text: str, place: int) -> bool:
    is_word = SETS["w"]
    match where:
        case "first":
            return place == 0
        case "last":
            return place == len(text)
        case "line":
            return place == 0 or text[place - 1] == "\n"
        case "line end":
            return place == len(text) or text[place] == "\n"
    before = place > 0 and is_word(text[place - 1])
    after = place < len(text) and is_word(text[place])
    return (before != after) is (where == "edge")


class _Reader:
    """Each piece is written into `states` as it is read; a counted one is read as often as it may come."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0
        self._states: list[PatternState] = []
        self._flags = frozenset[str]()

    def read(self) -> Pattern:
        first, ends = self._choice()
        if self._place < len(self._text):
            raise PatternRefused(f"{self._text!r}: ) without (")
        last = self._add(PatternState())
        self._join(ends, last)
        return Pattern(self._states, first, last)

    def _add(self, state: PatternState) -> int:
        if len(self._states) >= MOST_STATES:
            raise PatternRefused(f"{self._text[:40]!r}… is too large a pattern")
        self._states.append(state)
        return len(self._states) - 1

    def _join(self, ends: list[int], to: int) -> None:
        for one in ends:
            self._states[one].next.append(to)

    def _one(self, *, takes: Takes | None = None, stands: str = "") -> Piece:
        number = self._add(PatternState(takes=takes, stands=stands, next=[]))
        return number, [number]

    def _at(self, *signs: str) -> bool:
        return self._text[self._place : self._place + 1] in signs and self._place < len(self._text)

    def _choice(self) -> Piece:
        before = self._flags
        ways = [self._row()]
        while self._at("|"):
            self._place += 1
            ways.append(self._row())
        self._flags = before
        if len(ways) == 1:
            return ways[0]
        split = self._add(PatternState(next=[first for first, _ in ways]))
        return split, [end for _, ends in ways for end in ends]

    def _row(self) -> Piece:
        first, ends = self._one()
        while self._place < len(self._text) and not self._at("|", ")"):
            begun = self._place
            following, further = self._repeated(begun)
            self._join(ends, following)
            ends = further
        return first, ends

    def _repeated(self, begun: int) -> Piece:
        flags = self._flags
        piece = self._single()
        least, most = self._count()
        if (least, most) == (1, 1):
            return piece
        for _ in range(2):
            if self._at("*", "+", "?") or COUNTED.match(self._text, self._place):
                raise PatternRefused(f"{self._text!r}: a repetition of a repetition")
        after = self._place

        def again() -> Piece:
            self._place, self._flags = begun, flags
            return self._single()

        found = self._times(piece, again, least, most)
        self._place = after
        return found

    def _times(self, piece: Piece, again: Callable[[], Piece], least: int, most: int | None) -> Piece:
        """The piece itself counts as the first."""
        first, ends = self._one()
        open_ends: list[int] = []
        for number in range(max(least, 1 if most is None or most else 0, most or 0)):
            following, further = piece if number == 0 else again()
            if number >= least:
                open_ends += ends
            self._join(ends, following)
            ends = further
            if most is None and number >= max(least, 1) - 1:
                loop = self._add(PatternState(next=[following]))
                self._join(ends, loop)
                ends = [loop, *([] if least else open_ends)]
                return first, ends
        return first, [*ends, *open_ends]

    def _count(self) -> tuple[int, int | None]:
        counted = COUNTED.match(self._text, self._place)
        if counted is not None:
            self._place = counted.end()
            least = int(counted[1])
            most = least if counted[2] is None else int(counted[3]) if counted[3] else None
            if least > MOST_REPEATS or (most is not None and not least <= most <= MOST_REPEATS):
                raise PatternRefused(f"{self._text!r}: {counted[0]} is no number of repetitions up to {MOST_REPEATS}")
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(
                self._text[self._place : self._place + 1], (1, 1)
            )
            if (least, most) == (1, 1):
                return 1, 1
            self._place += 1
        if self._at("?"):  # As few as possible: whether anything fits is the same.
            self._place += 1
        return least, most

    def _single(self) -> Piece:
        sign = self._text[self._place]
        self._place += 1
        match sign:
            case "(":
                return self._group()
            case "[":
                return self._one(takes=self._class())
            case ".":
                is_all = "s" in self._flags
                return self._one(takes=lambda one: is_all or one != "\n")
            case "^":
                return self._one(stands="line" if "m" in self._flags else "first")
            case "$":
                return self._one(stands="line end" if "m" in self._flags else "last")
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternRefused(f"{self._text!r}: {sign} repeats nothing")
        return self._one(takes=self._literal(sign))

    def _literal(self, sign: str) -> Takes:
        if "i" in self._flags:
            folded = sign.casefold()
            return lambda one: one.casefold() == folded
        return lambda one: one == sign

    def _group(self) -> Piece:
        self._depth += 1
        if self._depth > DEEPEST:
            raise PatternRefused(f"{self._text[:40]!r}…: more than {DEEPEST} groups lie in each other")
        before = self._flags
        if self._at("?") and self._options():
            self._depth -= 1
            return self._one()
        found = self._choice()
        if not self._at(")"):
            raise PatternRefused(f"{self._text!r}: ( without )")
        self._place += 1
        self._flags = before
        self._depth -= 1
        return found

    def _options(self) -> bool:
        """`(?:`, `(?P<name>`, `(?i:` or `(?i)`; whether the group is over with it."""
        found = re.compile(r"\?(?:P?<[A-Za-z_]\w*>|(?P<on>[ims]*)(?:-(?P<off>[ims]*))?(?P<end>[:)]))").match(
            self._text, self._place
        )
        if found is None:
            raise PatternRefused(f"{self._text!r}: a group that cannot be written here")
        self._place = found.end()
        self._flags = (self._flags | set(found["on"] or "")) - set(found["off"] or "")
        return found["end"] == ")"

    def _escape(self) -> Piece:
        sign = self._text[self._place : self._place + 1]
        self._place += 1
        places = {"A": "first", "z": "last", "b": "edge", "B": "inside"}
        if sign in places:
            return self._one(stands=places[sign])
        return self._one(takes=self._escaped(sign))

    def _escaped(self, sign: str) -> Takes:
        """What a class and a pattern may both say."""
        if sign and sign.lower() in SETS:
            in_set = SETS[sign.lower()]
            return in_set if sign.islower() else lambda one: not in_set(one)
        return self._literal(self._sign_of(sign))

    def _sign_of(self, sign: str) -> str:
        if sign in ESCAPES and sign:
            return ESCAPES[sign]
        if sign == "x":
            found = re.compile(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\}").match(self._text, self._place)
            number = int(found[1] or found[2], 16) if found is not None else 0x110000
            if found is not None and number <= 0x10FFFF:
                self._place = found.end()
                return chr(number)
        if not sign or sign.isalnum():
            raise PatternRefused(f"{self._text!r}: \\{sign} cannot be written here")
        return sign

    def _class(self) -> Takes:
        is_not = self._at("^")
        self._place += is_not
        parts: list[Takes] = []
        begun = self._place
        while not self._at("]") or self._place == begun:
            if self._place >= len(self._text):
                raise PatternRefused(f"{self._text!r}: [ without ]")
            parts.append(self._class_part())
        self._place += 1
        folds = "i" in self._flags

        def takes(one: str) -> bool:
            forms = {one, one.lower(), one.upper()} if folds else (one,)
            return any(part(form) for part in parts for form in forms) is not is_not

        return takes

    def _class_part(self) -> Takes:
        named = NAMED.match(self._text, self._place)
        if named is not None:
            if named[2] not in NAMED_SETS:
                raise PatternRefused(f"{self._text!r}: {named[0]} is no class")
            self._place = named.end()
            in_set, is_not = NAMED_SETS[named[2]], bool(named[1])
            return lambda one: in_set(one) is not is_not
        first = self._class_sign()
        if not isinstance(first, str):
            return first
        if not (self._at("-") and self._text[self._place + 1 : self._place + 2] not in ("]", "")):
            return lambda one: one == first
        self._place += 1
        last = self._class_sign()
        if not isinstance(last, str) or last < first:
            raise PatternRefused(f"{self._text!r}: a class with a range that is none")
        return lambda one: first <= one <= last

    def _class_sign(self) -> str | Takes:
        sign = self._text[self._place]
        self._place += 1
        if sign != "\\":
            return sign
        sign = self._text[self._place : self._place + 1]
        self._place += 1
        if sign and sign.lower() in SETS:
            in_set = SETS[sign.lower()]
            return in_set if sign.islower() else lambda one: not in_set(one)
        return self._sign_of(sign)

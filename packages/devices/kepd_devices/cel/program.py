# SPDX-License-Identifier: Apache-2.0
"""Makes a program of an expression that says whether a device is meant.

Each part becomes a function of the run, which counts steps and what is made: what takes too many or too much fails,
whatever the device.
"""

from collections.abc import Callable
from functools import lru_cache
from sys import getsizeof
from typing import Any, NamedTuple

from kepd_devices.cel.check import TYPES, TypedTree
from kepd_devices.cel.kinds import BOOL, DYN, CelType
from kepd_devices.cel.operators import missing
from kepd_devices.cel.parse import parse
from kepd_devices.cel.signatures import Signature
from kepd_devices.cel.texts import read_pattern
from kepd_devices.cel.tree import (
    Bind,
    Call,
    Choice,
    Each,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Name,
    Select,
    SyntaxNode,
    Unreadable,
    WithValue,
)
from kepd_devices.cel.values import Device, Domains, EvaluationFailed, Optional, keyed, kind_name, unkeyed

MOST_STEPS = 1_000_000
MOST_BYTES = 8 << 20
TEXT_PER_STEP = 10
# What takes as long for a list of lists as for one of numbers; all else may look at all that lies in it.
SHALLOW = frozenset({"size", "[]", "[?]", "+", "type", "dyn", "optional.of", "hasValue", "value", "orValue", "or"})
PAIRWISE = frozenset({"contains", "equivalent", "intersects"})
"""Of two lists: each item of the one may be held against each of the other."""
MISTAKES = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What Python may say of values that a function is not for; to an expression it is a failure as any other."""
EMPTY_BYTES, ENTRY_BYTES, TEXT_BYTES = 64, 100, 56


class Run:
    """One evaluation: the names that are known, and the steps and bytes that are left."""

    __slots__ = ("left", "names", "room")

    def __init__(self, device: Device) -> None:
        self.names: dict[str, Any] = {"device": device}
        self.left, self.room = MOST_STEPS, MOST_BYTES

    def made(self, value: Any, each: int = 8) -> Any:
        """Counts all that is made, whether or not it is still kept; of several things so many bytes each."""
        self.room -= EMPTY_BYTES + len(value) * each if isinstance(value, list | dict) else getsizeof(value)
        if self.room < 0:
            raise EvaluationFailed(f"makes more than {MOST_BYTES} bytes of values")
        return value

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise EvaluationFailed(f"takes more than {MOST_STEPS} steps")


Part = Callable[[Run], Any]


class Judgement(NamedTuple):
    """What came of one evaluation; `failure` says why there is no truth."""

    is_true: bool
    steps: int
    failure: str = ""


class Program:
    def __init__(self, text: str, run: Part) -> None:
        self.text = text
        self._run = run

    def judge(self, device: Device) -> Judgement:
        run = Run(device)
        try:
            found = self._run(run)
        except EvaluationFailed as error:
            return Judgement(False, MOST_STEPS - run.left, str(error))
        except MISTAKES as error:
            return Judgement(False, MOST_STEPS - run.left, f"has no value: {error or type(error).__name__}")
        failure = "" if type(found) is bool else f"gives {kind_name(found)}; expected true or false"
        return Judgement(found is True, MOST_STEPS - run.left, failure)

    def is_true_of(self, device: Device) -> bool:
        """Raises EvaluationFailed."""
        judgement = self.judge(device)
        if judgement.failure:
            raise EvaluationFailed(judgement.failure)
        return judgement.is_true


@lru_cache(maxsize=1024)
def program(text: str) -> Program:
    """Raises Unreadable."""
    tree = parse(text)
    checked = TypedTree()
    kind = checked.kind(tree, {"device": CelType("device")})
    if kind not in (BOOL, DYN):
        raise Unreadable(tree.at, f"gives {kind}; expected bool")
    return Program(text, _Compiler(checked).part(tree))


class _Compiler:
    def __init__(self, checked: TypedTree) -> None:
        self._checked = checked

    def part(self, node: SyntaxNode) -> Part:
        match node:
            case Literal(value=value):
                return lambda _run: value
            case Name(name=name):
                return _named(name)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case Logic(parts=parts, is_and=is_and):
                return _logic([self.part(one) for one in parts], stops_at=not is_and)
            case Choice(condition=condition, yes=yes, no=no):
                return _choice(self.part(condition), self.part(yes), self.part(no))
            case ListOf(items=items, soft=soft):
                return _list([(self.part(one), place in soft) for place, one in enumerate(items)])
            case MapOf(entries=entries, soft=soft):
                return _map([(self.part(a), self.part(b), place in soft) for place, (a, b) in enumerate(entries)])
            case Each():
                return self._each(node)
            case Bind(name=name, value=value, body=body):
                return _bind(name, self.part(value), self.part(body))
            case WithValue(of=of, name=name, body=body, is_flat=is_flat):
                return _with_value(self.part(of), _bind_to(name, self.part(body)), is_flat=is_flat)
        raise Unreadable(node.at, "is nothing that can be evaluated")

    def _select(self, node: Select) -> Part:
        of, field, is_soft = self.part(node.of), node.field, node.is_soft
        if node.is_test:
            return lambda run: _field(run, of(run), field) is not missing

        def select(run: Run) -> Any:
            value = of(run)
            if isinstance(value, Optional):
                found = _field(run, value.value, field) if value.has else missing
                return Optional(True, found) if found is not missing else Optional()
            found = _field(run, value, field)
            if is_soft:
                return Optional(True, found) if found is not missing else Optional()
            if found is missing:
                raise EvaluationFailed(f"no such key: {field}")
            return found

        return select

    def _call(self, node: Call) -> Part:
        meanings = self._checked.meanings[id(node)]
        arguments = [self.part(one) for one in node.arguments]
        if node.of is not None and id(node) not in self._checked.spaced:
            arguments.insert(0, self.part(node.of))
        is_pattern = node.function == "matches"
        name = node.function
        # A kind is a matter of its type, and devices have the same ones again and again.
        known: dict[tuple[type, ...], Callable[..., Any]] = {}

        def call(run: Run) -> Any:
            values = [one(run) for one in arguments]
            run.spend(1 + _weight(values) if name in SHALLOW else _deep_weight(name, values, run.left))
            if is_pattern and all(type(one) is str for one in values):
                run.spend(len(values[0]) * read_pattern(values[1]).size // TEXT_PER_STEP)
            types = tuple(map(type, values))
            meant = known.get(types)
            if meant is None:
                meant = known[types] = _meant(meanings, values, name)
            try:
                found = meant(*values)
            except MISTAKES as error:
                raise EvaluationFailed(f"{name} has no value here: {error or type(error).__name__}") from error
            if type(found) in (str, list, bytes):
                run.spend(_weight([found]))
            return found if type(found) is bool else run.made(found, TEXT_BYTES)

        return call

    def _each(self, node: Each) -> Part:
        of, body = self.part(node.of), _bind_to(node.name, self.part(node.body))
        only = _bind_to(node.name, self.part(node.only)) if node.only is not None else None
        match node.macro:
            case "map":
                return lambda run: run.made(
                    [body(run, one) for one in _items(run, of) if only is None or _truth(only(run, one))]
                )
            case "filter":
                return lambda run: run.made([one for one in _items(run, of) if _truth(body(run, one))])
            case "exists_one":
                return lambda run: sum(_truth(body(run, one)) for one in _items(run, of)) == 1
        stops_at = node.macro == "exists"

        def decide(run: Run) -> bool:
            return _decided((lambda one=one: body(run, one) for one in _items(run, of)), stops_at=stops_at)

        return decide


def _named(name: str) -> Part:
    def named(run: Run) -> Any:
        return run.names[name] if name in run.names else TYPES[name]

    return named


def _field(run: Run, of: Any, field: str) -> Any:
    """`missing` where it is not there; a device has all of its fields."""
    run.spend(1)
    if type(of) is Device:
        return getattr(of, field)
    if not isinstance(of, dict):
        raise EvaluationFailed(f"no such overload: {kind_name(of)} has no field {field}")
    return of.get(field, {} if type(of) is Domains else missing)


def _meant(meanings: tuple[Signature, ...], values: list[Any], name: str) -> Callable[..., Any]:
    names = [kind_name(one) for one in values]
    for one in meanings:
        if all(
            wanted.name in (given, "dyn") or wanted.is_free for given, wanted in zip(names, one.arguments, strict=True)
        ):
            return one.run
    raise EvaluationFailed(f"no such overload: {name} is not for ({', '.join(names)})")


def _weight(values: list[Any]) -> int:
    weight = 0
    for one in values:
        kind = type(one)
        if kind is str or kind is bytes:
            weight += len(one) // TEXT_PER_STEP
        elif kind is list:
            weight += len(one)
    return weight


def _deep_weight(name: str, values: list[Any], most: int) -> int:
    """All that a function may look at; what lies in several places counts in each. It is counted up to `most`."""
    if name == "in" and isinstance(values[1], dict):
        return 1
    weights = [_deep(one, most) for one in values]
    if name in PAIRWISE and all(isinstance(one, list) for one in values):
        return 1 + 2 * (weights[0] * (len(values[1]) + 1) + weights[1] * (len(values[0]) + 1))
    return 1 + sum(weights)


def _deep(value: Any, most: int) -> int:
    weight, left = 0, [value]
    while left and weight <= most:
        one = left.pop()
        if isinstance(one, Optional):
            left.append(one.value)
        elif isinstance(one, dict):
            weight += len(one)
            left += one.values()
        elif isinstance(one, list):
            weight += len(one)
            if weight <= most:
                left += (it for it in one if isinstance(it, str | bytes | list | dict | Optional))
        elif isinstance(one, str | bytes):
            weight += len(one) // TEXT_PER_STEP
    return weight


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise EvaluationFailed(f"no such overload: {kind_name(value)} where true or false is expected")
    return value


def _decided(parts: Any, *, stops_at: bool) -> bool:
    """What fails does not matter where another part decides."""
    failure: EvaluationFailed | None = None
    for part in parts:
        try:
            if _truth(part()) is stops_at:
                return stops_at
        except EvaluationFailed as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not stops_at


def _logic(parts: list[Part], *, stops_at: bool) -> Part:
    return lambda run: _decided((lambda part=part: part(run) for part in parts), stops_at=stops_at)


def _choice(condition: Part, yes: Part, no: Part) -> Part:
    return lambda run: yes(run) if _truth(condition(run)) else no(run)


def _kept(value: Any, *, is_soft: bool) -> tuple[Any, ...]:
    if not is_soft:
        return (value,)
    if not isinstance(value, Optional):
        raise EvaluationFailed(f"no such overload: {kind_name(value)} where an optional is expected")
    return (value.value,) if value.has else ()


def _list(items: list[tuple[Part, bool]]) -> Part:
    def make(run: Run) -> list[Any]:
        run.spend(1 + len(items))
        run.made(items)
        return [value for part, is_soft in items for value in _kept(part(run), is_soft=is_soft)]

    return make


def _map(entries: list[tuple[Part, Part, bool]]) -> Part:
    def make(run: Run) -> dict[Any, Any]:
        run.spend(1 + len(entries))
        run.made(entries, ENTRY_BYTES)
        found: dict[Any, Any] = {}
        for key_part, part, is_soft in entries:
            key = keyed(key_part(run))
            if key in found:
                raise EvaluationFailed(f"a map has the key {unkeyed(key)} twice")
            for value in _kept(part(run), is_soft=is_soft):
                found[key] = value
        return found

    return make


def _items(run: Run, of: Part) -> Any:
    """Of a map its keys."""
    value = of(run)
    if not isinstance(value, list | dict):
        raise EvaluationFailed(f"no such overload: {kind_name(value)} has no items")
    for one in value:
        run.spend(1)
        yield unkeyed(one) if isinstance(value, dict) else one


def _bind_to(name: str, body: Part) -> Callable[[Run, Any], Any]:
    def with_name(run: Run, value: Any) -> Any:
        before = run.names
        run.names = {**before, name: value}
        try:
            return body(run)
        finally:
            run.names = before

    return with_name


def _bind(name: str, value: Part, body: Part) -> Part:
    with_name = _bind_to(name, body)
    return lambda run: with_name(run, value(run))


def _with_value(of: Part, body: Callable[[Run, Any], Any], *, is_flat: bool) -> Part:
    def make(run: Run) -> Any:
        value = of(run)
        if not isinstance(value, Optional):
            raise EvaluationFailed(f"no such overload: {kind_name(value)} is no optional")
        if not value.has:
            return value
        found = body(run, value.value)
        return found if is_flat else Optional(True, found)

    return make

# SPDX-License-Identifier: Apache-2.0
"""Finds what an expression gets wrong whatever device it is asked about: names, fields, and kinds that do not fit.

Attributes may have any kind until a device is there. Each call gets the signatures that it may mean; which of them it
is, its values tell.
"""

from collections.abc import Mapping

from kepd_devices.cel.functions import FUNCTIONS, SPACES
from kepd_devices.cel.kinds import (
    BOOL,
    DYN,
    STRING,
    Bound,
    CelType,
    common,
    fits,
    list_of,
    map_of,
    optional_of,
    read_kind,
    with_bound,
)
from kepd_devices.cel.signatures import Signature
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
from kepd_devices.cel.values import TypeOf, kind_name

DEVICE = {
    "driver": STRING,
    "attributes": read_kind("map(string, map(string, dyn))"),
    "capacity": read_kind("map(string, map(string, quantity))"),
    "allowMultipleAllocations": BOOL,
}
TYPES = {
    name: TypeOf(name) for name in ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type")
}
Names = Mapping[str, CelType]


class TypedTree:
    """The kinds of an expression, and for each call what it may mean."""

    def __init__(self) -> None:
        self.meanings: dict[int, tuple[Signature, ...]] = {}
        # Calls whose subject is no value but a word before the name of a function.
        self.spaced: set[int] = set()

    def kind(self, node: SyntaxNode, names: Names) -> CelType:
        """Raises Unreadable."""
        match node:
            case Literal(value=value):
                return CelType(kind_name(value))
            case Name(name=name):
                return self._named(node, name, names)
            case Select():
                return self._select(node, names)
            case Call():
                return self._call(node, names)
            case Logic(parts=parts):
                for part in parts:
                    self._must_be(BOOL, part, names)
                return BOOL
            case Choice(condition=condition, yes=yes, no=no):
                self._must_be(BOOL, condition, names)
                return self._alike([yes, no], names, "the two sides of ?:")
            case ListOf(items=items, soft=soft):
                kinds = [self._soft(one, names, is_soft=place in soft) for place, one in enumerate(items)]
                return list_of(self._one_kind(node, kinds, "items of a list"))
            case MapOf():
                return self._map(node, names)
            case Each():
                return self._each(node, names)
            case Bind(name=name, value=value, body=body):
                return self.kind(body, {**names, name: self.kind(value, names)})
            case WithValue():
                return self._with_value(node, names)
        raise Unreadable(node.at, "is nothing that can be evaluated")

    def _named(self, node: SyntaxNode, name: str, names: Names) -> CelType:
        if name in names:
            return names[name]
        if name in TYPES:
            return CelType("type")
        raise Unreadable(node.at, f"nothing is called {name}; a device is called device")

    def _must_be(self, kind: CelType, node: SyntaxNode, names: Names) -> None:
        found = self.kind(node, names)
        if not fits(found, kind, {}):
            raise Unreadable(node.at, f"is {found}; expected {kind}")

    def _alike(self, nodes: list[SyntaxNode], names: Names, what: str) -> CelType:
        return self._one_kind(nodes[0], [self.kind(one, names) for one in nodes], what)

    def _one_kind(self, node: SyntaxNode, kinds: list[CelType], what: str) -> CelType:
        found = common(kinds)
        if found is None:
            told = " and ".join(dict.fromkeys(map(str, kinds)))
            raise Unreadable(node.at, f"{what} are of one kind, not {told}; dyn() makes a value one of any kind")
        return found

    def _soft(self, node: SyntaxNode, names: Names, *, is_soft: bool) -> CelType:
        found = self.kind(node, names)
        if not is_soft or found == DYN:
            return found
        if found.name != "optional":
            raise Unreadable(node.at, f"is {found}; after ? an optional is expected")
        return found.of[0]

    def _map(self, node: MapOf, names: Names) -> CelType:
        keys = [self.kind(key, names) for key, _ in node.entries]
        values = [self._soft(one, names, is_soft=place in node.soft) for place, (_, one) in enumerate(node.entries)]
        return map_of(self._one_kind(node, keys, "keys of a map"), self._one_kind(node, values, "values of a map"))

    def _select(self, node: Select, names: Names) -> CelType:
        of = self.kind(node.of, names)
        is_optional = of.name == "optional"
        found = self._field(node, of.of[0] if is_optional else of)
        if node.is_test:
            return BOOL
        return optional_of(found) if node.is_soft or is_optional else found

    def _field(self, node: Select, of: CelType) -> CelType:
        if of == DYN:
            return DYN
        if of.name == "device":
            if node.field not in DEVICE:
                known = ", ".join(DEVICE)
                raise Unreadable(node.at, f"a device has no field {node.field}; it has {known}")
            return DEVICE[node.field]
        if of.name == "map" and fits(STRING, of.of[0], {}):
            return of.of[1]
        raise Unreadable(node.at, f"{of} has no field {node.field}")

    def _call(self, node: Call, names: Names) -> CelType:
        function, of = node.function, node.of
        arguments: list[SyntaxNode] = [*node.arguments]
        if of is not None:
            space = _space(of)
            if space in SPACES and space.partition(".")[0] not in names and f"{space}.{function}" in FUNCTIONS.by_name:
                function = f"{space}.{function}"
                self.spaced.add(id(node))
            else:
                arguments, function = [of, *arguments], f":{function}"
        kinds = [self.kind(one, names) for one in arguments]
        known = FUNCTIONS.by_name.get(function)
        if known is None:
            raise Unreadable(node.at, f"no function is called {function.removeprefix(':')}")
        found = [(one, bound) for one in known if (bound := _bound(one, kinds)) is not None]
        if not found:
            told = ", ".join(map(str, kinds))
            raise Unreadable(node.at, f"{function.removeprefix(':')} is not for ({told})")
        self.meanings[id(node)] = tuple(one for one, _ in found)
        results = {with_bound(one.result, bound) for one, bound in found}
        return results.pop() if len(results) == 1 else DYN

    def _each(self, node: Each, names: Names) -> CelType:
        of = self.kind(node.of, names)
        if of != DYN and of.name not in ("list", "map"):
            raise Unreadable(node.at, f"{node.macro} is for lists and maps, not {of}")
        item = of.of[0] if of.of else DYN
        within = {**names, node.name: item}
        if node.only is not None:
            self._must_be(BOOL, node.only, within)
        if node.macro == "map":
            return list_of(self.kind(node.body, within))
        self._must_be(BOOL, node.body, within)
        return list_of(item) if node.macro == "filter" else BOOL

    def _with_value(self, node: WithValue, names: Names) -> CelType:
        of = self.kind(node.of, names)
        if of not in (DYN, CelType("optional")) and of.name != "optional":
            raise Unreadable(node.at, f"optMap is for optionals, not {of}")
        found = self.kind(node.body, {**names, node.name: of.of[0] if of.of else DYN})
        return found if node.is_flat else optional_of(found)


def _bound(signature: Signature, kinds: list[CelType]) -> Bound | None:
    """What its free kinds are then, None where it is not meant."""
    bound: Bound = {}
    if len(kinds) != len(signature.arguments):
        return None
    pairs = zip(kinds, signature.arguments, strict=True)
    return bound if all(fits(given, wanted, bound) for given, wanted in pairs) else None


def _space(node: SyntaxNode) -> str:
    """`ip` and `a.b` as they are written."""
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Select) and not node.is_test and not node.is_soft:
        before = _space(node.of)
        return f"{before}.{node.field}" if before else ""
    return ""

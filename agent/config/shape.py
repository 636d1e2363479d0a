# SPDX-License-Identifier: Apache-2.0
"""Whether a document has the fields and types that it may have: all complaints at once, each with its place.

An unknown field is a complaint: half of what a manifest says would be worse than nothing. A class may say in
`ELSEWHERE` what serves in place of fields that only others have.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from agent.config.strict_yaml import Tree, plain
from agent.model.finding import Finding, shown, suggestion

INSPECT = msgspec.inspect
WORDS = {
    INSPECT.StrType: "text; put it in quotes",
    INSPECT.IntType: "a whole number",
    INSPECT.BoolType: "true or false",
    INSPECT.FloatType: "a number",
}
MODES = frozenset(("mode", "defaultMode"))
OCTAL = re.compile(r"0[oO]?[0-7]{1,6}\Z")
LARGEST_INTEGER = 2**63 - 1


class Shape(msgspec.Struct, frozen=True):
    findings: list[Finding]

    def read(self, tree: Tree, kind: type[msgspec.Struct], path: str) -> object:
        """The tree as plain values that fit the type as far as they are faultless."""
        return self._struct(tree, _struct_type(kind), path)

    def _wrong(self, tree: Tree, path: str, text: str) -> None:
        self.findings.append(Finding(tree.where, path, text))

    def _struct(self, tree: Tree, kind: msgspec.inspect.StructType, path: str) -> object:
        if tree.kind != "map":
            self._wrong(
                tree, path, "must be a map" if tree.kind == "list" else f"must be a map, not {_told(tree, path)}"
            )
            return {}
        fields = {field.encode_name: field.type for field in kind.fields}
        elsewhere: Mapping[str, str] = getattr(kind.cls, "ELSEWHERE", {})
        found: dict[str, object] = {}
        for name, child in tree.entries.items():
            below = f"{path}.{name}".lstrip(".")
            if name not in fields:
                text = elsewhere.get(name) or f"not supported by this version{suggestion(name, fields)}"
                self._wrong(child, below, text)
            elif child.kind != "scalar" or child.scalar is not None:
                found[name] = self._value(_octal(child) if name in MODES else child, fields[name], below)
        return found

    def _value(self, tree: Tree, kind: msgspec.inspect.Type, path: str) -> object:
        match kind:
            case INSPECT.UnionType():
                return self._union(tree, kind, path)
            case INSPECT.StructType():
                return self._struct(tree, kind, path)
            case INSPECT.VarTupleType():
                return self._list(tree, kind.item_type, path)
            case INSPECT.DictType():
                return self._map(tree, kind.value_type, path)
            case INSPECT.AnyType() | INSPECT.CustomType():
                return plain(tree)
        return self._scalar(tree, kind, path)

    def _union(self, tree: Tree, kind: msgspec.inspect.UnionType, path: str) -> object:
        choices = [one for one in kind.types if not isinstance(one, INSPECT.NoneType)]
        if len(choices) == 1:
            return self._value(tree, choices[0], path)
        if tree.kind == "scalar" and any(_fits(tree.scalar, one) for one in choices):
            return tree.scalar
        right = " or ".join(WORDS[type(one)].partition(";")[0] for one in choices if type(one) in WORDS)
        self._wrong(tree, path, f"{_told(tree, path)} must be {right}")
        return None

    def _list(self, tree: Tree, item: msgspec.inspect.Type, path: str) -> list[object]:
        if tree.kind != "list":
            self._wrong(tree, path, "must be a list")
            return []
        return [self._value(child, item, f"{path}[{index}]") for index, child in enumerate(tree.items)]

    def _map(self, tree: Tree, value: msgspec.inspect.Type, path: str) -> dict[str, object]:
        if tree.kind != "map":
            self._wrong(tree, path, "must be a map")
            return {}
        return {name: self._value(child, value, f"{path}.{name}") for name, child in tree.entries.items()}

    def _scalar(self, tree: Tree, kind: msgspec.inspect.Type, path: str) -> object:
        if tree.kind == "scalar" and _fits(tree.scalar, kind):
            return tree.scalar
        self._wrong(tree, path, f"{_told(tree, path)} must be {WORDS.get(type(kind), 'something else')}")
        return None


def _octal(tree: Tree) -> Tree:
    """YAML here has no octal numbers, which is a trap elsewhere; modes of files are written in them."""
    is_octal = isinstance(tree.scalar, str) and OCTAL.match(tree.scalar) is not None
    return msgspec.structs.replace(tree, scalar=int(str(tree.scalar).lower().replace("o", ""), 8)) if is_octal else tree


def _told(tree: Tree, path: str) -> str:
    """What a variable is set to may be a password."""
    if tree.kind != "scalar":
        return f"a {tree.kind}"
    return "a value" if ".env[" in path else shown(plain(tree))


def _fits(value: object, kind: msgspec.inspect.Type) -> bool:
    match kind:
        case INSPECT.StrType():
            return isinstance(value, str)
        case INSPECT.BoolType():
            return isinstance(value, bool)
        case INSPECT.IntType():
            return type(value) is int and abs(value) <= LARGEST_INTEGER
        case INSPECT.FloatType():
            return type(value) in (int, float)
    return False


@lru_cache(maxsize=64)
def _struct_type(kind: type[msgspec.Struct]) -> msgspec.inspect.StructType:
    found = INSPECT.type_info(kind)
    if not isinstance(found, INSPECT.StructType):
        raise TypeError(f"{kind} is no struct")
    return found


def place_of(tree: Tree, path: str) -> str:
    """Where a path stands; of a path that is not there, where it would belong."""
    for part in _parts(path):
        below = tree.entries.get(part) if isinstance(part, str) else None
        if isinstance(part, int) and part < len(tree.items):
            below = tree.items[part]
        if below is None:
            return tree.where
        tree = below
    return tree.where


def _parts(path: str) -> Iterator[str | int]:
    for word in path.split("."):
        name, *indexes = word.split("[")
        if name:
            yield name
        for index in indexes:
            if index.rstrip("]").isdecimal():
                yield int(index.rstrip("]"))

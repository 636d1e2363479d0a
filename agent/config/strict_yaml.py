# SPDX-License-Identifier: Apache-2.0
"""YAML without surprises: JSON's scalars, no duplicate keys, and bounds on size, depth and aliases.

Text becomes `Tree` values that remember their line, for configuration and manifests alike. What YAML 1.1 would make of
`no`, `017`, `12:30:45` or a date stays a string here; a key given twice is an error, not the last one. A document that
breaks a bound is refused before it is expanded.
"""

import re
from collections.abc import Iterator

import msgspec
import yaml

from agent.model.finding import Finding, shown

Scalar = str | int | float | bool | None

MAX_BYTES = 10 << 20
MAX_DEPTH = 64
MAX_NODES = 200_000
SIGNS_PER_NODE = 50

INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})\Z")
DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?\Z")
WORDS: dict[str, Scalar] = {"": None, "null": None, "~": None, "true": True, "false": False}
STRING_TAG = "tag:yaml.org,2002:str"


class UnreadableYaml(ValueError):
    """The text cannot be taken apart at all; `finding` says where and why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Tree(msgspec.Struct):
    """A value with its place. Exactly one of the three is meant, as `kind` says: scalar, list or map. Only the parser
    fills one."""

    kind: str
    where: str
    scalar: Scalar = None
    items: list["Tree"] = msgspec.field(default_factory=list)
    entries: dict[str, "Tree"] = msgspec.field(default_factory=dict)
    weight: int = 1
    depth: int = 0


class _Open(msgspec.Struct):
    tree: Tree
    anchor: str | None
    key: str | None = None
    key_where: str = ""


class _Builder:
    def __init__(self, source: str, most_nodes: int, nodes: int = 0) -> None:
        """`nodes`: the values of the documents before this one; the bound is on the text as a whole."""
        self.source = source
        self.most_nodes = most_nodes
        self.duplicates: list[Finding] = []
        self.anchors: dict[str, Tree] = {}
        self.stack: list[_Open] = []
        self.root: Tree | None = None
        self.nodes = nodes

    def take(self, event: yaml.Event) -> None:
        where = f"{self.source}:{event.start_mark.line + 1}" if event.start_mark else self.source
        match event:
            case yaml.ScalarEvent():
                self._place(self._scalar(event, where), event.anchor)
            case yaml.SequenceStartEvent():
                self._open("list", where, event.anchor)
            case yaml.MappingStartEvent():
                self._open("map", where, event.anchor)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self.stack.pop()
                done.tree.weight += sum(child.weight for child in _children(done.tree))
                done.tree.depth = 1 + max((child.depth for child in _children(done.tree)), default=0)
                self._attach(done.tree, where)
                if done.anchor:
                    self.anchors[done.anchor] = done.tree
            case yaml.AliasEvent():
                self._place(self._alias(event, where), None)
            case _:
                pass

    def _alias(self, event: yaml.AliasEvent, where: str) -> Tree:
        target = self.anchors.get(event.anchor or "")
        if target is None:
            self._refuse(where, f"alias *{event.anchor} refers to nothing complete above it")
            raise AssertionError
        self.nodes += target.weight - 1
        if len(self.stack) + target.depth > MAX_DEPTH:
            self._refuse(where, f"nested deeper than {MAX_DEPTH} levels once its aliases are expanded")
        return target

    def _open(self, kind: str, where: str, anchor: str | None) -> None:
        if self.stack and self.stack[-1].tree.kind == "map" and self.stack[-1].key is None:
            self._refuse(where, "a key must be a plain word, not a list or map")
        if len(self.stack) >= MAX_DEPTH:
            self._refuse(where, f"nested deeper than {MAX_DEPTH} levels")
        self._count(where)
        self.stack.append(_Open(Tree(kind, where), anchor))

    def _place(self, tree: Tree, anchor: str | None) -> None:
        self._count(tree.where)
        if anchor:
            self.anchors[anchor] = tree
        self._attach(tree, tree.where)

    def _attach(self, tree: Tree, where: str) -> None:
        if not self.stack:
            self.root = tree
            return
        holder = self.stack[-1]
        if holder.tree.kind == "list":
            holder.tree.items.append(tree)
        elif holder.key is None:
            holder.key, holder.key_where = self._key(tree, where), tree.where
        else:
            if holder.key in holder.tree.entries:
                first = holder.tree.entries[holder.key].where
                self.duplicates.append(
                    Finding(holder.key_where, "", f"key {shown(holder.key)} occurs again; it is first at {first}")
                )
            holder.tree.entries[holder.key] = tree
            holder.key = None

    def _key(self, tree: Tree, where: str) -> str:
        if tree.kind != "scalar":
            self._refuse(where, "a key must be a plain word, not a list or map")
        return tree.scalar if isinstance(tree.scalar, str) else str(plain(tree)).lower()

    def _count(self, where: str) -> None:
        self.nodes += 1
        if self.nodes > self.most_nodes:
            self._refuse(where, f"more than {self.most_nodes} values once its aliases are expanded")

    def _scalar(self, event: yaml.ScalarEvent, where: str) -> Tree:
        if event.tag not in (None, "!", STRING_TAG):
            self._refuse(where, f"tag {shown(event.tag)} is not supported; leave it out")
        if event.implicit[0] and not event.style:
            return Tree("scalar", where, _resolve(event.value), weight=_weight(event.value))
        return Tree("scalar", where, event.value, weight=_weight(event.value))

    def _refuse(self, where: str, text: str) -> None:
        raise UnreadableYaml(Finding(where, "", text))


def _weight(text: str) -> int:
    """An alias costs no memory here, but whoever writes the document out has the text once more for each."""
    return 1 + len(text) // SIGNS_PER_NODE


def _children(tree: Tree) -> Iterator[Tree]:
    yield from tree.items
    yield from tree.entries.values()


def _resolve(text: str) -> Scalar:
    if text in WORDS:
        return WORDS[text]
    if INTEGER.match(text):
        return int(text)
    if DECIMAL.match(text):
        return float(text)
    return text


def parse_documents(text: str | bytes, source: str, most_nodes: int = MAX_NODES) -> tuple[list[Tree], list[Finding]]:
    """All documents of a text, without empty ones, and its duplicate keys. Raises UnreadableYaml for anything that is
    no YAML or breaks a bound."""
    if len(text) > MAX_BYTES:
        raise UnreadableYaml(Finding(source, "", f"{len(text)} bytes; at most {MAX_BYTES} are read"))
    try:
        return _build(text if isinstance(text, str) else text.decode("utf-8"), source, most_nodes)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise UnreadableYaml(Finding(where, "", f"not YAML: {error.problem or error.context}")) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise UnreadableYaml(Finding(source, "", f"not YAML: {shown(str(error).splitlines()[0])}")) from error


def documents_or_fault(text: str | bytes, source: str, most_nodes: int = MAX_NODES) -> tuple[list[Tree], list[Finding]]:
    """As `parse_documents`; why a text cannot be taken apart is a finding as well."""
    try:
        return parse_documents(text, source, most_nodes)
    except UnreadableYaml as error:
        return [], [error.finding]


def _build(text: str, source: str, most_nodes: int) -> tuple[list[Tree], list[Finding]]:
    trees: list[Tree] = []
    duplicates: list[Finding] = []
    builder = _Builder(source, most_nodes)
    for event in yaml.parse(text, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.DocumentStartEvent):
            builder = _Builder(source, most_nodes, builder.nodes)
        elif isinstance(event, yaml.DocumentEndEvent):
            duplicates += builder.duplicates
            if builder.root is not None and (builder.root.kind != "scalar" or builder.root.scalar is not None):
                trees.append(builder.root)
        else:
            builder.take(event)
    return trees, duplicates


def plain(tree: Tree) -> object:
    """The value without its places: dicts, lists and scalars."""
    if tree.kind == "map":
        return {key: plain(value) for key, value in tree.entries.items()}
    if tree.kind == "list":
        return [plain(item) for item in tree.items]
    return tree.scalar

# SPDX-License-Identifier: Apache-2.0
"""The objects of a manifest file, each with its place in the text, so that one can be changed and the rest stays as it
is, byte for byte: comments, order and quotes of the others are their author's.

A line `---` always begins a document, whatever stands around it, so lines alone divide the text. Items of a List are
lines as well, where the List is written in lines; a List in braces is written anew. Every change is read back before it
is given away: the other objects must be as they were, or the change is refused.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import yaml

from agent.config.strict_yaml import Tree, UnreadableYaml, plain
from agent.kinds.registry import CLUSTER_KINDS
from agent.model.finding import Finding
from agent.objects.decoding import Content, documents_of

BEGINS = re.compile(r"^---(?:[ \t\r].*)?$", re.MULTILINE)


class ManifestObject(msgspec.Struct, frozen=True):
    """One object of a text. `begin` and `end` are places in it; of an item in braces those of its List."""

    kind: str
    namespace: str
    name: str
    content: Content
    begin: int
    end: int
    where: str
    item: int | None = None
    """Its number in a List."""
    has_lines: bool = True
    """Whether the place is its own."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


class _Document(msgspec.Struct, frozen=True):
    begin: int
    end: int
    tree: Tree


def read_objects(path: str, content: bytes) -> list[ManifestObject]:
    """In their order. Raises UnreadableYaml for a text that kepd would not take apart either."""
    try:
        text = content.decode()
    except UnicodeError as error:
        raise UnreadableYaml(Finding(path, "", "is not UTF-8")) from error
    found = []
    for document in _documents(path, text):
        found += list(_objects_of(document, text))
    return found


def _documents(path: str, text: str) -> Iterator[_Document]:
    trees, faults = documents_of(text.encode(), path)
    if faults:
        raise UnreadableYaml(faults[0])
    begins = [one.start() for one in BEGINS.finditer(text)]
    edges = sorted({0, *begins, len(text)})
    lines = [_line_of(tree) for tree in trees]
    line = 1
    for begin, end in pairwise(edges):
        after = line + text.count("\n", begin, end)
        inside = [tree for tree, at in zip(trees, lines, strict=True) if line <= at < max(after, line + 1)]
        if end == len(text):
            inside = [tree for tree, at in zip(trees, lines, strict=True) if at >= line]
        if len(inside) > 1:
            raise UnreadableYaml(Finding(inside[1].where, "", "begins without a line of ---, so it has no place"))
        if inside:
            yield _Document(begin, end, inside[0])
        line = after


def _line_of(tree: Tree) -> int:
    return int(tree.where.rpartition(":")[2])


def _objects_of(document: _Document, text: str) -> Iterator[ManifestObject]:
    content = plain(document.tree)
    if not isinstance(content, dict):
        return
    kind = str(content.get("kind") or "")
    items = document.tree.entries.get("items")
    if not kind.endswith("List") or items is None or items.kind != "list":
        yield _object(content, kind, document.begin, document.end, document.tree.where)
        return
    places = _item_places(document, items, text)
    for number, item in enumerate(items.items):
        inner = plain(item)
        if isinstance(inner, dict):
            begin, end = places[number] if places else (document.begin, document.end)
            one_kind = str(inner.get("kind") or kind.removesuffix("List"))
            yield _object(inner, one_kind, begin, end, item.where, number, has_lines=bool(places))


def _object(
    content: Content, kind: str, begin: int, end: int, where: str, item: int | None = None, *, has_lines: bool = True
) -> ManifestObject:
    given = content.get("metadata")
    metadata = given if isinstance(given, dict) else {}
    namespace = "" if kind in CLUSTER_KINDS else str(metadata.get("namespace") or "default")
    return ManifestObject(kind, namespace, str(metadata.get("name") or ""), content, begin, end, where, item, has_lines)


def _item_places(document: _Document, items: Tree, text: str) -> list[tuple[int, int]]:
    """From one dash to the next; nothing where items are not written so."""
    starts = [_start_of_line(text, _line_of(item)) for item in items.items]
    dashes = {re.match(r"[ \t]*- ", text[start:]) for start in starts}
    indents = {len(dash[0]) if dash is not None else -1 for dash in dashes}
    if len(indents) != 1 or -1 in indents or len(set(starts)) != len(starts):
        return []
    indent = indents.pop() - 2
    last = starts[-1]
    end = document.end
    for line in re.finditer(r"^.*\n?", text[last : document.end], re.MULTILINE):
        own = line[0]
        inner = len(own) - len(own.lstrip(" "))
        if line.start() and own.strip() and inner <= indent and not own.lstrip().startswith("#"):
            end = last + line.start()
            break
    return list(zip(starts, [*starts[1:], end], strict=True))


def _start_of_line(text: str, line: int) -> int:
    place = 0
    for _ in range(line - 1):
        place = text.index("\n", place) + 1
    return place


def own_text(content: bytes, one: ManifestObject) -> str:
    """The object alone, as a document: with its comments where it has lines of its own."""
    text = content.decode()[one.begin : one.end]
    if one.item is not None:
        return dumped(one.content)
    return BEGINS.sub("", text, count=1).lstrip("\n") if BEGINS.match(text) else text


def dumped(content: object) -> str:
    text: str = yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True)
    return text


def without(path: str, content: bytes, one: ManifestObject) -> bytes:
    """The file without an object; empty if nothing else is in it."""
    before = read_objects(path, content)
    rest = [other for other in before if other.key != one.key]
    if not rest:
        return b""
    of_list = [
        other for other in before if other.item is not None and other.begin >= one.begin and other.end <= one.end
    ]
    text = content.decode()
    if one.item is None or (one.has_lines and _has_siblings(before, one, text)):
        changed = text[: one.begin] + text[one.end :]
    else:
        changed = _anew(text, path, one, None) if of_list else text
    return _checked(path, changed, rest)


def replaced(
    path: str, content: bytes, one: ManifestObject, new: str, new_content: Content, *,
    before: Sequence[ManifestObject] = (),
) -> bytes:  # fmt: skip
    """The file with an object that says something else. `before`: its objects, where they are known."""
    text = content.decode()
    before = before or read_objects(path, content)
    wanted = [replace_content(other, new_content) if other.key == one.key else other for other in before]
    if one.item is not None:
        changed = _anew(text, path, one, new_content)
    else:
        head = BEGINS.match(text, one.begin)
        start = "---\n" if head is not None or one.begin else ""
        changed = text[: one.begin] + start + new.strip("\n") + "\n" + text[one.end :]
    return _checked(path, changed, wanted)


def replace_content(one: ManifestObject, content: Content) -> ManifestObject:
    return msgspec.structs.replace(one, content=content)


def _has_siblings(everything: Sequence[ManifestObject], one: ManifestObject, text: str) -> bool:
    """Whether its List keeps other items."""
    edges = sorted({0, *(begin.start() for begin in BEGINS.finditer(text)), len(text)})
    begin = max(edge for edge in edges if edge <= one.begin)
    end = min((edge for edge in edges if edge > one.begin), default=len(text))
    return any(other.key != one.key and begin <= other.begin < end for other in everything)


def _anew(text: str, path: str, one: ManifestObject, new: Content | None) -> str:
    """The List of an object written again, with `new` in its place or without it."""
    for document in _documents(path, text):
        if document.begin <= one.begin < document.end:
            whole = plain(document.tree)
            if isinstance(whole, dict) and isinstance(items := whole.get("items"), list) and one.item is not None:
                items[one.item : one.item + 1] = [new] if new is not None else []
                head = "---\n" if BEGINS.match(text, document.begin) else ""
                is_json = text[document.begin :].lstrip().startswith("{")
                written = json.dumps(whole, indent=2, ensure_ascii=False) + "\n" if is_json else dumped(whole)
                fresh = head + written if items else ""
                return text[: document.begin] + fresh + text[document.end :]
    return text


def _checked(path: str, text: str, wanted: Sequence[ManifestObject]) -> bytes:
    """Refuses what reads otherwise than it should."""
    content = text.encode()
    found = read_objects(path, content)
    if [one.content for one in found] != [one.content for one in wanted]:
        raise UnreadableYaml(Finding(path, "", "cannot be changed without touching its other objects; edit the file"))
    return content

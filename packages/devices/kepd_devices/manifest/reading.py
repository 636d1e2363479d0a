# SPDX-License-Identifier: Apache-2.0
"""Claims, templates, classes and slices from all manifest files together.

The last good version of an object whose file has a fault stays; of two objects with one name the first file's wins.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.config.strict_yaml import Tree, UnreadableYaml, parse_documents
from agent.model.finding import Finding
from kepd_devices.manifest.documents import IN_CLUSTER, KINDS, SUCCESSORS, Object, Reader, successor_text
from kepd_devices.manifest.objects import Claim, ClaimTemplate, DeviceClass, Slice

# To compile 10 KiB takes some 50 ms; nothing else of the plane is read meanwhile.
MOST_EXPRESSIONS = 128 * 1024
Key = tuple[str, str, str]
Kind = TypeVar("Kind", bound=Object)


class Placed(msgspec.Struct, frozen=True):
    where: str
    found: Object


class ReadFile(msgspec.Struct, frozen=True):
    """The same content becomes the same, so only a file that changed is read again."""

    content: bytes = b""
    good: Mapping[Key, Placed] = {}
    findings: tuple[Finding, ...] = ()


NOT_READ = ReadFile()


class DeviceObjects(msgspec.Struct, frozen=True):
    """What the files say. Claims and templates by NAMESPACE/NAME; `places` tells the file and line of each object."""

    claims: Mapping[str, Claim] = {}
    templates: Mapping[str, ClaimTemplate] = {}
    classes: Mapping[str, DeviceClass] = {}
    slices: tuple[Slice, ...] = ()
    findings: tuple[Finding, ...] = ()
    places: Mapping[Key, str] = {}
    by_file: Mapping[str, ReadFile] = {}


NO_OBJECTS = DeviceObjects()


def read_device_objects(
    files: Mapping[str, bytes], reader: Reader, before: DeviceObjects = NO_OBJECTS
) -> DeviceObjects:
    by_file: dict[str, ReadFile] = {}
    findings: list[Finding] = []
    chosen: dict[Key, Placed] = {}
    for path in sorted(files):
        last = before.by_file.get(path, NOT_READ)
        by_file[path] = last if last.content == files[path] else _read_file(path, files[path], reader, last.good)
        findings += by_file[path].findings
        for key, one in by_file[path].good.items():
            if key in chosen:
                text = f"{_told(key)} is already in {chosen[key].where}; this one is ignored"
                findings.append(Finding(one.where, "metadata.name", text))
            chosen.setdefault(key, one)
    return DeviceObjects(
        claims={one.key: one for one in _of(Claim, chosen.values())},
        templates={one.key: one for one in _of(ClaimTemplate, chosen.values())},
        classes={one.metadata.name: one for one in _of(DeviceClass, chosen.values())},
        slices=tuple(_of(Slice, chosen.values())),
        findings=tuple(findings),
        places={key: one.where for key, one in chosen.items()},
        by_file=by_file,
    )


def _of(kind: type[Kind], chosen: Iterable[Placed]) -> list[Kind]:
    return [one.found for one in chosen if isinstance(one.found, kind)]


def _read_file(path: str, content: bytes, reader: Reader, before: Mapping[Key, Placed]) -> ReadFile:
    try:
        trees, findings = parse_documents(content, path)
    except UnreadableYaml as error:
        return ReadFile(content, before, (error.finding,))
    if findings:
        return ReadFile(content, before, tuple(findings))
    if (count := sum(map(len, set(_expressions(trees))))) > MOST_EXPRESSIONS:
        text = f"has selectors of {count} signs; expected at most {MOST_EXPRESSIONS}: share them out to several files"
        return ReadFile(content, before, (Finding(path, "", text),))
    good: dict[Key, Placed] = {}
    for kind, tree in _objects(trees):
        if kind in SUCCESSORS:
            findings.append(Finding(tree.where, "kind", successor_text(kind)))
            continue
        found = reader.read(tree, kind, findings)
        key = _key(kind, tree, found)
        if found is not None:
            if key in good:
                findings.append(Finding(tree.where, "metadata.name", f"{_told(key)} stands twice; the first counts"))
            good.setdefault(key, Placed(tree.where, found))
        elif key in before:
            findings.append(Finding(tree.where, "", f"the last good version of {_told(key)} stays in force"))
            good.setdefault(key, before[key])
    return ReadFile(content, good, tuple(findings))


def _expressions(trees: Iterable[Tree]) -> Iterator[str]:
    """What has to be compiled, by the name of its field."""
    left = list(trees)
    while left:
        tree = left.pop()
        left += [*tree.entries.values(), *tree.items]
        expression = tree.entries.get("expression")
        yield str(expression.scalar) if expression is not None else ""


def _objects(trees: Iterable[Tree], default: str = "") -> Iterator[tuple[str, Tree]]:
    """With their kinds; lists taken apart. Other kinds belong to other planes."""
    for tree in trees:
        given = tree.entries.get("kind")
        kind = str(given.scalar) if given is not None else default
        items = tree.entries.get("items")
        if kind.endswith("List") and items is not None:
            own = kind.removesuffix("List")
            version = tree.entries.get("apiVersion")
            yield from _objects((_typed(one, own, version) for one in items.items), own)
        elif kind in KINDS or kind in SUCCESSORS:
            yield kind, tree


def _typed(item: Tree, kind: str, version: Tree | None) -> Tree:
    """An item of a list of one kind need not repeat its version."""
    if not kind or version is None or item.kind != "map" or "apiVersion" in item.entries:
        return item
    return msgspec.structs.replace(item, entries={"apiVersion": version, **item.entries})


def _key(kind: str, tree: Tree, found: Object | None) -> Key:
    if found is not None:
        return kind, found.metadata.namespace, found.metadata.name
    metadata = tree.entries.get("metadata")
    named = {key: one.scalar for key, one in metadata.entries.items()} if metadata is not None else {}
    namespace = "" if kind in IN_CLUSTER else str(named.get("namespace") or "default")
    return kind, namespace, str(named.get("name") or "")


def _told(key: Key) -> str:
    return f"{key[0]} {'/'.join(filter(None, key[1:]))}"

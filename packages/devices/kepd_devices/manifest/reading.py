# SPDX-License-Identifier: Apache-2.0
"""Claims, templates, classes and slices from all manifest files together."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.manifests.in_force import Key, ReadFiles, read_files, told
from agent.objects.decoding import documents_of, objects_of
from kepd_devices.manifest.documents import KINDS, SUCCESSORS, Object, Reader, successor_text
from kepd_devices.manifest.objects import Claim, ClaimTemplate, DeviceClass, Slice

# To compile 10 KiB takes some 50 ms; nothing else of the plane is read meanwhile.
MOST_EXPRESSIONS = 128 * 1024
Kind = TypeVar("Kind", bound=Object)


class Placed(msgspec.Struct, frozen=True):
    where: str
    found: Object


class DeviceObjects(msgspec.Struct, frozen=True):
    """What the files say. Claims and templates by NAMESPACE/NAME; `places` tells the file and line of each object."""

    claims: Mapping[str, Claim] = {}
    templates: Mapping[str, ClaimTemplate] = {}
    classes: Mapping[str, DeviceClass] = {}
    slices: tuple[Slice, ...] = ()
    findings: tuple[Finding, ...] = ()
    places: Mapping[Key, str] = {}
    files: ReadFiles[Placed] = ReadFiles()


NO_OBJECTS = DeviceObjects()


def read_device_objects(
    files: Mapping[str, bytes], reader: Reader, before: DeviceObjects = NO_OBJECTS
) -> DeviceObjects:
    read = read_files(files, before.files, lambda path, content: _read_file(path, content, reader))
    chosen = read.chosen
    return DeviceObjects(
        claims={one.key: one for one in _of(Claim, chosen.values())},
        templates={one.key: one for one in _of(ClaimTemplate, chosen.values())},
        classes={one.metadata.name: one for one in _of(DeviceClass, chosen.values())},
        slices=tuple(_of(Slice, chosen.values())),
        findings=read.findings,
        places={key: one.where for key, one in chosen.items()},
        files=read,
    )


def _of(kind: type[Kind], chosen: Iterable[Placed]) -> list[Kind]:
    return [one.found for one in chosen if isinstance(one.found, kind)]


def _read_file(path: str, content: bytes, reader: Reader) -> tuple[Mapping[Key, Placed], list[Finding]]:
    trees, findings = documents_of(content, path)
    if (count := sum(map(len, set(_expressions(trees))))) > MOST_EXPRESSIONS:
        text = f"has selectors of {count} signs; expected at most {MOST_EXPRESSIONS}: share them out to several files"
        return {}, [*findings, Finding(path, "", text)]
    good: dict[Key, Placed] = {}
    for kind, tree in objects_of(trees) if not findings else ():
        if kind in SUCCESSORS:
            findings.append(Finding(tree.where, "kind", successor_text(kind)))
            continue
        found = reader.read(tree, kind, findings) if kind in KINDS else None
        if found is None:
            continue
        key = kind, found.metadata.namespace, found.metadata.name
        if key in good:
            findings.append(Finding(tree.where, "metadata.name", f"{told(key)} stands twice; the first counts"))
        good.setdefault(key, Placed(tree.where, found))
    return good, findings


def _expressions(trees: Iterable[Tree]) -> Iterator[str]:
    """What has to be compiled, by the name of its field."""
    left = list(trees)
    while left:
        tree = left.pop()
        left += [*tree.entries.values(), *tree.items]
        expression = tree.entries.get("expression")
        yield str(expression.scalar) if expression is not None else ""

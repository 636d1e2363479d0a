# SPDX-License-Identifier: Apache-2.0
"""Claims, templates, classes and slices from manifests."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from agent.config.document import Configuration
from agent.config.strict_yaml import Tree
from agent.model.finding import Finding
from agent.model.manifests.snapshot import Key
from agent.objects.admitting import InForce, objects_in
from agent.objects.reading import Object as Placed
from agent.objects.reading import Reading
from kepd_devices.manifest.documents import KINDS, SUCCESSORS, Object, Reader, successor_text
from kepd_devices.manifest.objects import Claim, ClaimTemplate, DeviceClass, Slice

# To compile 10 KiB takes some 50 ms; nothing else of the plane is read meanwhile.
MOST_EXPRESSIONS = 128 * 1024
Kind = TypeVar("Kind", bound=Object)


class DeviceObjects(msgspec.Struct, frozen=True):
    """What is in force. Claims and templates by NAMESPACE/NAME; `places` tells the file and line of each object."""

    claims: Mapping[str, Claim] = {}
    templates: Mapping[str, ClaimTemplate] = {}
    classes: Mapping[str, DeviceClass] = {}
    slices: tuple[Slice, ...] = ()
    findings: tuple[Finding, ...] = ()
    places: Mapping[Key, str] = {}


NO_OBJECTS = DeviceObjects()
PLANE = "devices"


def device_objects_in(in_force: InForce) -> DeviceObjects:
    own = in_force.of(KINDS)
    return DeviceObjects(
        claims={claim.key: claim for claim in _of(Claim, own)},
        templates={template.key: template for template in _of(ClaimTemplate, own)},
        classes={class_.metadata.name: class_ for class_ in _of(DeviceClass, own)},
        slices=tuple(_of(Slice, own)),
        findings=in_force.findings_of(PLANE),
        places={object_.key: object_.where for object_ in own},
    )


def read_device_objects(files: Mapping[str, bytes], reader: Reader) -> DeviceObjects:
    """Of these files alone."""
    return device_objects_in(objects_in(files, device_reading(reader)))


def _of(kind: type[Kind], objects: Iterable[Placed]) -> list[Kind]:
    return [object_.value for object_ in objects if isinstance(object_.value, kind)]


def device_reading(reader: Reader) -> Reading:
    def read(tree: Tree, kind: str, _path: str, findings: list[Finding]) -> Object | None:
        if kind in SUCCESSORS:
            findings.append(Finding(tree.where, "kind", successor_text(kind)))
            return None
        return reader.read(tree, kind, findings)

    return Reading(PLANE, frozenset({*KINDS, *SUCCESSORS}), read, refuses=_refuses, settings=reader)


def reading_for(configuration: Configuration | None) -> Reading:
    if configuration is None:
        return device_reading(Reader(""))
    return device_reading(Reader(configuration.node.name, trusts_status=configuration.devices.manager.trust_status))


def _refuses(trees: Sequence[Tree]) -> str:
    if (count := sum(map(len, set(_expressions(trees))))) > MOST_EXPRESSIONS:
        return f"has selectors of {count} signs; expected at most {MOST_EXPRESSIONS}: share them out to several files"
    return ""


def _expressions(trees: Iterable[Tree]) -> Iterator[str]:
    """What has to be compiled, by the name of its field."""
    left = list(trees)
    while left:
        tree = left.pop()
        left += [*tree.entries.values(), *tree.items]
        expression = tree.entries.get("expression")
        yield str(expression.scalar) if expression is not None else ""

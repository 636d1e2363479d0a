# SPDX-License-Identifier: Apache-2.0
"""CPU per zone: which nodes count, what they add up to, and who is to blame when the sum is not usable.

One node that counts and lacks a zone or CPU makes the information insufficient for every Service.
Never: looks at taints, cordons or total capacity, nor at labels unless a selector of standalone mode asks for it.
Source of behaviour: k8s.io/endpointslice/topologycache (SetNodes).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from agent.model.nodes.node import ZONE_LABEL, Node
from agent.model.quantity import ZERO, Quantity

CONTROL_PLANE_LABELS = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
ZONES_NEEDED = 2

LeftOutCause = Literal["role-label", "not-ready", "node-selector"]
BrokenCause = Literal["zone-missing", "cpu-missing", "cpu-zero"]


class ZoneCapacity(msgspec.Struct, frozen=True, gc=False):
    """Usable capacity, zones in ascending order. The shares are doubles on purpose."""

    milli: Mapping[str, int]
    ratios: Mapping[str, float]


class LeftOutNode(msgspec.Struct, frozen=True, gc=False):
    """A node that is passed over and harms nobody."""

    name: str
    cause: LeftOutCause
    detail: str


class BrokenNode(msgspec.Struct, frozen=True, gc=False):
    """A node that counts and spoils the information of the whole cluster."""

    name: str
    cause: BrokenCause
    detail: str


class CapacityReading(msgspec.Struct, frozen=True, gc=False):
    """What the nodes say. `capacity` is None when hints cannot be computed for anybody."""

    capacity: ZoneCapacity | None
    zones: tuple[str, ...] = ()
    left_out: tuple[LeftOutNode, ...] = ()
    broken: tuple[BrokenNode, ...] = ()


EVERY_NODE: Mapping[str, str] = MappingProxyType({})


def read_capacity(nodes: Iterable[Node], selector: Mapping[str, str] = EVERY_NODE) -> CapacityReading:
    """`selector` says which nodes can carry clients at all; upstream has no such thing."""
    left_out: list[LeftOutNode] = []
    broken: list[BrokenNode] = []
    by_zone: dict[str, Quantity] = {}
    for node in nodes:
        passed_over = _left_out(node, selector)
        if passed_over is not None:
            left_out.append(passed_over)
            continue
        fault = _broken(node)
        if fault is not None:
            broken.append(fault)
        if node.zone:
            by_zone[node.zone] = by_zone.get(node.zone, ZERO) + (node.cpu or ZERO)
    return CapacityReading(
        capacity=None if broken else _shares(by_zone),
        zones=tuple(sorted(by_zone)),
        left_out=tuple(left_out),
        broken=tuple(broken),
    )


def read_zone_quantities(zones: Mapping[str, Quantity]) -> CapacityReading:
    """The same from a table of zones, as if each had one node. A zone with nothing in it breaks the reading."""
    broken = tuple(
        BrokenNode(zone, "cpu-zero", "no CPU given for this zone") for zone, cpu in sorted(zones.items()) if cpu == ZERO
    )
    unnamed = tuple(BrokenNode("", "zone-missing", "a zone needs a name") for zone in zones if not zone)
    broken = unnamed + broken
    return CapacityReading(
        capacity=None if broken else _shares(zones), zones=tuple(sorted(zones)), left_out=(), broken=broken
    )


def _shares(by_zone: Mapping[str, Quantity]) -> ZoneCapacity | None:
    total = sum(by_zone.values(), ZERO)
    if len(by_zone) < ZONES_NEEDED or total == ZERO:
        return None
    milli = {zone: by_zone[zone].milli() for zone in sorted(by_zone)}
    # The total is rounded by itself and may be less than the rounded zones together.
    total_milli = float(total.milli())
    return ZoneCapacity(milli=milli, ratios={zone: float(part) / total_milli for zone, part in milli.items()})


def _left_out(node: Node, selector: Mapping[str, str]) -> LeftOutNode | None:
    for label in CONTROL_PLANE_LABELS:
        if label in node.labels:
            return LeftOutNode(node.name, "role-label", f"has label {label}")
    if node.ready != "True":
        return LeftOutNode(node.name, "not-ready", f"condition Ready is {node.ready or 'not there'}")
    for key, value in selector.items():
        if node.labels.get(key) != value:
            return LeftOutNode(node.name, "node-selector", f"label {key} is not {value}")
    return None


def _broken(node: Node) -> BrokenNode | None:
    if not node.zone:
        return BrokenNode(node.name, "zone-missing", f"label {ZONE_LABEL} is missing or empty")
    if node.cpu is None:
        return BrokenNode(node.name, "cpu-missing", "status.allocatable.cpu is missing")
    if node.cpu == ZERO:
        return BrokenNode(node.name, "cpu-zero", "status.allocatable.cpu is 0")
    return None

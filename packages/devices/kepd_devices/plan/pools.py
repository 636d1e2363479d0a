# SPDX-License-Identifier: Apache-2.0
"""Which slices count on this node, gathered by pool, in the order in which devices are tried."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from agent.model.nodes.terms import term_fits
from agent.model.pods.affinity import NodeTerms
from agent.model.quantity import Quantity, parse_quantity
from kepd_devices.manifest.objects import DeviceOfSlice, Slice
from kepd_devices.plan.offers import Offer

PoolName = tuple[str, str]
CounterName = tuple[str, str]


class PoolNode(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    labels: Mapping[str, str] = {}


class DevicePool:
    """All devices of one driver under one name. `missing` says how many of its slices are there while some are not;
    `invalid` why nothing of it can be given."""

    def __init__(self, driver: str, name: str, *, missing: str = "") -> None:
        self.driver = driver
        self.name = name
        self.missing = missing
        self.invalid = ""
        self.offers: list[Offer] = []
        # Devices for other nodes, which may hold counters of this pool.
        self.elsewhere: list[Offer] = []
        self.counters: dict[CounterName, Quantity] = {}

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"

    @property
    def binds(self) -> bool:
        return any(one.device.binding_conditions for one in self.offers)


def gather(slices: Sequence[Slice], node: PoolNode) -> list[DevicePool]:
    """The pools that have anything for this node; those whose devices have to be bound come last."""
    by_pool: dict[PoolName, list[Slice]] = defaultdict(list)
    for one in slices:
        by_pool[one.spec.driver, one.spec.pool.name].append(one)
    found = [pool for name in sorted(by_pool) if (pool := _pool(name, by_pool[name], node)) is not None]
    return sorted(found, key=lambda pool: pool.binds)


def _pool(name: PoolName, slices: list[Slice], node: PoolNode) -> DevicePool | None:
    newest = max(one.spec.pool.generation for one in slices)
    current = [one for one in slices if one.spec.pool.generation == newest]
    here = sorted((one for one in current if _is_for(one, node)), key=lambda one: one.metadata.name)
    if not here:
        return None
    wanted = here[0].spec.pool.resource_slice_count
    if len(here) != wanted and len(current) != wanted:
        return DevicePool(*name, missing=f"{len(current)}/{wanted}")
    return _built(DevicePool(*name), here, [one for one in current if one not in here])


def _built(pool: DevicePool, here: list[Slice], others: list[Slice]) -> DevicePool:
    names: set[str] = set()
    for one in here:
        for kind in one.spec.shared_counters or ():
            if any(known == kind.name for known, _ in pool.counters):
                pool.invalid = pool.invalid or f"counter set {kind.name} stands twice"
            for name, counter in kind.counters.items():
                pool.counters[kind.name, name] = parse_quantity(str(counter.value))
        if not one.spec.shared_counters:
            pool.offers += [Offer(one, device) for device in one.spec.devices or ()]
    pool.elsewhere = [Offer(one, device) for one in others for device in one.spec.devices or ()]
    for offer in pool.offers:
        if offer.device.name in names:
            pool.invalid = pool.invalid or f"device {offer.device.name} stands twice"
        names.add(offer.device.name)
    for offer in (*pool.offers, *pool.elsewhere):
        for kind_name, counter_name, _ in offer.counters:
            if (kind_name, counter_name) not in pool.counters:
                pool.invalid = pool.invalid or f"nobody declares counter {kind_name}/{counter_name}"
    return pool


def _is_for(one: Slice, node: PoolNode) -> bool:
    spec = one.spec
    if spec.shared_counters:
        return True
    if spec.per_device_node_selection:
        return any(is_device_for(device, node) for device in spec.devices or ())
    return _matches(node, spec.node_name, spec.node_selector, is_for_all=bool(spec.all_nodes))


def is_device_for(device: DeviceOfSlice, node: PoolNode) -> bool:
    return _matches(node, device.node_name, device.node_selector, is_for_all=bool(device.all_nodes))


def _matches(node: PoolNode, name: str | None, selector: NodeTerms | None, *, is_for_all: bool) -> bool:
    if name:
        return name == node.name
    return is_for_all or (selector is not None and _selects(selector, node))


def _selects(selector: NodeTerms, node: PoolNode) -> bool:
    return any(term_fits(term, node.labels, node.name) for term in selector.node_selector_terms)

# SPDX-License-Identifier: Apache-2.0
"""Describes this node for each family: addresses for node ports, which sources are pods, which networks are Services'.

Made of the settings, the Node object and the interfaces, with what is missing or contradictory.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.model.finding import Finding, shown
from agent.model.kube_objects import NodeObject
from agent.model.nodes.node import ZONE_LABEL
from agent.model.services.nft_table import Content, Detection, Family, TableSettings
from agent.model.services.service import Address, Range
from agent.services.objects.addresses import collapse, read_address, read_range, unfit_endpoint
from agent.services.objects.bounds import MOST_ELEMENTS
from agent.services.routes.desired import NodeFacts
from agent.services.routes.outside_addresses import Allowed, Limits
from agent.services.routes.relays import LOCALHOST
from agent.services.routes.selection import Place

PRIMARY = "primary"


class NodeSettings(msgspec.Struct, frozen=True):
    node: str = ""
    is_alone: bool = False
    """Services come from manifests."""
    addresses: tuple[str, ...] = ()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    detect_mode: str = "ClusterCIDR"
    cluster_ranges: tuple[str, ...] = ()
    interface: str = ""
    interface_prefix: str = ""
    node_port_addresses: tuple[str, ...] = (PRIMARY,)
    service_ranges: tuple[str, ...] = ()
    masquerades_all: bool = False
    mark: int = 0x4000
    rejects_with_reset: bool = True
    drops_invalid: bool = False
    counts_endpoints: bool = False
    own_maps: int = 64
    maglevs: int = 64
    elements: int = MOST_ELEMENTS
    external_ips: tuple[str, ...] | None = None
    """Networks that these may be of; None: any."""
    balancer_ips: tuple[str, ...] | None = None
    only_warns_of_ips: bool = False


class NodeSight(msgspec.Struct, frozen=True):
    """What the Node object says, as far as there is one. `is_leaving`: it is deleted or about to be."""

    is_known: bool = False
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    addresses: tuple[Address, ...] = ()
    pod_ranges: tuple[Range, ...] = ()
    taints: tuple[str, ...] = ()
    is_deleted: bool = False


class FamilyFacts(msgspec.Struct, frozen=True):
    """For one family: what plans need, what the table is made of, and what should be said about it."""

    node: NodeFacts
    table: TableSettings
    findings: tuple[Finding, ...]


def node_sight(node: NodeObject) -> NodeSight:
    """InternalIP entries first, then ExternalIP, in the order of the list."""
    listed = node.status.addresses or ()
    texts = [one.address for kind in ("InternalIP", "ExternalIP") for one in listed if one.type == kind]
    cidrs = node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ())
    return NodeSight(
        is_known=True,
        labels=node.metadata.labels or {},
        addresses=tuple(one for one in map(read_address, texts) if one is not None),
        pod_ranges=tuple(one for one in map(read_range, cidrs) if one is not None),
        taints=tuple(taint.key for taint in node.spec.taints or ()),
        is_deleted=node.metadata.deletion_timestamp is not None,
    )


def family_facts(
    family: Family,
    settings: NodeSettings,
    sight: NodeSight,
    interfaces: Iterable[Address],
    service_ranges: Iterable[str] = (),
    *,
    node_labels: Mapping[str, Mapping[str, str]] | None = None,
    default: Iterable[Address] = (),
    reserved: Mapping[bytes, str] | None = None,
) -> FamilyFacts:
    """`interfaces` are the addresses that this host has, `default` those by which it reaches others, `reserved` those
    that no Service may take."""
    findings: list[Finding] = []
    addresses = _own_addresses(family, settings, sight, default)
    here = [one for one in interfaces if one.family == family]
    is_open, ports = _node_ports(family, settings, addresses, here, findings)
    detection, pods = _detection(family, settings, sight, findings)
    labels = {**settings.labels, **sight.labels}
    services = collapse(_ranges_of(family, (*settings.service_ranges, *service_ranges)))
    # Whatever tells pods from others here, all networks of pods that are known are theirs.
    of_pods = dict.fromkeys((*pods, *_ranges_of(family, settings.cluster_ranges), *_in(family, sight.pod_ranges)))
    networks = [(one, "the network of Services") for one in services]
    networks += [(one, "the network of pods") for one in of_pods]
    known = [*sight.addresses, *default, *_read_addresses(settings.addresses)]
    limits = Limits(
        external=_allowed(family, settings.external_ips),
        balancer=_allowed(family, settings.balancer_ips),
        node=tuple(sorted({one for one in known if one.family == family})),
        networks=tuple(networks),
        reserved=tuple(sorted((reserved or {}).items())),
        only_warns=settings.only_warns_of_ips,
    )
    node = NodeFacts(
        place=Place(
            settings.node, labels.get(ZONE_LABEL, ""), {**(node_labels or {}), settings.node: labels}, settings.is_alone
        ),
        addresses=addresses,
        node_port_addresses=ports,
        is_open_everywhere=is_open,
        has_localhost=LOCALHOST in settings.node_port_addresses,
        pod_ranges=pods,
        service_ranges=services,
        own_maps=settings.own_maps,
        maglevs=settings.maglevs,
        elements=settings.elements,
        limits=limits,
    )
    table = TableSettings(
        family=family,
        mark=settings.mark,
        detection=detection,
        masquerades_all=settings.masquerades_all,
        has_node_ports_everywhere=is_open,
        rejects_with_reset=settings.rejects_with_reset,
        drops_invalid=settings.drops_invalid,
        counts_endpoints=settings.counts_endpoints,
    )
    # A node of one family lacks nothing of the other.
    is_absent = bool(known) and not (addresses or services or of_pods)
    return FamilyFacts(node, table, () if is_absent else tuple(findings))


def _in(family: Family, ranges: Iterable[Range]) -> list[Range]:
    return [one for one in ranges if one.family == family]


def _ranges_of(family: Family, texts: Iterable[str]) -> Iterator[Range]:
    yield from _in(family, filter(None, map(read_range, texts)))


def _read_addresses(texts: Iterable[str]) -> list[Address]:
    return [one for one in map(read_address, texts) if one is not None]


def _allowed(family: Family, texts: Iterable[str] | None) -> Allowed:
    return None if texts is None else tuple(_ranges_of(family, texts))


def _own_addresses(
    family: Family, settings: NodeSettings, sight: NodeSight, default: Iterable[Address]
) -> tuple[Address, ...]:
    """The primary one; an explicit one replaces what the Node object says, and that what routes say."""
    given = [one for one in _read_addresses(settings.addresses) if one.family == family]
    known = given or [one for one in (*sight.addresses, *default) if one.family == family]
    return tuple(known[:1])


def _node_ports(
    family: Family, settings: NodeSettings, addresses: tuple[Address, ...], here: list[Address], findings: list[Finding]
) -> tuple[bool, tuple[Address, ...]]:
    """(on all addresses, on these). `primary` without an address of the family opens nothing."""
    words = tuple(one for one in settings.node_port_addresses if one != LOCALHOST)
    if not words and settings.node_port_addresses:
        return False, ()
    if PRIMARY in words:
        if not addresses and settings.addresses:
            return False, ()
        if not addresses:
            text = f"this node has no known {family} address, so no node port answers there; set node.addresses"
            findings.append(Finding("services.nodePortAddresses", family, text))
        return False, addresses
    ranges = []
    for text in words:
        one = read_range(text)
        if one is None:
            findings.append(Finding("services.nodePortAddresses", "", f"{shown(text)} is ignored; expected CIDRs"))
        elif unfit_endpoint(Address(one.family, "", one.first)) == "loopback":
            findings.append(
                Finding("services.nodePortAddresses", "", f"{text} is loopback; node ports do not answer there")
            )
        elif one.family == family:
            ranges.append(one)
    if not ranges:
        return not findings, ()
    fit = [one for one in here if any(item.first <= one.packed <= item.last for item in ranges)]
    return False, tuple(sorted({one for one in fit if not unfit_endpoint(one)}))


def _detection(
    family: Family, settings: NodeSettings, sight: NodeSight, findings: list[Finding]
) -> tuple[Detection, tuple[Range, ...]]:
    match settings.detect_mode:
        case "BridgeInterface":
            return Detection("interface", settings.interface) if settings.interface else Detection(), ()
        case "InterfaceNamePrefix":
            prefix = settings.interface_prefix
            return Detection("interface", f"{prefix}*") if prefix else Detection(), ()
        case "NodeCIDR":
            ranges = _in(family, sight.pod_ranges)
            if not ranges and not sight.pod_ranges:
                text = "this Node has no podCIDRs yet; until it has, its pods count as clients from elsewhere"
                findings.append(Finding("services.detectLocal.mode", "NodeCIDR", text))
            # Another mode would be another table, and clients would lose their endpoints when the ranges come.
            return Detection("cidrs"), tuple(ranges[:1])
        case _:
            ranges = list(_ranges_of(family, settings.cluster_ranges))
    return Detection("cidrs" if ranges else "none"), tuple(ranges[:1])


def node_content(node: NodeFacts) -> Content:
    return {
        "np_addrs": {one.packed: None for one in node.node_port_addresses},
        "pod_cidrs": {one.first + one.last: None for one in node.pod_ranges},
        "svc_cidrs": {one.first + one.last: None for one in node.service_ranges},
    }

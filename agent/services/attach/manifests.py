# SPDX-License-Identifier: Apache-2.0
"""Services, EndpointSlices, Nodes and Service networks from files, with topology hints filled in."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec
import structlog
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.config.shape import place_of
from agent.config.strict_yaml import Tree, plain
from agent.model.finding import Finding
from agent.model.histogram import counter_family, gauge_family
from agent.model.kube_objects import EndpointSlice, HintsObject, HintTarget, NodeObject, Service, ServiceCidr
from agent.model.quantity import parse_quantity
from agent.objects.admitting import InForce
from agent.objects.reading import Reading
from agent.services.attach.pods import PodChoice, pod_choice
from agent.services.objects.endpoints import endpoints_faults, slice_of
from agent.services.objects.manifest import KINDS, Found, Key, converted, service_faults, service_warnings, strangers
from agent.services.objects.reading_slice import with_defaults
from agent.topology.hints.slices import Slice
from agent.topology.hints.standalone import FilledHints, HintOptions, HintStatus, fill_hints, told_transition
from agent.topology.manifest.objects import Document, Manifests, read_manifests, together

T = TypeVar("T")
log = structlog.get_logger(plane="services")

PLANE = "services"
COMPUTED = ("active", "refused")


class ServiceObjects(msgspec.Struct, frozen=True):
    """What the files say now."""

    services: tuple[Service, ...] = ()
    slices: tuple[EndpointSlice, ...] = ()
    nodes: tuple[NodeObject, ...] = ()
    service_ranges: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    hints: tuple[tuple[str, FilledHints], ...] = ()
    choices: tuple[PodChoice, ...] = ()
    """Services that choose pods of this node."""
    known: Manifests = msgspec.field(default_factory=Manifests)
    """The same objects as topology reads them."""


class Good(msgspec.Struct, frozen=True):
    """An object without fault, its document for those who read other fields of it, and what topology reads there."""

    found: Found
    document: Document
    known: Manifests


def hint_options(configuration: Configuration) -> HintOptions:
    hints = configuration.services.hints
    return HintOptions(
        mode=hints.mode,  # type: ignore[arg-type]
        zones={zone: parse_quantity(text) for zone, text in hints.zones.items()},
        overload_threshold=hints.overload_threshold,
        node_selector=hints.node_selector,
    )


def services_in(in_force: InForce, options: HintOptions) -> ServiceObjects:
    chosen = {object_.key: object_.value for object_ in in_force.of(KINDS)}
    known = together([good.known for good in chosen.values()])
    with_slices = {(slice_.namespace, slice_.service) for slice_ in known.slices}
    slices, hints = _with_hints(_of(EndpointSlice, chosen.values()), known, options)
    return ServiceObjects(
        services=tuple(_of(Service, chosen.values())),
        slices=tuple(slices),
        nodes=tuple(_of(NodeObject, chosen.values())),
        service_ranges=tuple(text for cidr in _of(ServiceCidr, chosen.values()) for text in cidr.spec.cidrs or ()),
        findings=in_force.findings_of(PLANE),
        hints=tuple(hints),
        choices=tuple(_choices(chosen, with_slices)),
        known=known,
    )


def _choices(chosen: Mapping[Key, Good], with_slices: Collection[tuple[str, str]]) -> Iterator[PodChoice]:
    """A Service whose endpoints stand in the manifests has them from there."""
    for (kind, namespace, name), good in chosen.items():
        content = good.document.content
        if kind == "Service" and (namespace, name) not in with_slices and isinstance(content, Mapping):
            choice = pod_choice(namespace, name, content)
            if choice is not None:
                yield choice


def _of(kind: type[T], chosen: Iterable[Good]) -> list[T]:
    return [one.found for one in chosen if isinstance(one.found, kind)]


def _read(tree: Tree, kind: str, _path: str, findings: list[Finding]) -> Good | None:
    content = plain(tree)
    if not isinstance(content, dict):
        return None
    if kind == "Endpoints":
        faults = [Finding(place_of(tree, path), path, text) for path, text in endpoints_faults(content)]
        findings += faults
        if faults:
            return None
        content = slice_of(content)
    document = Document(tree.where, content)
    known = read_manifests([document])
    complaints = [*(known.errors if kind != "ServiceCIDR" else ()), *strangers(tree.where, content)]
    found, wrong = (None, complaints) if complaints else converted(tree.where, content)
    findings += wrong
    return Good(found, document, known) if found is not None else None


def _warnings(tree: Tree, good: Good | None) -> Iterator[tuple[str, str]]:
    """Also of one with faults: they are told together."""
    content = plain(tree)
    if not isinstance(content, dict) or content.get("kind") == "Endpoints":
        return
    found = good.found if good is not None else converted(tree.where, content)[0]
    known = good.known if good is not None else read_manifests([Document(tree.where, content)])
    yield from service_warnings(found) if found is not None else ()
    for note in known.notes:
        if note.path.startswith(("spec.trafficDistribution", "metadata.annotations")):
            yield note.path, note.text


def _strict(tree: Tree, _kind: str) -> Iterable[tuple[str, str]]:
    content = plain(tree)
    if isinstance(content, dict) and content.get("kind") == "Endpoints":
        content = slice_of(content) if not any(endpoints_faults(content)) else None
    found, _ = converted(tree.where, content) if isinstance(content, dict) else (None, ())
    return service_faults(found) if found is not None else ()


SERVICE_READING = Reading(PLANE, frozenset(KINDS), _read, _warnings, strict=_strict, holds_what_was=True)


def reading_for(_configuration: Configuration | None) -> Reading:
    return SERVICE_READING


def _with_hints(
    slices: list[EndpointSlice], known: Manifests, options: HintOptions
) -> tuple[list[EndpointSlice], list[tuple[str, FilledHints]]]:
    """The slices with the hints that topology computes for them."""
    filled: dict[tuple[str, str], Slice] = {}
    by_service: dict[tuple[str, str, str], list[Slice]] = {}
    for one in known.slices:
        by_service.setdefault((one.namespace, one.service, one.family), []).append(one.slice)
    reports: list[tuple[str, FilledHints]] = []
    for service in known.services:
        for family in ("IPv4", "IPv6"):
            mine = by_service.get((service.namespace, service.name, family))
            if mine:
                report = fill_hints(service, family, mine, known.nodes, options)
                reports.append((service.key, report))
                filled.update(((service.namespace, one.name), one) for one in report.slices)
    return [_hinted(one, filled.get((one.metadata.namespace, one.metadata.name))) for one in slices], reports


def _hinted(item: EndpointSlice, filled: Slice | None) -> EndpointSlice:
    named = with_defaults(item)
    if filled is None:
        return named
    hints = {one.address: one.hints for one in filled.endpoints if one.hints is not None}
    endpoints = []
    for endpoint in item.endpoints or ():
        address = endpoint.addresses[0] if endpoint.addresses else ""
        own = hints.get(address)
        targets = None if own is None else HintsObject(_targets(own.zones), _targets(own.nodes))
        endpoints.append(msgspec.structs.replace(endpoint, hints=targets))
    return msgspec.structs.replace(named, endpoints=tuple(endpoints))


def _targets(names: tuple[str, ...]) -> tuple[HintTarget, ...]:
    return tuple(map(HintTarget, names))


class HintLedger:
    """The state of the zone hints that kepd computes; one log line for each transition."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], HintStatus] = {}
        """Service as NS/NAME, family."""
        self._refusals: Counter[str] = Counter()

    def take(self, hints: Iterable[tuple[str, FilledHints]]) -> None:
        before, self.states = self.states, {(key, one.family): one.status for key, one in hints}
        for place, status in self.states.items():
            self._tell(place, before.get(place), status)

    def _tell(self, place: tuple[str, str], before: HintStatus | None, after: HintStatus) -> None:
        transition = told_transition(before, after)
        if transition is None or {after.state, before.state if before else ""}.isdisjoint(COMPUTED):
            return
        service, family = place
        log.info("service_hints_changed", service=service, family=family, change=transition)
        if after.reason is not None:
            self._refusals[after.reason] += 1

    def families(self, *, has_services: bool) -> Iterator[Metric]:
        """`has_services`: also a series for each Service that asks for hints in proportion."""
        counts = Counter((status.state, family) for (_, family), status in self.states.items())
        labels = ("state", "family")
        yield gauge_family("kepd_services_hints", "Services by state of hints.", labels, sorted(counts.items()))
        refusals = sorted(self._refusals.items())
        yield counter_family("kepd_services_hints_refusals", "Refusals of hints.", ("reason",), refusals)
        if not has_services:
            return
        active = [
            ((*service.split("/", 1), family), status.state == "active")
            for (service, family), status in sorted(self.states.items())
            if status.state in COMPUTED
        ]
        names = ("namespace", "service", "family")
        yield gauge_family("kepd_service_hints_active", "Whether computed hints are in force.", names, active)

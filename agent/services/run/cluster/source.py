# SPDX-License-Identifier: Apache-2.0
"""Services, EndpointSlices, this node and the Service networks from an API server.

Never: judges objects. While the server is silent everything stays as it was.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
from prometheus_client.core import Metric

from agent.drivers.kube.decoding import ApiObject
from agent.drivers.kube.resource import (
    ENDPOINT_SLICES,
    NODE_METADATA,
    NODES,
    SERVICE_CIDRS,
    SERVICES,
    Changed,
    ChangeType,
    Disconnected,
    Malformed,
    News,
    Replaced,
    Resource,
    Resumed,
)
from agent.model.histogram import gauge_family
from agent.model.kube_objects import NodeMetadata, NodeObject, Service
from agent.model.nodes.node import HOSTNAME_LABEL, REGION_LABEL, ZONE_LABEL
from agent.services.objects.bounds import KUBERNETES, Doubts
from agent.services.objects.list_doubts import ListDoubts
from agent.services.objects.reading_service import PROXY_LABEL, ReadService, read_service
from agent.services.objects.reading_slice import ReadSlice
from agent.services.run.intake import ServiceInputs

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

log = structlog.get_logger(plane="services")

T = TypeVar("T")
K = TypeVar("K", bound=ApiObject)

HEADLESS_LABEL = "service.kubernetes.io/headless"
# The Node may be created after us; then its addresses come late.
NODE_WAIT_S = 30.0
ACCESS_RETRY_S = 10.0
AGAIN_S = 60.0
# A doubted list is asked for so often at least before it counts.
OPINIONS = 5
EMPTIED = ", without those that lost all ready endpoints"
# What is kept of other nodes beside the labels that annotations name.
TOPOLOGY_LABELS = frozenset({HOSTNAME_LABEL, ZONE_LABEL, REGION_LABEL})


class ServerFollower(Protocol):
    """Hears whether the server speaks, of each kind that is followed."""

    def heard(self, kind: str) -> None: ...

    def lost(self, kind: str, why: str) -> None:
        """No server that is configured gives news of it; told anew with each failure."""

    def doubts(self, kind: str, *, is_doubted: bool) -> None: ...


class KubeServices:
    def __init__(
        self,
        find: "Callable[[], KubeClient | None]",
        intake: ServiceInputs,
        node: str,
        proxy_name: str = "",
        *,
        is_strict: bool = False,
        saw_node: Callable[[NodeObject], None] = lambda _: None,
        has_rules: Callable[[], bool] = lambda: False,
        doubts: Callable[[], Doubts] = Doubts,
        follower: ServerFollower | None = None,
    ) -> None:
        """`has_rules`: whether an earlier process left some."""
        self._has_rules = has_rules
        self._doubts = doubts
        self._follower = follower
        self._silent: dict[str, bool] = {}
        """Kind → whether no server gives news of it."""
        self._doubted = ListDoubts()
        self._find = find
        self._client: KubeClient | None = None
        self._intake = intake
        self._proxy_name = proxy_name
        self._is_strict = is_strict
        self._saw_node = saw_node
        self._heard_s: dict[str, float] = {}
        ours = f"{PROXY_LABEL}={proxy_name}" if proxy_name else f"!{PROXY_LABEL}"
        self._services = SERVICES.narrowed(field_selector="spec.clusterIP!=None", label_selector=ours)
        self._slices = ENDPOINT_SLICES.narrowed(label_selector=f"!{HEADLESS_LABEL}")
        self._node = NODES.narrowed(field_selector=f"metadata.name={node}")

    async def run(self) -> None:
        """For ever. Without access nothing is known, so nothing is written: rules that stand stay."""
        while (client := self._find()) is None:
            log.warning("service_source_unavailable", retry_s=ACCESS_RETRY_S, effect="rules stay as they are")
            await asyncio.sleep(ACCESS_RETRY_S)
        self._client = client
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_objects(), name="follow-objects")
            group.create_task(self._follow_node(), name="follow-node")
            group.create_task(self._follow_cidrs(), name="follow-service-cidrs")
            group.create_task(self._follow_labels(), name="follow-node-labels")
            group.create_task(self._give_up_on_node(), name="wait-for-node")

    async def _follow_objects(self) -> None:
        """Listed again, not too often, where that may help."""
        while True:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._follow_services()), group.create_task(self._follow_slices())]
                await self._intake.asks_again.wait()
                await asyncio.sleep(self._again_s)
                self._intake.asks_again.clear()
                self._intake.ledger.is_short = False
                for one in tasks:
                    one.cancel()

    @property
    def _again_s(self) -> float:
        return min(AGAIN_S, self._doubts().time_s / OPINIONS)

    def families(self) -> Iterator[Metric]:
        """How old the last word of the server is: it grows where a watch hangs without breaking."""
        text = "Time since the API server's last message about a kind."
        now_s = asyncio.get_running_loop().time()
        ages = [(kind, now_s - heard_s) for kind, heard_s in sorted(self._heard_s.items())]
        yield gauge_family("kepd_kube_watch_age_seconds", text, ("kind",), ages)

    def silent_s(self) -> float:
        """How long the server has said nothing of Services or of slices."""
        now_s = asyncio.get_running_loop().time()
        return max(now_s - self._heard_s.get(kind, float("-inf")) for kind in ("Service", "EndpointSlice"))

    async def _news(self, resource: Resource[K], convert: Callable[[K], T], kind: str) -> AsyncIterator[News[T]]:
        """Only news of objects; the rest is told here."""
        assert self._client is not None  # noqa: S101 - run() found it first
        async with aclosing(self._client.follow(resource, convert)) as news:
            async for one in news:
                if not isinstance(one, Disconnected):
                    self._heard_s[kind] = asyncio.get_running_loop().time()
                self._note(kind, str(one.error) if isinstance(one, Disconnected) else "")
                match one:
                    case Malformed(key=key, is_gone=True):
                        self._intake.gone(kind, key.namespace, key.name)
                    case Malformed(key=key, text=text):
                        self._intake.unreadable(kind, key.namespace, key.name, text)
                    case Disconnected():
                        log.warning("service_watch_lost", kind=kind, error=one.reason)
                    case Resumed():
                        log.info("service_watch_resumed", kind=kind)
                    case Replaced() | Changed():
                        yield one
                    case _:
                        pass

    def _note(self, kind: str, failure: str) -> None:
        """No failure: the server speaks."""
        is_silent, now_s, follower = bool(failure), asyncio.get_running_loop().time(), self._follower
        if is_silent and follower is not None:
            follower.lost(kind, failure)
        if is_silent is self._silent.get(kind):
            return
        self._silent[kind] = is_silent
        (self._doubted.silent if is_silent else self._doubted.heard)(kind, now_s)
        if not is_silent and follower is not None:
            follower.heard(kind)

    def _believes(self, kind: str, known: Collection[tuple[str, str]], listed: Collection[tuple[str, str]]) -> bool:
        doubts, now_s = self._doubts(), asyncio.get_running_loop().time()
        known = known or self._intake.remembered.get(kind, frozenset())
        why = self._doubted.why(kind, known, listed, now_s, doubts, has_rules=self._has_rules())
        if self._follower is not None:
            self._follower.doubts(kind, is_doubted=bool(why))
        if not why:
            self._intake.remembered.pop(kind, None)
            self._intake.doubted(kind, "")
            return True
        times = f"listed again every {self._again_s:.0f} s and believed after {doubts.time_s:.0f} s"
        times += " (services.listDoubt; a shorter one counts after a reload)"
        effect = f"what is programmed stays; {times}"
        why += EMPTIED if kind == "EndpointSlice" else ""
        log.warning("service_list_doubted", kind=kind, problem=why, effect=effect)
        self._intake.doubted(kind, f"{kind}: {why}; {effect}")
        return False

    async def _follow_services(self) -> None:
        def made(item: Service) -> ReadService:
            return read_service(item, self._proxy_name, is_strict=self._is_strict)

        def read(item: Service) -> ReadService:
            return self._intake.taken_service(item, made)

        async for one in self._news(self._services, read, "Service"):
            match one:
                case Replaced(items=items, unreadable=unreadable):
                    kept = {(key.namespace, key.name) for key in unreadable}
                    if self._believes("Service", self._intake.fold.services, kept.union(item.key for item in items)):
                        self._intake.replace_services(items, kept)
                case Changed(change=ChangeType.DELETED, object=item):
                    self._intake.drop_service(*item.key)
                case Changed(object=item):
                    self._intake.put_service(item)

    async def _follow_slices(self) -> None:
        async for one in self._news(self._slices, self._intake.taken_slice, "EndpointSlice"):
            match one:
                case Replaced(items=items, unreadable=unreadable):
                    kept = {(key.namespace, key.name) for key in unreadable}
                    listed = kept.union((one.namespace, one.name) for one in items if not self._is_emptied(one))
                    if self._believes("EndpointSlice", self._intake.fold.slice_keys, listed):
                        self._intake.replace_slices(items, kept)
                case Changed(change=ChangeType.DELETED, object=item):
                    self._intake.drop_slice(item.namespace, item.name)
                case Changed(object=item):
                    self._intake.put_slice(item)

    def _is_emptied(self, item: ReadSlice) -> bool:
        """A store that is old, or has no pods yet, has the slice and none of what was in it. A server that has just
        begun is not among its own endpoints for a moment."""
        had = self._intake.fold.slice_of(item.namespace, item.name)
        if had is None or (item.namespace, item.name) == KUBERNETES or not any(one.is_ready for one in had.endpoints):
            return False
        return item.facts is None or not any(one.is_ready for one in item.facts.endpoints)

    async def _follow_node(self) -> None:
        async for one in self._news(self._node, lambda item: item, "Node"):
            match one:
                case Replaced(items=items):
                    if items:
                        self._set_node(items[0])
                    elif self._intake.sight.is_known:
                        self._intake.lose_node()
                case Changed(change=ChangeType.DELETED):
                    self._intake.lose_node()
                case Changed(object=node):
                    self._set_node(node)

    def _set_node(self, node: NodeObject) -> None:
        self._intake.set_node(node)
        self._saw_node(node)

    async def _follow_cidrs(self) -> None:
        known: dict[str, tuple[str, ...]] = {}

        async for one in self._news(SERVICE_CIDRS, lambda item: item, "ServiceCIDR"):
            match one:
                case Replaced(items=items):
                    known = {item.metadata.name: item.spec.cidrs or () for item in items}
                case Changed(change=ChangeType.DELETED, object=item):
                    known.pop(item.metadata.name, None)
                case Changed(object=item):
                    known[item.metadata.name] = item.spec.cidrs or ()
            self._intake.set_service_ranges(text for cidrs in known.values() for text in cidrs)

    async def _follow_labels(self) -> None:
        """All nodes, while some Service asks for their labels; otherwise they are not worth a watch."""
        kept: frozenset[str] = frozenset()
        watch: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            while await self._intake.asks_labels.wait():
                self._intake.asks_labels.clear()
                wanted = frozenset(self._intake.fold.label_uses)
                # A label that fewer ask for does no harm; a new list for each node of the cluster does.
                if wanted <= kept and bool(wanted) == bool(kept):
                    continue
                kept = wanted
                if watch is not None:
                    watch.cancel()
                    watch = None
                if wanted:
                    watch = group.create_task(self._watch_labels(wanted | TOPOLOGY_LABELS), name="watch-node-labels")
                else:
                    self._intake.set_node_labels({})

    async def _watch_labels(self, kept: frozenset[str]) -> None:
        """Nodes change all the time in what nothing here depends on; that goes no further."""
        known: dict[str, Mapping[str, str]] = {}

        def read(item: NodeMetadata) -> tuple[str, Mapping[str, str]]:
            labels = item.metadata.labels or {}
            return item.metadata.name, {name: labels[name] for name in kept & labels.keys()}

        async for one in self._news(NODE_METADATA, read, "Node"):
            match one:
                case Replaced(items=items):
                    known = dict(items)
                case Changed(change=ChangeType.DELETED, object=(name, _)):
                    known.pop(name, None)
                case Changed(object=(name, labels)) if known.get(name) != labels:
                    known[name] = labels
                case _:
                    continue
            self._intake.set_node_labels(dict(known))

    async def _give_up_on_node(self) -> None:
        """Without its Node object the plane starts all the same."""
        await asyncio.sleep(NODE_WAIT_S)
        if "node" in self._intake.missing:
            log.warning("node_object_missing", waited_s=NODE_WAIT_S, effect="no zone, no node ports until it appears")
            self._intake.complete("node")

# SPDX-License-Identifier: Apache-2.0
"""The source of Services on a bare node: the manifest directory, and the pods that run here.

Never: judges objects. Nothing is handed in before the pods plane has looked at what runs, or every restart would take
the endpoints away for a moment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.kit.configuration import write_atomically
from agent.model.clock import Clock
from agent.model.finding import Finding
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.services.service import ServiceKey
from agent.model.text.json_text import decode_json
from agent.objects.admitting import InForce
from agent.objects.wanted import WantedSource
from agent.services.attach.manifests import HintLedger, ServiceObjects, hint_options, services_in
from agent.services.attach.pods import local_pods, selected_pods, slices_of_pods
from agent.services.objects.manifest import Allotted, allot
from agent.services.objects.reading_service import read_service
from agent.services.objects.reading_slice import read_slice
from agent.services.run.intake import ServiceInputs
from agent.services.view.reasons import SelectedPods
from agent.topology.manifest.objects import Document, Manifests, read_manifests

log = structlog.get_logger(plane="services")

ALLOTTED = Path("services", "allotted.json")
SETTLE_S = 0.02
PODS_WAIT_S = 30.0


class PodsHere(Protocol):
    def names(self) -> dict[str, str]: ...
    def pods(self) -> Iterable[tuple[PodSpec, PodState]]: ...
    def changes(self) -> AsyncIterator[object]: ...
    async def looked(self) -> None: ...


class NamesFollower(Protocol):
    """Who tells Services by their names. Hears of each change before the rules do."""

    def offer(
        self, services: Iterable[Service], slices: Iterable[EndpointSlice], pods: Iterable[tuple[str, str]]
    ) -> None: ...


class NoPods:
    def names(self) -> dict[str, str]:
        return {}

    def pods(self) -> Iterable[tuple[PodSpec, PodState]]:
        return ()

    async def changes(self) -> AsyncIterator[object]:
        await asyncio.Event().wait()
        yield None

    async def looked(self) -> None:
        return


class ManifestServices:
    def __init__(
        self,
        configuration: Callable[[], Configuration],
        intake: ServiceInputs,
        here: PodsHere,
        manifests: WantedSource,
        clock: Clock | None = None,
    ) -> None:
        self._configuration, self._manifests = configuration, manifests
        self._clock = clock or SystemClock()
        self._allotted: dict[str, Allotted] | None = None
        self._intake = intake
        self._here = here
        self._made: dict[str, EndpointSlice] = {}
        self._in_force: InForce | None = None
        # What the last look could not read, or refused to.
        self._problems: tuple[Finding, ...] = ()
        self._reloaded = asyncio.Event()
        self._taking = asyncio.Lock()
        self.objects = ServiceObjects()
        self.hints = HintLedger()
        self._names: NamesFollower | None = None
        self._services: list[Service] = []

    def follow_names(self, follower: NamesFollower) -> None:
        """`follower` hears of each change before the rules do."""
        self._names = follower

    def reloaded(self) -> None:
        """The configuration is another one; what the files mean may be too."""
        self._reloaded.set()

    async def run(self) -> None:
        await self._pods_known()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_files(), name="service-files")
            group.create_task(self._follow_settings(), name="service-settings")
            group.create_task(self._follow_pods(), name="service-pods")

    async def _pods_known(self) -> None:
        try:
            async with asyncio.timeout(PODS_WAIT_S):
                await self._here.looked()
        except TimeoutError:
            log.warning(
                "local_pods_unknown", waited_s=PODS_WAIT_S, effect="Services with a selector have no endpoints yet"
            )

    async def _follow_files(self) -> None:
        async for wanted in self._manifests.news():
            snapshot = wanted.look
            if snapshot.is_remembered:
                options = hint_options(self._configuration())
                self.objects = await asyncio.to_thread(services_in, wanted.in_force, options)
                continue
            self._problems = snapshot.problems
            # A file that is refused must not hold up the Services of all others; on a fresh node there is no directory.
            is_fresh = snapshot.is_missing and not self._intake.arrived.is_set()
            if snapshot.doubtful - snapshot.refused and not is_fresh:
                self._intake.complain(self._problems)
                continue
            await self.take(wanted.in_force)
            await self._manifests.settle()

    async def _follow_settings(self) -> None:
        while True:
            await self._reloaded.wait()
            self._reloaded.clear()
            if self._in_force is not None:
                await self.take(self._in_force)

    async def _follow_pods(self) -> None:
        """Changes that come close together cost one look."""
        changed = asyncio.Event()

        async def listen() -> None:
            async for _ in self._here.changes():
                changed.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(listen(), name="service-pods-listen")
            while True:
                await changed.wait()
                await asyncio.sleep(SETTLE_S)
                changed.clear()
                self._choose()

    async def take(self, in_force: InForce) -> None:
        async with self._taking:
            self._in_force = in_force
            options = hint_options(self._configuration())
            self.objects = await asyncio.to_thread(services_in, in_force, options)
            services = await self._allot()
            self._intake.complain((*self._problems, *self.objects.findings))
            self.hints.take(self.objects.hints)
            name = self._configuration().node.name
            own = [one for one in self.objects.nodes if one.metadata.name == name]
            self._intake.set_node(own[0] if own else None)
            self._intake.set_node_labels({one.metadata.name: one.metadata.labels or {} for one in self.objects.nodes})
            self._intake.set_service_ranges(self.objects.service_ranges)
            self._made = self._chosen()
            self._services = services
            self._tell_names()
            self._intake.replace_slices(map(read_slice, (*self.objects.slices, *self._made.values())))
            settings = self._configuration().services
            self._intake.replace_services(
                read_service(one, settings.proxy_name, is_strict=settings.strict_source_ranges) for one in services
            )

    async def _allot(self) -> list[Service]:
        """Written before anything is programmed by it."""
        configuration = self._configuration()
        path = Path(configuration.node.state_directory) / ALLOTTED
        before = self._allotted if self._allotted is not None else await asyncio.to_thread(_read_allotted, path)
        ranges = (*configuration.services.service_cidrs, *self.objects.service_ranges)
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        services, allotted = allot(self.objects.services, ranges, before, now)
        if allotted != before:
            await asyncio.to_thread(write_atomically, path, msgspec.json.encode(allotted))
        self._allotted = allotted
        return services

    def _chosen(self) -> dict[str, EndpointSlice]:
        return slices_of_pods(self.objects.choices, local_pods(self._here.pods()), self._configuration().node.name)

    def as_topology_reads(self, node: str, labels: Mapping[str, str]) -> Manifests:
        """With the slices of pods that run here, and with this node where no manifest has it."""
        known = self.objects.known
        documents = [
            Document("pods of this node", {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **content})
            for content in msgspec.to_builtins(list(self._made.values()))
        ]
        if all(one.name != node for one in known.nodes):
            content = {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": node, "labels": dict(labels)},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }
            documents.append(Document("node.labels of the configuration", content))
        here = read_manifests(documents)
        return msgspec.structs.replace(known, slices=(*known.slices, *here.slices), nodes=(*known.nodes, *here.nodes))

    def chosen_by(self, key: ServiceKey) -> SelectedPods | None:
        """Whom a Service chooses among the pods of this node; None for one that does not choose by labels."""
        choice = next((one for one in self.objects.choices if (one.namespace, one.name) == key), None)
        return selected_pods(choice, self._here.pods()) if choice is not None else None

    def _tell_names(self) -> None:
        """Before the rules change: a name goes before its Service does."""
        if self._names is not None:
            pods = [(one.namespace, one.ip) for one in local_pods(self._here.pods())]
            self._names.offer(self._services, (*self.objects.slices, *self._made.values()), pods)

    def _choose(self) -> None:
        """Only what differs is handed in."""
        before, self._made = self._made, self._chosen()
        self._tell_names()
        for key, one in self._made.items():
            if before.get(key) != one:
                self._intake.put_slice(read_slice(one))
        for key in before.keys() - self._made.keys():
            self._intake.drop_slice(before[key].metadata.namespace, before[key].metadata.name)


def _read_allotted(path: Path) -> dict[str, Allotted]:
    """What an earlier process gave; a file that cannot be read costs ages and, where two names collide, addresses."""
    try:
        return decode_json(path.read_bytes(), dict[str, Allotted])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("service_allotment_lost", file=str(path), error=str(error), effect="addresses are given anew")
        return {}

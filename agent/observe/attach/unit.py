# SPDX-License-Identifier: Apache-2.0
"""Observation put together: figures of containers, the pages that show them, what the kernel killed."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
from prometheus_client.core import Metric

from agent.api.http import Handler, Headers, Page, Query
from agent.api.metrics import FamilyPage
from agent.config.document import Configuration
from agent.config.loopback import is_for_few
from agent.config.sections.telemetry import ContainerFigures
from agent.drivers.file_systems.driver import FileSystems
from agent.drivers.kernel_files.driver import KernelFiles
from agent.drivers.oom_signals.driver import OomSignals
from agent.drivers.state_files.driver import StateFiles
from agent.kit.kubelet_arrival import follow_kubelet, kubelet_beside
from agent.kit.plane import Attached, PlaneInputs, PlaneUnit
from agent.model.component import Report
from agent.model.feed import ChangeKind, Feed, FeedLagged
from agent.model.nodes.file_system import ImagesOnDisk
from agent.model.pods.space import PodSpace
from agent.model.pods.state import PodState
from agent.observe.pages.cadvisor_page import FileSystem
from agent.observe.run.collector import Collector, CollectorSettings
from agent.observe.run.container_registry import OURS, Roster
from agent.observe.run.file_systems import FileSystemAnswers, PlaneWork
from agent.observe.run.observer import Observer
from agent.observe.run.oom_book import OomBook
from agent.observe.run.oom_watch import OomWatch
from agent.observe.run.pages import MadePage, Pages, PageSettings, PageSources
from agent.observe.run.usage import UsageAnswers
from agent.wire.cri import runtime_v1_pb2 as pb

TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
"""As a kubelet reads a question."""


class OwnPods(msgspec.Struct, frozen=True):
    """Of the pods plane, if it runs here."""

    states: Feed[PodState]
    is_wanted: Callable[[str], bool]
    spaces: Callable[[], Awaitable[Sequence[PodSpace]]]
    short_paths: Callable[[], Collection[str]] = tuple
    families_of_probes: Callable[[], Iterable[Metric]] = tuple

    async def changes(self) -> AsyncIterator[PodState]:
        while True:
            with suppress(FeedLagged):
                async for change in self.states.follow():
                    if change.item is not None and change.kind is not ChangeKind.DELETED:
                        yield change.item


class ObservationOffers(msgspec.Struct, frozen=True):
    collector: Collector
    usage: "UsageOfNode"


class UsageOfNode:
    """Who uses how much, for the API; `summary` is the page for metrics servers, as JSON."""

    def __init__(self, answers: UsageAnswers, pages: Pages, node: Callable[[], str]) -> None:
        self.usage, self.watch, self.file_systems = answers.usage, answers.watch, answers.file_systems
        self._answers, self._pages, self._node = answers, pages, node

    async def summary(self, *, is_short: bool) -> bytes:
        return await self._pages.summary(self._answers, self._node(), is_short=is_short)


def serves_pages(configuration: Configuration) -> bool:
    """Pages have names of pods, which are for this node and for clients that show a certificate."""
    page = configuration.telemetry.containers.page
    return is_for_few(configuration.api) if page == "auto" else bool(page)


def attach(
    inputs: PlaneInputs, pods: OwnPods | None, images: Callable[[], Awaitable[Sequence[ImagesOnDisk]]] | None
) -> Attached[ObservationOffers]:
    """`pods` are of the pods plane and `images` of that for images, where they run here."""
    configuration = inputs.configuration

    def figures() -> ContainerFigures:
        return configuration().telemetry.containers

    kubelet = kubelet_beside(configuration(), inputs.environment)

    def wants(sandbox: pb.PodSandbox) -> bool:
        of = figures().of
        return of == "all" or (of == "auto" and not kubelet) or OURS in sandbox.annotations

    files = KernelFiles(most_open=figures().max_files)
    records = StateFiles(Path(configuration().node.state_directory) / "observe")
    roster = Roster(inputs.runtime.cri, files, wants, inputs.clock.now_s)
    collector = Collector(
        roster, files, inputs.clock,
        lambda: CollectorSettings(keep_ended_s=figures().keep_ended, has_pressure=figures().psi),
    )  # fmt: skip
    book = OomBook(roster, records, inputs.tell, pods.is_wanted if pods else lambda _uid: False)
    watch = OomWatch(collector, roster, OomSignals(), inputs.clock, lambda: figures().oom_watch)
    changes = pods.changes() if pods else _nothing()
    observer = Observer(collector, roster, book, inputs.runtime.events, changes, watch)
    pages = Pages(
        collector, book, PageSources(inputs.runtime.cri, files, inputs.clock),
        lambda: _page_settings(figures()), inputs.tell,
        file_system=file_system_of, **({"spaces": pods.spaces} if pods else {}),
    )  # fmt: skip
    state = configuration().node.state_directory
    file_systems = _file_systems(inputs, pods, images)
    answers = UsageAnswers(
        collector, inputs.clock, lambda: configuration().node.name, lambda: used_share(state),
        file_systems.reports, file_systems.look,
    )  # fmt: skip
    usage = UsageOfNode(answers, pages, lambda: configuration().node.name)

    def kubelet_changed(sign: str) -> None:
        nonlocal kubelet
        kubelet, roster.is_stale = sign, True

    async def close() -> None:
        roster.close()
        await asyncio.to_thread(records.close)

    def families() -> Iterator[Metric]:
        yield from pages.metrics.families()
        yield from file_systems.families()

    shown = _shown(pages, usage, pods)
    return Attached(
        offers=ObservationOffers(collector, usage),
        units=(PlaneUnit("observe", partial(_observe, observer, inputs, kubelet_changed)),),
        families=(families,),
        apply=lambda _configuration: watch.due(),
        close=close,
        pages=shown if serves_pages(configuration()) else {},
    )


async def _observe(
    observer: Observer, inputs: PlaneInputs, kubelet_changed: Callable[[str], None], report: Report
) -> None:
    """The planes of images and pods tell of a kubelet that comes or goes."""

    def look() -> str:
        return kubelet_beside(inputs.configuration(), inputs.environment)

    async with asyncio.TaskGroup() as group:
        follow = follow_kubelet(look, inputs.clock, kubelet_changed, lambda _event: None)
        group.create_task(follow, name="observe-kubelet")
        await observer.run(report)


def _shown(pages: Pages, usage: UsageOfNode, pods: OwnPods | None) -> Mapping[str, Handler]:
    return {
        "/metrics/cadvisor": _handler(pages.cadvisor),
        "/metrics/resource": _handler(pages.resource),
        "/stats/summary": _summary(usage),
        "/metrics/probes": FamilyPage(pods.families_of_probes if pods else tuple).page,
    }


def _page_settings(figures: ContainerFigures) -> PageSettings:
    return PageSettings(
        most_series=figures.max_series, space_every_s=figures.space_every, has_descriptors=figures.descriptors
    )


def _file_systems(
    inputs: PlaneInputs, pods: OwnPods | None, images: Callable[[], Awaitable[Sequence[ImagesOnDisk]]] | None
) -> FileSystemAnswers:
    def own_places() -> list[tuple[str, str]]:
        current = inputs.configuration()
        logs = [("logs", current.pods.log_directory)] if current.pods.enabled else []
        node = [("node", current.pods.directory)] if current.pods.enabled else []
        return [("node", current.node.state_directory), *node, *logs, ("root", "/")]

    cri, containerd = inputs.runtime.cri, inputs.runtime.containerd
    work = PlaneWork(
        images=images,
        spaces=pods.spaces if pods else None,
        short_paths=pods.short_paths if pods else tuple,
    )
    return FileSystemAnswers(cri, containerd, FileSystems(), inputs.clock, own_places, work)


async def _nothing() -> AsyncIterator[PodState]:
    """Where no pods plane runs, none of its containers end."""
    await asyncio.Event().wait()
    yield PodState(namespace="", name="", uid="", phase="")


def _handler(make: Callable[[Headers], Awaitable[MadePage]]) -> Handler:
    async def answer(_query: Query, headers: Headers) -> Page:
        made = await make(headers)
        packed = {"Content-Encoding": "gzip"} if made.is_packed else {}
        return Page(200, made.body, made.content_type, packed)

    return answer


def _summary(usage: UsageOfNode) -> Handler:
    async def answer(query: Query, _headers: Headers) -> Page:
        is_short = query.get("only_cpu_and_memory", [""])[-1] in TRUE
        return Page(200, await usage.summary(is_short=is_short), "application/json")

    return answer


def file_system_of(folder: str) -> FileSystem | None:
    """Of a folder that this process cannot see, nothing is known."""
    try:
        found = FileSystems().look(folder)
    except OSError:
        return None
    return FileSystem(found.device, found.size_bytes, found.inodes, found.inodes_free)


def used_share(folder: str) -> float | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return 1 - found.f_bavail / found.f_blocks if found.f_blocks else None

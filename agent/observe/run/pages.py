# SPDX-License-Identifier: Apache-2.0
"""Pages made of samples, in a thread, for as long as it takes they keep nobody waiting."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.pods.space import PodSpace
from agent.model.runtime.error import RuntimeCallFailed
from agent.observe.pages.cadvisor_page import FileSystem, PageBefore, Wishes, fitting_families
from agent.observe.pages.columns import Columns
from agent.observe.pages.exposition import (
    COUNTER,
    OPEN_TYPE,
    TEXT_TYPE,
    RenderedFamily,
    family,
    labels,
    page,
    wants_open,
)
from agent.observe.pages.packing import Packing
from agent.observe.pages.resource_page import resource_families
from agent.observe.pages.summary_page import Around, summary
from agent.observe.ports import Instances, KernelFiles
from agent.observe.run.collector import Collector
from agent.observe.run.descriptors import opened_of
from agent.observe.run.metrics import ObserveMetrics
from agent.observe.run.oom_book import OomBook
from agent.observe.run.usage import UsageAnswers
from agent.observe.sample.node_sample import NodeSample
from agent.observe.sample.ooms import family_rows

log = structlog.get_logger(plane="observe")

DISKS, DISK = "/proc/diskstats", re.compile(r"\s*(\d+)\s+(\d+)\s+(\S+)")
MOST_BYTES = 8 << 20


class PageSettings(msgspec.Struct, frozen=True, kw_only=True):
    most_series: int = 50_000
    space_every_s: float = 60.0
    has_descriptors: bool = False


class MadePage(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str
    is_packed: bool


class PageSources(msgspec.Struct, frozen=True):
    """What a page has beside the sample."""

    instances: Instances
    files: KernelFiles
    clock: Clock


async def _no_spaces() -> Sequence[PodSpace]:
    """Where no pods plane runs."""
    return ()


class Pages:
    """`file_system` looks at the one that a folder lies on, if that can be seen."""

    def __init__(
        self,
        collector: Collector,
        book: OomBook,
        sources: PageSources,
        settings: Callable[[], PageSettings],
        tell: Callable[[Event], None],
        *,
        file_system: Callable[[str], FileSystem | None] = lambda _folder: None,
        spaces: Callable[[], Awaitable[Sequence[PodSpace]]] = _no_spaces,
    ) -> None:
        self._collector = collector
        self._book = book
        self._instances = sources.instances
        self._files = sources.files
        self._clock = sources.clock
        self._settings = settings
        self._tell = tell
        self.metrics = ObserveMetrics()
        self.metrics.errors = collector.errors
        self.metrics.node_kills = lambda: book.of_node
        self.file_system = file_system
        self.spaces = spaces
        self._layers: FileSystem | None = None
        self._spaces: Sequence[PodSpace] = ()
        self._before = PageBefore()
        self._packing = Packing()
        self._space_s: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._left_out: frozenset[str] = frozenset()

    async def cadvisor(self, headers: Mapping[str, str]) -> MadePage:
        is_open = wants_open(headers.get("accept", ""))
        sample = await self._sample()
        self._ask_for_space()
        ooms = list(family_rows(self._book.pods))
        fault = self._collector.fault
        opened = await opened_of(sample, self._files, fault) if self._settings().has_descriptors else None

        def families() -> tuple[list[RenderedFamily], dict[str, int]]:
            wishes = Wishes(
                is_open=is_open, devices=self._devices(), layers=self._layers, spaces=self._spaces, opened=opened
            )
            kept, dropped = fitting_families(sample, wishes, self._settings().most_series, MOST_BYTES, self._before)
            known = self._before.columns
            kept += [_oom_family(ooms, known, is_open=is_open), _restart_family(sample, known, is_open=is_open)]
            return kept, dropped

        # In two turns, between which the loop has its own.
        written, dropped = await asyncio.to_thread(families)
        made = await asyncio.to_thread(_made, written, headers, self._packing, is_open=is_open)
        series = sum(one.series for one in written)
        self.metrics.shown("cadvisor", series, dropped)
        self._tell_dropped(dropped)
        return made

    async def resource(self, headers: Mapping[str, str]) -> MadePage:
        is_open = wants_open(headers.get("accept", ""))
        sample = await self._sample()
        written = await asyncio.to_thread(resource_families, sample, is_open=is_open)
        self.metrics.shown("resource", sum(one.series for one in written), {})
        return await asyncio.to_thread(_made, written, headers, Packing(), is_open=is_open)

    async def _sample(self) -> NodeSample:
        before = self._collector.last
        sample = await self._collector.sample()
        if sample is not before:
            self.metrics.passed(sample.duration_s, sample.files)
        return sample

    async def summary(self, usage: UsageAnswers, node: str, *, is_short: bool) -> bytes:
        """A rate needs two looks, so who asks first waits a second."""
        before, sample = await usage.two()
        self._ask_for_space()
        disks = [] if is_short else await usage.sizes()
        around = Around(node=node, disks=disks, spaces=self._spaces, is_short=is_short)
        return await asyncio.to_thread(lambda: msgspec.json.encode(summary(before, sample, around)))

    def _devices(self) -> dict[str, str]:
        """Names by `major:minor`, as the kernel lists them."""
        try:
            lines = self._files.read(DISKS).decode("ascii", "replace").splitlines()
        except OSError:
            return {}
        found = (DISK.match(line) for line in lines)
        return {f"{one[1]}:{one[2]}": f"/dev/{one[3]}" for one in found if one}

    def _ask_for_space(self) -> None:
        """Outside of the pass, for the runtime takes its time; the page has what was told last."""
        now_s = self._clock.now_s()
        is_due = self._space_s is None or now_s - self._space_s >= self._settings().space_every_s
        if is_due and (self._asking is None or self._asking.done()):
            self._space_s = now_s
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="observe-space")

    async def _ask(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_of_layers())
            group.create_task(self._ask_of_volumes())

    async def _ask_of_volumes(self) -> None:
        self._spaces = await self.spaces()
        self._collector.errors["volumes"] += sum(not one.is_whole for one in self._spaces)

    async def _ask_of_layers(self) -> None:
        try:
            self._collector.layers = await self._instances.writable_layers()
            folder = await self._instances.image_filesystem()
            self._layers = await asyncio.to_thread(self.file_system, folder) if folder else None
        except RuntimeCallFailed as error:
            self._collector.errors["space"] += 1
            log.warning("writable_layers_unknown", error=str(error), v=3)

    def _tell_dropped(self, dropped: Mapping[str, int]) -> None:
        """Once per change."""
        if frozenset(dropped) == self._left_out:
            return
        self._left_out = frozenset(dropped)
        if dropped:
            text = (
                f"/metrics/cadvisor has more than telemetry.containers.maxSeries ({self._settings().most_series}) "
                f"series or 8 MiB; these are left out: {', '.join(sorted(dropped))}"
            )
            self._tell(Event(is_warning=True, reason="SeriesDropped", message=text, plane="observe"))


def _oom_family(
    rows: Iterable[tuple[tuple[str, str, str, str], int]], known: Columns, *, is_open: bool
) -> RenderedFamily:
    samples = [(_labels(*values), count) for values, count in rows]
    text = "Kills for want of memory over the life of a container, restarts included."
    return family("kepd_container_oom_kills_total", COUNTER, text, samples, is_open=is_open, known=known)


def _restart_family(sample: NodeSample, known: Columns, *, is_open: bool) -> RenderedFamily:
    """The runtime counts them as attempts, so they outlive kepd."""
    newest = {
        (pod.namespace, pod.name, one.name): one.attempt
        for pod in sample.pods
        for one in sorted(pod.containers, key=lambda one: one.attempt)
    }
    samples = [(_labels(*place), count) for place, count in newest.items()]
    text = "Restarts of a container of a pod."
    return family("kepd_container_restarts_total", COUNTER, text, samples, is_open=is_open, known=known)


@lru_cache(maxsize=8192)
def _labels(namespace: str, pod: str, container: str, scope: str = "") -> bytes:
    scopes = [("scope", scope)] if scope else []
    return labels([("namespace", namespace), ("pod", pod), ("container", container), *scopes])


def _made(
    families: Iterable[RenderedFamily], headers: Mapping[str, str], packing: Packing, *, is_open: bool
) -> MadePage:
    content_type = OPEN_TYPE if is_open else TEXT_TYPE
    if "gzip" in headers.get("accept-encoding", ""):
        return MadePage(packing.page(families, is_open=is_open), content_type, is_packed=True)
    return MadePage(b"".join(page(families, is_open=is_open)), content_type, is_packed=False)

# SPDX-License-Identifier: Apache-2.0
"""Takes samples of the node when somebody asks, one at a time.

A pass reads in a thread, in slices, between which the event loop has its turn. Who asks within a second of a
pass gets its sample; who asks during one waits for it. Without readers nothing is read at all.
Never: fails for a file. What cannot be read is missing in the sample, is counted, and is logged once.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import compress, count
from operator import ne

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.runtime.error import RuntimeCallFailed
from agent.observe.kernel.group_text import PRESSURES, GroupFigures, read_figures, read_limits
from agent.observe.kernel.hierarchies import read_mounts
from agent.observe.kernel.node_text import Interface, count_processors, read_boot_time, read_interfaces, read_memory
from agent.observe.kernel.numbers import one_of, pairs
from agent.observe.kernel.pressure_text import NOTHING, PressureFigures, read_pressure
from agent.observe.ports import KernelFiles
from agent.observe.run.container_registry import Observed, ObservedPod, Roster
from agent.observe.sample.group_files import without_throttling
from agent.observe.sample.node_sample import (
    ContainerSample,
    NodeFigures,
    NodeSample,
    ParentSample,
    PodSample,
    node_working_set,
)

log = structlog.get_logger(plane="observe")

SHARED_FOR_S = 1.0
GROUPS_AT_ONCE = 25
LIMITS_EVERY_S, WHOLE_EVERY_S = 60.0, 600.0
STILL = 2
NONE = frozenset[str]()
MOUNTS = "/proc/self/mountinfo"
NODE_FILES = ("/proc/meminfo", "/proc/stat", "/proc/vmstat", "/proc/1/net/dev")
NODE_PRESSURES = tuple(f"/proc/pressure/{one}" for one in ("cpu", "memory", "io"))


class CollectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    keep_ended_s: float = 300.0
    has_pressure: bool = True


class Collector:
    """`ooms` answers how often an instance was killed for want of memory; `saw` hears of each pass before its
    sample is made."""

    def __init__(
        self, roster: Roster, files: KernelFiles, clock: Clock, settings: Callable[[], CollectorSettings]
    ) -> None:
        self._roster = roster
        self._files = files
        self._clock = clock
        self._settings = settings
        self._last: NodeSample | None = None
        self._pass: asyncio.Task[NodeSample] | None = None
        # Lists and descriptors are changed by one at a time.
        self._turn = asyncio.Lock()
        self._listed_s: float | None = None
        self._told: set[str] = set()
        self.ooms: Callable[[str], int] = lambda _instance: 0
        self.saw: Callable[[NodeFigures], None] = lambda _node: None
        self.layers: Mapping[str, tuple[int, int]] = {}
        self.errors: Counter[str] = Counter()
        self._turns = count()

    @property
    def last(self) -> NodeSample | None:
        return self._last

    @property
    def memory_root(self) -> str | None:
        """Where version 1 of control groups counts all memory."""
        hierarchies = self._roster.hierarchies
        return hierarchies.folder("memory", "/") if hierarchies.version == 1 else None

    async def sample(self, newest_s: float = SHARED_FOR_S) -> NodeSample:
        """One that is at most so old. A reader that leaves ends no pass that others wait for."""
        last = self._last
        if last is not None and self._clock.now_s() - last.taken_s < newest_s:
            return last
        if self._pass is None or self._pass.done():
            self._pass = asyncio.get_running_loop().create_task(self._take_over(), name="observe-pass")
        return await asyncio.shield(self._pass)

    async def _take_over(self) -> NodeSample:
        async with self._turn:
            self._last = sample = await self._take()
        return sample

    async def look_at_node(self) -> NodeFigures:
        """Of the node alone: a few files, whatever runs on it."""
        async with self._turn:
            await self._find_mounts()
            node, _ = await asyncio.to_thread(self._node)
        return node

    async def know(self) -> None:
        """Which groups there are; asks the runtime if it told of a change, and reads nothing of them."""
        async with self._turn:
            try:
                await self._know(self._settings())
            except OSError as error:
                self.fault("node", error)

    async def look_at(self, instance: str) -> None:
        """At one container alone, as something just happened to it. One that is not known is looked up, but for all
        such the runtime is asked once a second at most: a container that dies again and again costs no more."""
        async with self._turn:
            one = self._roster.find(instance)
            now_s = self._clock.now_s()
            if one is None:
                self._roster.is_stale = True
            if one is None and (self._listed_s is None or now_s - self._listed_s >= SHARED_FOR_S):
                await self._know(self._settings())
                one = self._roster.find(instance)
            if one is not None and one.ended_s is None:
                await asyncio.to_thread(self._read, one, now_s)

    async def _take(self) -> NodeSample:
        began_s, settings = self._clock.now_s(), self._settings()
        await self._know(settings)
        roster = self._roster
        wall_s = self._clock.wall_s()
        waiting = deque(roster.pods.values())
        while waiting:
            await asyncio.to_thread(self._read_some, waiting)
        node, parents = await asyncio.to_thread(self._node)
        self.saw(node)
        return NodeSample(
            taken_s=began_s,
            wall_s=wall_s,
            duration_s=self._clock.now_s() - began_s,
            files=self._files.kept,
            version=roster.hierarchies.version,
            node=node,
            pods=tuple(self._pod(pod) for pod in roster.pods.values()),
            parents=parents,
        )

    async def _know(self, settings: CollectorSettings) -> None:
        roster = self._roster
        roster.has_pressure = settings.has_pressure
        await self._find_mounts()
        if roster.is_stale:
            self._listed_s = self._clock.now_s()
            try:
                await roster.look(settings.keep_ended_s)
            except RuntimeCallFailed as error:
                self.fault("runtime", error)

    async def _find_mounts(self) -> None:
        if not self._roster.hierarchies.mounts:
            text = await asyncio.to_thread(self._files.read, MOUNTS)
            self._roster.hierarchies = read_mounts(text.decode("utf-8", "replace"))

    def fault(self, source: str, error: Exception) -> None:
        """Counted, and logged once."""
        self.errors[source] += 1
        if source not in self._told:
            self._told.add(source)
            log.warning("figures_unreadable", source=source, error=str(error))

    def _read_some(self, waiting: deque[ObservedPod]) -> None:
        """As many groups as may be read at once; one pod may have more."""
        now_s, read = self._clock.now_s(), 0
        while waiting and (not read or read + len(waiting[0].living) + 1 <= GROUPS_AT_ONCE):
            pod = waiting.popleft()
            read += self._read_pod(pod, now_s)
            pod.interfaces = () if pod.hold is None or pod.is_on_host_network else self._interfaces(pod.hold)

    def _read_pod(self, pod: ObservedPod, now_s: float) -> int:
        """What containers do the kernel counts for their pod as well, so below a pod at rest nothing is read. A pod
        is at rest when nothing of it changed and nothing waits; what is in it must have been found still before.
        Answers how many groups were read."""
        groups, calm = pod.living, NONE
        if pod.own is not None:
            before = pod.own.figures
            self._read(pod.own, now_s)
            if _is_at_rest(pod.own):
                groups = [one for one in groups if not self._is_still(one, now_s)]
            elif not self._roster.is_stale:
                calm = _calm(before, pod.own.figures)
        for one in groups:
            self._read(one, now_s, calm)
        return len(groups) + 1

    def _is_still(self, one: Observed, now_s: float) -> bool:
        """Whether its figures are those of before, if its pod is at rest."""
        if one.still <= STILL or not one.is_whole or _is_whole_due(one, now_s):
            return False
        if now_s - one.limits_read_s >= LIMITS_EVERY_S:
            self._read_limits(one, now_s, is_whole=False)
        return bool(one.texts)

    def _read(self, one: Observed, now_s: float, calm: frozenset[str] = NONE) -> None:
        """`calm` are files that say what they said."""
        is_whole = _is_whole_due(one, now_s)
        if is_whole or now_s - one.limits_read_s >= LIMITS_EVERY_S:
            self._read_limits(one, now_s, is_whole=is_whole)
        if is_whole:
            # All groups that are found in one pass would be due together ever after.
            turn = next(self._turns) if one.whole_s is None else 0
            one.limits_read_s, one.whole_s = now_s - turn % LIMITS_EVERY_S, now_s - turn % WHOLE_EVERY_S
        texts, faults = self._texts(one, NONE if is_whole else calm, is_whole=is_whole)
        for error in faults:
            self.fault("group", error)
        one.is_whole = not faults
        is_empty = all(text is None for text in texts)
        one.is_gone = is_empty and not faults
        if is_empty:
            # Its last figures stay until the runtime's list says that it is gone.
            self._roster.is_stale = True
        elif texts != one.texts:
            one.figures, one.seen_s = self._changed(one, texts), now_s
            one.texts, one.same = texts, 0
        else:
            one.same, one.seen_s = one.same + 1, now_s

    def _changed(self, one: Observed, texts: list[bytes | None]) -> GroupFigures:
        names, version = one.files.names, self._roster.hierarchies.version
        found = dict(zip(names, texts, strict=True))
        if len(one.texts) != len(texts):
            return read_figures(version, found, one.limits)
        return read_figures(version, found, one.limits, one.figures, compress(names, map(ne, texts, one.texts)))

    def _texts(
        self, one: Observed, calm: frozenset[str], *, is_whole: bool
    ) -> tuple[list[bytes | None], list[OSError]]:
        """Of a group that does nothing only its signs are read, and what changes by waiting. The kernel brings some
        figures up to date a little later than it counts what was done, so that is believed at the second look."""
        files, before = one.files, one.texts
        few = files.signs + files.always
        texts, faults = self._first_texts(one, few, calm)
        is_still = files.signs > 0 and len(before) == len(files.paths) and texts[: files.signs] == before[: files.signs]
        one.still = one.still + 1 if is_still else 0
        if one.still > STILL and one.is_whole and not is_whole:
            return [*texts, *before[few:]], faults
        rest, further = self._files.read_all(files.paths[few:])
        return [*texts, *rest], [*faults, *further]

    def _first_texts(self, one: Observed, few: int, calm: frozenset[str]) -> tuple[list[bytes | None], list[OSError]]:
        if not calm or not one.is_whole or len(one.texts) != len(one.files.paths):
            return self._files.read_all(one.files.paths[:few])
        is_read = [name not in calm for name in one.files.names[:few]]
        found, faults = self._files.read_all(list(compress(one.files.paths, is_read)))
        new = iter(found)
        return [next(new) if is_new else text for is_new, text in zip(is_read, one.texts, strict=False)], faults

    def _read_limits(self, one: Observed, now_s: float, *, is_whole: bool) -> None:
        """Some of them say whether any changed; descriptors of the others are not worth keeping."""
        files, version = one.limit_files, self._roster.hierarchies.version
        one.limits_read_s = now_s
        texts, faults = self._files.read_all(files.paths[: files.signs])
        if is_whole or texts != one.limit_texts[: files.signs]:
            others = files.paths[files.signs :]
            rest, further = self._files.read_all(others)
            self._files.forget(others)
            texts, faults = [*texts, *rest], [*faults, *further]
        for error in faults:
            self.fault("group", error)
        if len(texts) < len(files.paths):
            return
        one.limit_texts = texts
        limits = read_limits(version, dict(zip(one.limit_files.names, texts, strict=True)))
        if limits == one.limits:
            return
        one.limits, one.texts = limits, []
        if version == 1:
            self._files.forget(one.files.paths)
            one.files = one.every_file if limits.quota_us is not None else without_throttling(one.every_file)

    def _interfaces(self, hold: int) -> tuple[Interface, ...]:
        """Of a pod with a network of its own."""
        try:
            return read_interfaces(self._files.read_of_process(hold, "net/dev") or b"")
        except OSError as error:
            self.fault("network", error)
            return ()

    def _node(self) -> tuple[NodeFigures, tuple[ParentSample, ...]]:
        hierarchies = self._roster.hierarchies
        root = self._figures(self._roster.root())
        texts, faults = self._files.read_all((*NODE_FILES, *NODE_PRESSURES))
        for error in faults:
            self.fault("node", error)
        memory_text, processors, kills, network, *pressures = texts
        memory = read_memory(memory_text or b"")
        cpu, of_memory, io = (_pressure(text) for text in pressures)
        node = NodeFigures(
            figures=root,
            memory=memory,
            interfaces=read_interfaces(network or b""),
            processors=count_processors(processors or b""),
            cpu_pressure=cpu,
            memory_pressure=of_memory,
            io_pressure=io,
            working_set=node_working_set(memory, root, hierarchies.version),
            oom_kills=one_of(pairs(kills or b""), b"oom_kill"),
            booted_at_s=read_boot_time(processors or b""),
        )
        parents = (ParentSample(shown, self._figures(one)) for shown, one in self._roster.parents.items())
        return node, tuple(parents)

    def _figures(self, one: Observed) -> GroupFigures:
        files, of_limits, version = one.files, one.limit_files, self._roster.hierarchies.version
        texts, faults = self._files.read_all((*files.paths, *of_limits.paths))
        for error in faults:
            self.fault("group", error)
        found = dict(zip((*files.names, *of_limits.names), texts, strict=True))
        return read_figures(version, found, read_limits(version, found))

    def _pod(self, pod: ObservedPod) -> PodSample:
        own = pod.own
        return PodSample(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            sandbox=self._container(pod.sandbox),
            group=own.group if own is not None else "",
            figures=own.figures if own is not None else None,
            interfaces=pod.interfaces,
            containers=tuple(self._containers(pod)),
            is_ours=pod.is_ours,
            created_at_s=pod.created_at_s,
        )

    def _containers(self, pod: ObservedPod) -> Iterator[ContainerSample]:
        for one in pod.containers.values():
            yield self._container(one)

    def _container(self, one: Observed) -> ContainerSample:
        layer = self.layers.get(one.id)
        return ContainerSample(
            id=one.id,
            name=one.name,
            image=one.image,
            group=one.group,
            started_at_s=one.started_at_s,
            figures=one.figures,
            ooms=self.ooms(one.id),
            ended_s=one.ended_s,
            layer_bytes=layer[0] if layer else None,
            layer_inodes=layer[1] if layer else None,
            is_whole=one.is_whole,
            attempt=one.attempt,
            files=one.files,
            contents=one.texts,
        )


def _is_whole_due(one: Observed, now_s: float) -> bool:
    return one.whole_s is None or now_s - one.whole_s >= WHOLE_EVERY_S


def _is_at_rest(pod: Observed) -> bool:
    """Averages of the past shrink while nothing happens, in a container as in its pod."""
    figures = pod.figures
    waits = (figures.cpu_pressure, figures.memory_pressure, figures.io_pressure)
    return pod.same > STILL and pod.is_whole and not any(one.waiting_avg10 for one in waits)


def _calm(before: GroupFigures, now: GroupFigures) -> frozenset[str]:
    """Who waits in a container waits in its pod as well, so these files of a pod's containers are what they were."""
    fields = {name: name.replace(".", "_") for name in PRESSURES}
    same = {name for name, field in fields.items() if getattr(now, field) is getattr(before, field)}
    return frozenset(name for name in same if getattr(now, fields[name]).waiting_avg10 == 0)


def _pressure(text: bytes | None) -> PressureFigures:
    return read_pressure(text) if text else NOTHING

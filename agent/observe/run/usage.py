# SPDX-License-Identifier: Apache-2.0
"""Answers who uses how much now. A rate needs two looks, so a first question waits a second."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from agent.model.clock import Clock
from agent.model.nodes.file_system import FileSystemReport
from agent.model.nodes.usage_report import UsageReport
from agent.observe.run.collector import Collector
from agent.observe.sample.node_sample import NodeSample
from agent.observe.view.usage import usage_report

LEAST_WINDOW_S, MOST_WINDOW_S = 1.0, 30.0


async def _none(*, with_use: bool = False) -> Sequence[FileSystemReport]:
    del with_use
    return ()


class UsageAnswers:
    """`disk_share` is how much of the daemon's file system is used."""

    def __init__(
        self,
        collector: Collector,
        clock: Clock,
        node: Callable[[], str],
        disk_share: Callable[[], float | None],
        disks: Callable[..., Awaitable[Sequence[FileSystemReport]]] = _none,
        sizes: Callable[[], Awaitable[Sequence[FileSystemReport]]] = _none,
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._node = node
        self._disk_share = disk_share
        self.disks = disks
        self.sizes = sizes
        self._pair: tuple[NodeSample, NodeSample] | None = None

    async def usage(self, *, with_readings: bool = False) -> UsageReport:
        before, sample = await self.two()
        return usage_report(before, sample, self._node(), disk_share=self._disk_share(), with_readings=with_readings)

    async def two(self) -> tuple[NodeSample, NodeSample]:
        """The last sample, and one before it from whoever asked last, if that is neither too old nor too new."""
        sample = await self._collector.sample()
        pair = self._pair
        if pair is not None and sample is pair[1]:
            return pair
        if pair is None or not LEAST_WINDOW_S <= sample.taken_s - pair[1].taken_s <= MOST_WINDOW_S:
            await self._clock.sleep(LEAST_WINDOW_S)
            pair = (sample, await self._collector.sample())
        else:
            pair = (pair[1], sample)
        self._pair = pair
        return pair

    async def file_systems(self, *, with_use: bool = False) -> Sequence[FileSystemReport]:
        return await self.disks(with_use=with_use)

    async def watch(self, interval_s: float) -> AsyncIterator[UsageReport]:
        """One at once, then one each interval, with the rates of that interval."""
        yield await self.usage()
        before = await self._collector.sample()
        while True:
            await self._clock.sleep(interval_s)
            sample = await self._collector.sample()
            yield usage_report(before, sample, self._node(), disk_share=self._disk_share())
            before = sample

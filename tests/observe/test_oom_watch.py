# SPDX-License-Identifier: Apache-2.0
"""Counters are read at the kernel's signal, and what they say is counted (OOM-03)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.observe.run.oom_watch import OomWatch
from tests.observe.test_collector import Observed, oom


class Signals:
    """A kernel that wakes whom the test names."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.is_closed = False
        self._names: set[str] = set()
        self._rings = asyncio.Event()

    def keep(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)

    def wake(self, name: str) -> None:
        self._names.add(name)
        self._rings.set()

    async def woken(self) -> frozenset[str]:
        await self._rings.wait()
        self._rings.clear()
        found, self._names = frozenset(self._names), set()
        return found

    def close(self) -> None:
        self.is_closed = True


class Watching:
    def __init__(self, observed: Observed) -> None:
        self.observed, self.signals, self.is_on, self.changes = observed, Signals(), True, 0
        self.watch = OomWatch(
            observed.collector, observed.roster, self.signals, observed.clock, lambda: self.is_on
        )  # fmt: skip

    def _changed(self) -> None:
        self.changes += 1

    @asynccontextmanager
    async def up(self) -> AsyncIterator["Watching"]:
        task = asyncio.create_task(self.watch.run(self.observed.book, self._changed))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def until(self, is_true: Callable[[], bool]) -> None:
        """However often the clock has to move for it."""
        async with asyncio.timeout(30):
            while not is_true():
                await asyncio.sleep(0.001)

    def count(self, instance: str = "c-web-main-0") -> int:
        return self.observed.book.count(instance)


@pytest.fixture(params=[1, 2])
def watching(tmp_path: Path, request: pytest.FixtureRequest) -> Watching:
    observed = Observed(tmp_path, request.param)
    observed.runtime.add_pod("web", ("main", "side"))
    oom(observed, "c-web-main-0", 0)
    return Watching(observed)


async def test_a_signal_brings_a_look_and_its_count_is_an_event(watching: Watching) -> None:
    """OOM-03: with nobody who reads; with version 1 the counter moves after the signal."""
    observed = watching.observed
    is_legacy = observed.tree.version == 1
    async with watching.up():
        await watching.until(lambda: len(watching.signals.files) == 2)
        path = watching.signals.files["c-web-main-0"]
        assert path.endswith("/c-web-main-0/memory.oom_control" if is_legacy else "/c-web-main-0/memory.events")
        if not is_legacy:
            oom(observed, "c-web-main-0", 1)
        watching.signals.wake("c-web-main-0")
        if is_legacy:
            for _ in range(3):
                await observed.clock.advance(0.01)
            assert watching.count() == 0
            oom(observed, "c-web-main-0", 1)
            await observed.clock.advance(0.1)
        await watching.until(lambda: watching.count() == 1)
        await observed.clock.advance(2)
        sample = await observed.collector.sample()

    assert sample.pods[0].containers[0].ooms == 1
    assert watching.changes == 1
    assert [one.message.rpartition(", ")[2] for one in observed.events] == ["the container goes on"]
    assert watching.signals.is_closed


@pytest.mark.parametrize("is_gone", [False, True])
async def test_that_a_container_is_over_is_told_though_its_end_was_not_heard_of_yet(
    watching: Watching, is_gone: bool
) -> None:
    """OOM-08: the kernel counts a kill a moment before the process is gone, and the runtime takes its group away."""
    observed = watching.observed
    async with watching.up():
        await watching.until(lambda: len(watching.signals.files) == 2)
        oom(observed, "c-web-main-0", 1)
        watching.signals.wake("c-web-main-0")
        for _ in range(5):
            await observed.clock.advance(0.01)
        await watching.until(lambda: watching.count() == 1)
        said_at_once = list(observed.events)
        observed.tree.group("/kepd/pod-web/c-web-main-0", cgroup_procs=b"")
        if is_gone:
            for path in observed.tree.root.rglob("c-web-main-0/*"):
                path.unlink()
        async with asyncio.timeout(30):
            while not observed.events:
                await observed.clock.advance(0.1)

    assert said_at_once == []
    assert [one.message.rpartition(", ")[2] for one in observed.events] == ["the container ended"]


async def test_the_end_of_a_group_is_no_kill(watching: Watching) -> None:
    """OOM-03: version 1 wakes for it as well, and what is read then is gone."""
    observed = watching.observed
    async with watching.up():
        await watching.until(lambda: len(watching.signals.files) == 2)
        folder = observed.tree.root / watching.signals.files["c-web-main-0"].lstrip("/")
        for path in folder.parent.iterdir():
            path.unlink()
        watching.signals.wake("c-web-main-0")
        for _ in range(5):
            await observed.clock.advance(0.5)
        observed.runtime.end("c-web-main-0")
        observed.changed()
        watching.watch.due()
        await observed.clock.advance(1)
        await watching.until(lambda: set(watching.signals.files) == {"c-web-side-0"})

    assert watching.count() == 0
    assert observed.events == []


async def test_signals_during_a_look_bring_another_and_no_more(watching: Watching) -> None:
    """OOM-03: a container that is always at its limit costs a look a second."""
    observed = watching.observed
    async with watching.up():
        await watching.until(lambda: len(watching.signals.files) == 2)
        for number in range(1, 4):
            watching.signals.wake("c-web-main-0")
            await asyncio.sleep(0)
            oom(observed, "c-web-main-0", number)
        asked = observed.files.asked
        for _ in range(40):
            await observed.clock.advance(0.1)
        await watching.until(lambda: watching.count() == 3)
        assert observed.files.asked - asked < 200
        async with asyncio.timeout(30):
            while watching.watch._looking:
                await observed.clock.advance(0.1)


async def test_it_can_be_switched_off_and_on_while_it_runs(watching: Watching) -> None:
    observed = watching.observed
    async with watching.up():
        await watching.until(lambda: len(watching.signals.files) == 2)
        watching.is_on = False
        watching.watch.due()
        oom(observed, "c-web-main-0", 1)
        watching.signals.wake("c-web-main-0")
        await observed.clock.advance(1)
        await watching.until(lambda: watching.signals.files == {})
        await observed.clock.advance(2)
        assert watching.count() == 0
        watching.is_on = True
        watching.watch.due()
        await observed.clock.advance(1)
        await watching.until(lambda: len(watching.signals.files) == 2)


async def test_a_runtime_that_is_away_is_asked_again_at_the_next_change(watching: Watching) -> None:
    observed = watching.observed
    observed.runtime.is_away = True
    async with watching.up():
        await watching.until(lambda: bool(observed.collector.errors))
        assert watching.signals.files == {}
        observed.runtime.is_away = False
        watching.watch.due()
        await observed.clock.advance(1)
        await watching.until(lambda: len(watching.signals.files) == 2)

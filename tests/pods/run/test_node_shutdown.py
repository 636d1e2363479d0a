# SPDX-License-Identifier: Apache-2.0
"""The node goes down: pods are refused, end in their order, and only then nobody holds the shutdown up."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.model.component import Board, State
from agent.model.nodes.drain import NodeDrain
from agent.objects.run.writer import take_out
from agent.pods.plan.drain import Group, ShutdownRules
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer, NodeShutdown
from tests.fake_logind import FakeLogind
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import DISKS, Plane, Slow, manifest, running

GROUPS = (Group(priority=0, period_s=20), Group(priority=100, period_s=10))
SHUTDOWN_TEXT = "Pod was terminated in response to imminent node shutdown."


@pytest.fixture
def cri() -> Slow:
    return Slow()


@pytest.fixture
def logind() -> FakeLogind:
    return FakeLogind(longest_s=60)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.pods.plan.restart.FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr("agent.pods.run.draining.POLL_S", 0.01)


@dataclass
class Node:
    """A plane whose node may go down."""

    plane: Plane
    shutdown: NodeShutdown
    logind: FakeLogind
    rules: list[ShutdownRules] = field(default_factory=list)
    board: Board = field(default_factory=lambda: Board(lambda: 0.0))

    @property
    def message(self) -> str:
        return self.board.line("node-shutdown").message

    @property
    def state(self) -> State:
        return self.board.line("node-shutdown").state

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        await self.plane.until(condition, what)

    def reasons(self) -> dict[str, tuple[str, str]]:
        return {pod.name: (pod.phase, pod.reason) for pod in self.plane.runner.pods.items.values()}


@asynccontextmanager
async def node(
    cri: Any, given: FakeManifestDirectory, logs: Path, logind: FakeLogind, *groups: Group
) -> AsyncIterator[Node]:
    async with running(cri, given, logs) as plane:
        wanted = [ShutdownRules(groups=groups or GROUPS)]
        context = plane.runner._context
        shutdown = NodeShutdown(plane.runner, Drainer(plane.runner, context), logind, context.clock, lambda: wanted[0])
        made = Node(plane, shutdown, logind, wanted)
        report = made.board.add("node-shutdown", State.STARTING)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(shutdown.run(report))
            try:
                yield made
            finally:
                task.cancel()


def prioritised(name: str, priority: int, grace_s: int = 30) -> bytes:
    return manifest(name, "i", grace_s=grace_s).replace(b"spec:\n", f"spec:\n  priority: {priority}\n".encode())


async def test_pods_end_group_by_group_and_then_the_node_may_go(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    """NSD-01 to NSD-03."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0), "/m/b.yaml": prioritised("db", 100)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running", db="Running")
        await made.until(lambda: logind.is_locked, "the lock")
        assert (made.state, made.message) == (State.READY, "delays a shutdown by up to 34 s")
        cri.may_stop.clear()
        logind.announce(is_preparing=True)
        await made.until(lambda: cri.stops == [("a", 20)], "the first group ends, within its time")
        given.put("/m/c.yaml", manifest("late"))
        await made.until(lambda: made.reasons().get("late-n") == ("Failed", "NodeShutdown"), "new pods are refused")
        assert logind.is_locked
        cri.may_stop.set()
        await made.until(lambda: not logind.is_locked, "the lock goes")

        assert cri.stops == [("a", 20), ("a", 10)]
        assert made.reasons() == {
            "batch-n": ("Failed", "Terminated"),
            "db-n": ("Failed", "Terminated"),
            "late-n": ("Failed", "NodeShutdown"),
        }
        shown = made.plane.pod("db-n")
        told = {one.message for one in made.plane.events if one.reason == "NodeShutdown"}

    assert shown.message == SHUTDOWN_TEXT
    assert [(one.type, one.reason) for one in shown.conditions if one.type == "DisruptionTarget"] == [
        ("DisruptionTarget", "TerminationByKubelet")
    ]
    assert told == {"Pod was rejected as the node is shutting down."}


async def test_a_shutdown_that_is_called_off_takes_pods_again(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    """NSD-03: the next shutdown is delayed as well."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0), "/m/b.yaml": prioritised("db", 100)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running", db="Running")
        await made.until(lambda: logind.is_locked, "the lock")
        cri.may_stop.clear()
        logind.announce(is_preparing=True)
        await made.until(lambda: cri.stopping == {"a"}, "the first group ends")
        given.put("/m/c.yaml", manifest("late"))
        await made.until(lambda: "late-n" in made.reasons(), "it is refused")
        logind.announce(is_preparing=False)
        await made.until(lambda: made.reasons()["late-n"] == ("Running", ""), "and runs now")
        cri.may_stop.set()
        await made.until(lambda: made.reasons()["batch-n"] == ("Failed", "Terminated"), "what began to end has ended")

        assert made.reasons()["db-n"] == ("Running", "")
        assert logind.is_locked


async def test_a_refused_pod_whose_manifest_goes_is_shown_no_more(
    cri: Slow, logind: FakeLogind, tmp_path: Path
) -> None:
    given = FakeManifestDirectory({})
    async with node(cri, given, tmp_path, logind) as made:
        await made.until(lambda: logind.is_locked, "the lock")
        logind.announce(is_preparing=True)
        await made.until(lambda: not logind.is_locked, "nothing was to be ended")
        given.put("/m/c.yaml", manifest("late"))
        await made.until(lambda: "late-n" in made.reasons(), "it is refused")
        given.put("/m/c.yaml", None)
        await made.until(lambda: not made.reasons(), "it is gone")


async def test_a_pod_that_ends_already_has_to_hurry(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    """TRM-22: its budget is what is left of both."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0, grace_s=500)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running")
        await made.until(lambda: logind.is_locked, "the lock")
        cri.may_stop.clear()
        given.put("/m/a.yaml", None)
        await made.until(lambda: cri.stops == [("a", 500)], "it ends")
        run = made.plane.runner.keeper("default", "batch-n").run  # type: ignore[union-attr]
        logind.announce(is_preparing=True)
        await made.until(lambda: run.memory.stop.deadline_s - run.memory.stop.began_s < 100, "it has to hurry")
        cri.may_stop.set()
        await made.until(lambda: not logind.is_locked, "the lock goes")

        assert made.reasons() == {}


async def test_without_groups_nobody_is_asked_to_wait(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    """NSD-01: a reload switches it on and off."""
    given = FakeManifestDirectory({})
    async with node(cri, given, tmp_path, logind) as made:
        await made.until(lambda: logind.is_locked, "the lock")
        made.rules[0] = ShutdownRules()
        made.shutdown.settings_changed()
        await made.until(lambda: made.message == "off: pods.shutdown has neither groups nor a longest delay", "off")
        assert not logind.is_locked
        made.rules[0] = ShutdownRules(groups=GROUPS)
        made.shutdown.settings_changed()
        await made.until(lambda: logind.is_locked, "on")


async def test_a_delay_that_is_too_short_is_raised(cri: Slow, tmp_path: Path) -> None:
    """NSD-01."""
    logind = FakeLogind(longest_s=5)
    async with node(cri, FakeManifestDirectory({}), tmp_path, logind) as made:
        await made.until(lambda: logind.is_locked, "the lock")

        assert await logind.longest_delay_s() == 34, "the sum, and room for the kill of each group (FP-31)"
        assert await made.shutdown.advice() == ()


async def test_a_delay_that_stays_too_short_is_told(cri: Slow, tmp_path: Path) -> None:
    """The shutdown is delayed as long as it may be."""
    logind = FakeLogind(longest_s=5)
    logind.may_lengthen = False
    async with node(cri, FakeManifestDirectory({}), tmp_path, logind) as made:
        await made.until(lambda: logind.is_locked, "the lock")
        (advice,) = await made.shutdown.advice()

    assert made.message == "delays a shutdown by at most 5 s, but 34 s are needed"
    assert (advice.subject, advice.found, advice.wanted) == ("logind InhibitDelayMaxSec", "5", "34")
    assert "a shutdown kills what has not ended after 5 s, but pods.shutdown wants 34 s" in advice.text
    assert "Read-only file system" in advice.text


async def test_without_a_word_pods_have_their_own_graces(cri: Slow, tmp_path: Path) -> None:
    """FP-22: on by default, with a stated bound; where systemd does not run the machine it is silently off."""
    logind = FakeLogind(longest_s=5)
    given = FakeManifestDirectory({"/m/low.yaml": prioritised("low", 0, 7), "/m/high.yaml": prioritised("high", 9, 8)})
    async with node(cri, given, tmp_path, logind) as made:
        made.rules[0] = ShutdownRules(longest_s=120)
        made.shutdown.settings_changed()
        await made.plane.until_phases(low="Running", high="Running")
        await made.until(lambda: made.message == "delays a shutdown by up to 120 s", "the longest delay")
        logind.announce(is_preparing=True)
        await made.until(lambda: not logind.is_locked, "the lock goes")
        assert made.reasons() == {"low-n": ("Failed", "Terminated"), "high-n": ("Failed", "Terminated")}
        logind.reachable = False
        made.shutdown.settings_changed()
        await made.until(lambda: made.message == "off: this node has no systemd", "off")
        assert made.state is State.READY

    assert cri.stops == [("a", 7), ("a", 8)]


async def test_who_cannot_reach_logind_says_so_and_tries_again(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    logind.reachable = False
    async with node(cri, FakeManifestDirectory({}), tmp_path, logind) as made:
        await made.until(lambda: made.state is State.DEGRADED, "told")
        assert "no connection to the system bus" in made.message
        assert "ends pods without their order and grace" in (await made.shutdown.advice())[0].text
        logind.reachable = True
        await made.until(lambda: logind.is_locked and made.state is State.READY, "well again")
        logind.restart()
        await made.until(lambda: logind.is_locked, "a logind that was started anew has our lock again")

        assert logind.locks_taken == 2


async def test_a_kepd_that_starts_during_a_shutdown_goes_on_with_it(
    cri: Slow, logind: FakeLogind, tmp_path: Path
) -> None:
    """TRM-31: what has ended stays so, the rest follows."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0), "/m/b.yaml": prioritised("db", 100)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running", db="Running")
        await made.until(lambda: logind.is_locked, "the lock")
        cri.may_stop.clear()
        logind.announce(is_preparing=True)
        await made.until(lambda: cri.stopping == {"a"}, "the first group ends")
    cri.may_stop.set()
    async with node(cri, given, tmp_path, logind) as made:
        await made.until(
            lambda: made.reasons() == {"batch-n": ("Failed", "Terminated"), "db-n": ("Failed", "Terminated")}, "all"
        )


async def test_an_end_without_announcement_ends_pods_in_order_before_kepd(
    cri: Slow, logind: FakeLogind, tmp_path: Path
) -> None:
    """FP-31: systemd stops units whose scopes come after kepd."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0), "/m/b.yaml": prioritised("db", 100)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running", db="Running")
        await made.shutdown.before_end()
        assert cri.stops == [], "an end of kepd alone is none of the node"
        logind.is_stopping = True
        await made.shutdown.before_end()

        assert cri.stops == [("a", 20), ("a", 10)]
        assert made.shutdown.longest_s() == 34


async def test_an_end_of_kepd_waits_for_the_drain_that_is_under_way(
    cri: Slow, logind: FakeLogind, tmp_path: Path
) -> None:
    """FP-31: where logind does not wait until it is over."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running")
        await made.until(lambda: logind.is_locked, "the lock")
        cri.may_stop.clear()
        logind.announce(is_preparing=True)
        await made.until(lambda: cri.stopping == {"a"}, "it ends")
        waiting = asyncio.ensure_future(made.shutdown.before_end())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        cri.may_stop.set()
        await waiting

        assert made.reasons() == {"batch-n": ("Failed", "Terminated")}
        assert len(cri.stops) == 1


async def test_where_systemd_does_not_answer_kepd_ends_as_ever(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0)})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running")
        logind.reachable = False
        await made.shutdown.before_end()

        assert cri.stops == []


async def test_after_the_reboot_pods_run_again(cri: Slow, logind: FakeLogind, tmp_path: Path) -> None:
    """ADO-05: but for those that shall run once."""
    once = prioritised("once", 0).replace(b"spec:\n", b"spec:\n  restartPolicy: Never\n")
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0), "/m/b.yaml": once})
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running", once="Running")
        await made.until(lambda: logind.is_locked, "the lock")
        logind.announce(is_preparing=True)
        await made.until(lambda: not logind.is_locked, "down")
    files = DISKS[tmp_path].files
    for name, content in files.items():
        files[name] = content.replace(b'"boot_id":"boot"', b'"boot_id":"the one before"')
    logind.is_preparing = False
    async with node(cri, given, tmp_path, logind) as made:
        await made.plane.until_phases(batch="Running", once="Failed")


async def test_a_drain_goes_on_when_nobody_waits_for_it_any_longer(
    cri: Slow, logind: FakeLogind, tmp_path: Path
) -> None:
    """NSD-02 by hand: kepctl gives up after some time, the pods of the second group end all the same."""
    given = FakeManifestDirectory({"/m/a.yaml": prioritised("batch", 0), "/m/b.yaml": prioritised("db", 100)})
    async with node(cri, given, tmp_path, logind) as made:
        runner = made.plane.runner
        commands = PodCommands(runner, Drainer(runner, runner._context), runner._context, take_out)
        await made.plane.until_phases(batch="Running", db="Running")
        cri.may_stop.clear()
        impatient = asyncio.ensure_future(commands.drain(NodeDrain(by="root (uid 0)", began_at_s=0.0)))
        await made.until(lambda: cri.stopping == {"a"}, "the first group ends")
        impatient.cancel()
        again = asyncio.ensure_future(commands.drain(NodeDrain(by="root (uid 0)", began_at_s=0.0)))
        cri.may_stop.set()

        assert await again == (["default/batch-n", "default/db-n"], ())
        assert made.reasons() == {"batch-n": ("Failed", "Terminated"), "db-n": ("Failed", "Terminated")}

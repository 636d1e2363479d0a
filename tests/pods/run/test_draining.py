# SPDX-License-Identifier: Apache-2.0
"""A drained node says so, takes no pods, and has a way back (FP-25)."""

import asyncio
from pathlib import Path

import pytest

from agent.model.nodes.drain import NodeDrain
from agent.model.refused import Refused
from agent.objects.run.writer import take_out
from agent.pods.plan.drain import Group
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import DISKS, Plane, Slow, manifest, running

ROOT = "root (uid 0)"
ASKED = NodeDrain(by=ROOT, began_at_s=0.0)


def commands_of(plane: Plane) -> PodCommands:
    context = plane.runner._context
    return PodCommands(plane.runner, Drainer(plane.runner, context), context, take_out)


async def admitted(plane: Plane, groups: tuple[Group, ...]) -> list[str]:
    drainer = Drainer(plane.runner, plane.runner._context)
    await drainer.admit(ASKED)
    return await drainer.drain("drain", groups)


def once(name: str) -> bytes:
    return manifest(name, "i").replace(b"spec:\n", b"spec:\n  restartPolicy: Never\n")


@pytest.fixture
def given() -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/a.yaml": manifest("web", "i"), "/m/b.yaml": once("once")})


async def test_drained_pods_come_back_after_uncordon_but_for_those_that_run_once(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        commands = commands_of(plane)
        await plane.until_phases(web="Running", once="Running")
        await commands.drain(ASKED)
        drained = plane.runner.drained
        await plane.until_phases(web="Failed", once="Failed")
        given.put("/m/c.yaml", manifest("late", "i"))
        await plane.until_phases(web="Failed", once="Failed", late="Pending")
        late, explained = plane.pod("late-n"), await commands.explain("", "late-n")
        back = await commands.uncordon()
        await plane.until_phases(web="Running", once="Failed", late="Running")

        assert drained is not None
        assert (drained.by, drained.waits_for) == (ROOT, ())
        text = "root (uid 0) has drained the node; `kepctl uncordon` lets pods begin again"
        assert (late.reason, late.waits_for) == ("NodeDrained", text)
        assert (explained.waits_for, [one.line for one in explained.reasons]) == (
            text,
            [f"the node takes no pods: {text}"],
        )
        assert (back, plane.runner.drained) == (["default/web-n"], None)
        assert plane.pod().containers[0].restart_count == 1, "what was counted stays counted"
        with pytest.raises(Refused, match="the node is neither cordoned nor drained"):
            await commands.uncordon()


async def test_a_cordoned_node_lets_run_what_runs(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """NU-11: also by a kepd that starts anew; a drain after it ends them."""
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running", once="Running")
        await commands_of(plane).cordon(ROOT)
    async with running(cri, given, tmp_path) as plane:
        commands = commands_of(plane)
        await commands.resume_drain()
        given.put("/m/c.yaml", manifest("late", "i"))
        await plane.until_phases(web="Running", once="Running", late="Pending")
        cordoned = plane.runner.drained

        assert cordoned is not None
        assert (cordoned.by, cordoned.keeps_pods, cordoned.waits_for) == (ROOT, True, ())
        assert plane.pod("late-n").waits_for.startswith("root (uid 0) has cordoned the node; `kepctl uncordon`")
        await commands.drain(ASKED)
        await commands.cordon(ROOT)
        drained = plane.runner.drained
        assert drained is not None
        assert not drained.keeps_pods, "what is drained stays so"


async def test_what_ended_before_its_image_came_no_longer_speaks_of_the_image(tmp_path: Path) -> None:
    given = FakeManifestDirectory({"/m/a.yaml": manifest("bad", "none")})
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await plane.until(lambda: plane.phases and plane.pod("bad-n").containers[0].message != "", "no image")
        before = (await commands.explain("", "bad-n")).details
        await commands.drain(ASKED)
        await plane.until_phases(bad="Failed")
        after = await commands.explain("", "bad-n")

    assert "failed to resolve image" in "".join(before)
    assert "image" not in "".join([after.waits_for, *after.details, *(one.line for one in after.reasons)]), after


async def test_the_node_stays_drained_when_kepd_starts_anew_and_not_after_a_reboot(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    cri = Slow()
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running", once="Running")
        await commands_of(plane).drain(ASKED)
        before = plane.runner.drained
    given.put("/m/c.yaml", manifest("late", "i"))
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Failed", once="Failed", late="Pending")
        assert plane.runner.drained == before
    files = DISKS[tmp_path].files
    for name, content in files.items():
        files[name] = content.replace(b'"boot_id":"boot"', b'"boot_id":"the one before"')
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running", once="Failed", late="Running")
        assert plane.runner.drained is None


async def test_a_drain_that_runs_names_what_it_waits_for_and_can_be_ended(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    cri = Slow()
    given.put("/m/b.yaml", manifest("db", "i").replace(b"spec:\n", b"spec:\n  priority: 100\n"))
    async with running(cri, given, tmp_path) as plane:
        commands = commands_of(plane)
        await plane.until_phases(web="Running", db="Running")
        cri.may_stop.clear()
        drain = asyncio.ensure_future(commands.drain(ASKED))
        await plane.until(lambda: cri.stopping == {"a"}, "the first ends")
        drained = plane.runner.drained
        assert drained is not None
        assert drained.waits_for == ("default/db-n", "default/web-n")
        assert await commands.uncordon() == ["default/web-n"]
        with pytest.raises(Refused, match="ended by `kepctl uncordon`"):
            await drain
        cri.may_stop.set()
        await plane.until(lambda: plane.pod().containers[0].restart_count == 1, "it begins anew when it has ended")
        await plane.until_phases(web="Running", db="Running")

    assert len(cri.stops) == 1, "the other was not reached"


async def test_a_drain_goes_on_when_kepd_starts_anew_within_it(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """FP-25: pods of later groups had not been asked to end yet."""
    cri = Slow()
    given.put("/m/b.yaml", manifest("late", "i").replace(b"spec:\n", b"spec:\n  priority: 1000\n"))
    groups = [Group(priority=0, period_s=10.0), Group(priority=1000, period_s=10.0)]
    async with running(cri, given, tmp_path) as plane:
        await plane.until_phases(web="Running", late="Running")
        cri.may_stop.clear()
        draining = asyncio.ensure_future(admitted(plane, groups))
        await plane.until(lambda: cri.stopping, "the first one is asked to end")
        draining.cancel()
    cri.may_stop.set()
    async with running(cri, given, tmp_path) as plane:
        await commands_of(plane).resume_drain()
        await plane.until_phases(web="Failed", late="Failed")

    assert {name for name, _ in cri.stops} == {"a"}


async def test_a_disk_that_takes_nothing_stops_no_drain(given: FakeManifestDirectory, tmp_path: Path) -> None:
    async with running(Slow(), given, tmp_path) as plane:
        await plane.until_phases(web="Running", once="Running")
        DISKS[tmp_path].failure = OSError("no space left")
        await commands_of(plane).drain(ASKED)
        await plane.until_phases(web="Failed", once="Failed")

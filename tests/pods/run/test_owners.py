# SPDX-License-Identifier: Apache-2.0
"""Whose a container, a sandbox or a name is."""

from pathlib import Path

from agent.pods.run.runner import PodRunner
from agent.pods.runtime.observed import Stage
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import News, Slow, manifest, running


def owned(runner: PodRunner) -> tuple[set[str], set[str]]:
    return set(runner.owners._instances), set(runner.owners._sandboxes)


async def test_every_container_and_sandbox_has_its_pod_and_none_is_left_behind(tmp_path: Path) -> None:
    """Also after restarts, collection, a sandbox made anew, and the end of pods."""
    cri = Slow()
    given = FakeManifestDirectory({"/m/a.yaml": manifest("a", "i"), "/m/b.yaml": manifest("b", "i", "i")})
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(a="Running", b="Running")
        cri.exit(next(iter(cri._containers)), 1)
        await plane.until(
            lambda: any(one.restart_count for pod in plane.runner.pods.items.values() for one in pod.containers),
            "a restart",
        )
        await cri.stop_sandbox(next(iter(cri._sandboxes)))
        await plane.until(lambda: len(cri._sandboxes) == 3, "another sandbox")
        await plane.until_phases(a="Running", b="Running")
        await plane.until(
            lambda: owned(plane.runner) == (set(cri._containers), set(cri._sandboxes)), "all that is there has an owner"
        )
        for keeper in plane.runner.keepers.values():
            assert all(plane.runner.owners.of_instance(one.id) is keeper for one in keeper.run.seen.instances)
            assert all(plane.runner.owners.of_sandbox(one.id) is keeper for one in keeper.run.seen.sandboxes)
        assert plane.runner.owners.of_instance("somebody else's") is None
        given.put("/m/a.yaml", None)
        given.put("/m/b.yaml", None)
        await plane.until(lambda: not plane.phases, "both are gone")

        assert owned(plane.runner) == (set(), set())
        assert not plane.runner.keepers


async def test_a_pod_that_keeps_its_uid_and_changes_its_name_ends_and_begins_anew(tmp_path: Path) -> None:
    """A sandbox has the name it was made with."""
    cri = Slow()
    given = FakeManifestDirectory({"/m/a.yaml": manifest("a", "i", more=", uid: u1")})
    async with running(cri, given, tmp_path, events=News(cri)) as plane:
        await plane.until_phases(a="Running")
        cri.may_stop.clear()
        given.put("/m/a.yaml", manifest("b", "i", more=", uid: u1"))
        await plane.until(lambda: cri.stopping, "the old one ends")
        assert [one.metadata.name for one in cri._sandboxes.values()] == ["a-n"]
        cri.may_stop.set()
        await plane.until_phases(b="Running")

        (run,) = [keeper.run for keeper in plane.runner.keepers.values()]
        assert [one.stage for one in run.seen.instances] == [Stage.RUNNING]

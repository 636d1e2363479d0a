# SPDX-License-Identifier: Apache-2.0
"""Pods that end because the node runs short of something, and come back, in the whole plane."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.config.sections.pods import PodLogs
from agent.model.nodes.file_system import Room
from agent.model.nodes.use import Amount, DiskPlace, PodUse
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.evict import EvictionRules, Threshold
from agent.pods.plan.scarcity.storage_use import DiskUse
from tests.fakes.jumping import jumps
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import AT_ONCE, FakeNode, Plane, Slow, manifest, running

__all__ = ["jumps"]

MI = 1 << 20
MEMORY = Threshold(signal="memory.available", quantity=100 * MI)
DISK = Threshold(signal="nodefs.available", share=0.1)
QUICK = EvictionRules(thresholds=(MEMORY, DISK), period_s=0.05, transition_s=0.1)
CRITICAL = "  priorityClassName: system-node-critical\n"
# The first return comes at once.


def node_with(left: int, **used: int) -> FakeNode:
    node = FakeNode()
    node.amounts["memory.available"] = Amount(left * MI, 4096 * MI)
    node.uses = {f"u-{name}": PodUse(memory=size * MI) for name, size in used.items()}
    return node


def files(*names: str, more: str = "") -> FakeManifestDirectory:
    return FakeManifestDirectory(
        {f"/m/{name}.yaml": manifest(name, "i", more=f", uid: u-{name}").replace(b"spec:\n", f"spec:\n{more}".encode())
         for name in names}
    )  # fmt: skip


def plane_of(node: FakeNode, manifests: FakeManifestDirectory, tmp_path: Path, **given: Any) -> Any:
    settings = {"eviction": QUICK, "curve": AT_ONCE, **given}
    return running(Slow(), manifests, tmp_path / "logs", node=node, cpus=4, **settings)


def reasons(plane: Plane) -> list[str]:
    return [one.reason for one in plane.events]


async def test_the_pod_that_has_most_ends_and_comes_back_when_there_is_room(tmp_path: Path) -> None:
    """EVN-08 to EVN-10: one pod alone, with the words of a kubelet; new pods that ask for nothing wait meanwhile."""
    node = node_with(900, web=50, big=800)
    manifests = files("web", "big")
    async with plane_of(node, manifests, tmp_path) as plane:
        await plane.until_phases(web="Running", big="Running")
        node.amounts["memory.available"] = Amount(61 * MI, 4096 * MI)
        await plane.until_phases(web="Running", big="Failed")
        pod = plane.pod("big-n")
        condition = next(one for one in pod.conditions if one.type == "DisruptionTarget")
        assert pod.reason == "Evicted"
        assert pod.message.startswith(
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 61Mi. "
        )
        assert (condition.is_true, condition.reason) == (True, "TerminationByKubelet")
        assert {"EvictionThresholdMet", "NodeUnderPressure", "Evicted"} <= set(reasons(plane))
        assert plane.runner.evictor.conditions == {"MemoryPressure"}
        manifests.put("/m/late.yaml", manifest("late", "i", more=", uid: u-late"))
        await plane.until(lambda: "late-n" in plane.phases, "the late pod to be shown")
        late = plane.pod("late-n")
        assert (late.phase, late.reason) == ("Pending", "NodeUnderPressure")

        # Meanwhile the other one is not touched: its end would make little room, but it would come next.
        node.uses["u-web"] = PodUse(memory=0)
        node.amounts["memory.available"] = Amount(900 * MI, 4096 * MI)
        await plane.until_phases(web="Running", big="Running", late="Running")
        families = {one.name: one for one in plane.metrics.families()}
        assert [(one.labels, one.value) for one in families["kepd_evictions"].samples] == [
            ({"signal": "memory.available", "kind": "hard"}, 1)
        ]


async def test_a_pod_that_runs_once_does_not_come_back(tmp_path: Path) -> None:
    """EVN-09."""
    node = node_with(61, web=500)
    async with plane_of(node, files("web", more="  restartPolicy: Never\n"), tmp_path) as plane:
        await plane.until_phases(web="Failed")
        node.amounts["memory.available"] = Amount(900 * MI, 4096 * MI)
        await plane.until(lambda: not plane.runner.evictor.conditions, "the condition to end")
        await plane.rounds()
        assert plane.phases == {"web-n": "Failed"}


async def test_three_ends_within_an_hour_are_enough(tmp_path: Path) -> None:
    """EVN-09: until somebody says so."""
    node = node_with(900, web=500)
    async with plane_of(node, files("web"), tmp_path) as plane:
        for _ in range(3):
            await plane.until_phases(web="Running")
            node.amounts["memory.available"] = Amount(61 * MI, 4096 * MI)
            await plane.until_phases(web="Failed")
            node.amounts["memory.available"] = Amount(900 * MI, 4096 * MI)
        await plane.until(lambda: "EvictionThrashing" in reasons(plane), "the event")
        await plane.rounds()
        assert plane.phases == {"web-n": "Failed"}
        assert reasons(plane).count("EvictionThrashing") == 1
        (keeper,) = plane.runner.keepers.values()
        assert plane.runner.evictor.readmit(keeper)
        await plane.until_phases(web="Running")


async def test_a_changed_manifest_brings_it_back_too(tmp_path: Path) -> None:
    """EVN-09."""
    node, manifests = node_with(900, web=500), files("web")
    async with plane_of(node, manifests, tmp_path) as plane:
        for _ in range(3):
            await plane.until_phases(web="Running")
            node.amounts["memory.available"] = Amount(61 * MI, 4096 * MI)
            await plane.until_phases(web="Failed")
            node.amounts["memory.available"] = Amount(900 * MI, 4096 * MI)
        await plane.until(lambda: "EvictionThrashing" in reasons(plane), "the event")
        manifests.put("/m/web.yaml", manifest("web", "j", more=", uid: u-web"))
        await plane.until_phases(web="Running")


async def test_callers_of_an_explanation_share_one_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVN-12: it reads what pods wrote, and whoever may read may ask."""
    node, walks = node_with(900, web=500), []
    async with plane_of(node, files("web"), tmp_path) as plane:
        await plane.until_phases(web="Running")
        monkeypatch.setattr(
            "agent.pods.run.disk.measured.disk_use",
            lambda _files, pod, _logs, _pace: walks.append(pod.key) or DiskUse(),
        )
        reports = await asyncio.gather(*(plane.runner.evictor.report() for _ in range(20)))
        assert walks == ["default/web-n"]
        assert all(one is reports[0] for one in reports)


async def test_a_disk_is_cleared_before_a_pod_ends(tmp_path: Path) -> None:
    """EVN-04: where that is enough, no pod ends; where it fails, one does."""
    node = node_with(900, web=500)
    node.amounts["nodefs.available"] = Amount(5, 100)

    def cleared(_signal: str) -> None:
        node.amounts["nodefs.available"] = Amount(50, 100)

    node.freed = cleared
    async with plane_of(node, files("web"), tmp_path) as plane:
        await plane.until(lambda: node.rooms == ["nodefs.available"], "room to be made")
        await plane.until_phases(web="Running")

        def refused(_signal: str) -> None:
            raise RuntimeCallFailed("RemoveImage", "no")

        node.freed = refused
        logs = next((tmp_path / "logs").glob("default_web-n_*/a"))
        (logs / "0.log").write_bytes(b"x" * 3 * MI)
        node.amounts["nodefs.available"] = Amount(5, 100)
        await plane.until_phases(web="Failed")
        assert "low on resource: ephemeral-storage" in plane.pod().message


def place(*roles: str, path: str = "/disk") -> DiskPlace:
    return DiskPlace(path=path, device=1, roles=roles)


async def test_only_what_lies_on_a_full_disk_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """FSY-04: with images apart, pressure on the node's files removes no image."""
    node = node_with(900)
    node.places = {"nodefs": place("node", path="/var/lib/kepd"), "imagefs": place("image", "container", "content")}
    node.amounts |= {"nodefs.available": Amount(5, 100), "imagefs.available": Amount(50, 100)}
    images = Threshold(signal="imagefs.available", share=0.15)
    rules = EvictionRules(thresholds=(DISK, images), period_s=0.05, transition_s=0.1)
    async with plane_of(node, files("web", more=CRITICAL), tmp_path, eviction=rules) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: "DiskPressure" in plane.runner.evictor.conditions, "the condition")
        await plane.until(lambda: node.looks > 5, "looks")
        pressure = plane.runner._context.pressure
        assert node.rooms == []
        assert pressure.rooms == frozenset()
        assert plane.runner.evictor.short_paths() == {"/var/lib/kepd"}
        assert "no removal can make room on /var/lib/kepd" in capsys.readouterr().out
        node.amounts["imagefs.available"] = Amount(5, 100)
        await plane.until(lambda: node.rooms == ["imagefs.available"], "images to go")
        await plane.until(lambda: pressure.rooms == {Room.IMAGES, Room.CONTAINERS}, "dead containers to go")
        node.amounts |= {"nodefs.available": Amount(50, 100), "imagefs.available": Amount(50, 100)}
        await plane.until(lambda: not pressure.rooms, "the end")
        assert plane.runner.evictor.short_paths() == frozenset()


@pytest.mark.parametrize(("roles", "left"), [(("image", "container"), 1), (("image",), 2)])
async def test_dead_containers_go_where_their_layers_are_short_of_room(
    tmp_path: Path, roles: tuple[str, ...], left: int
) -> None:
    """FSY-04: else the last dead one of each container stays, for people to look at."""
    node = node_with(900)
    node.places = {"nodefs": place(*roles)}
    node.amounts["nodefs.available"] = Amount(50, 100)
    async with plane_of(node, files("web", more=CRITICAL), tmp_path) as plane:
        await plane.until_phases(web="Running")
        for count in (1, 2):
            plane.cri.exit(plane.pod().containers[0].id, 1)
            plane.runner.rounds.due.set()
            await plane.until(lambda wanted=count: plane.pod().containers[0].restart_count == wanted, "a restart")
        await plane.until(lambda: len(plane.cri._containers) == 2, "one dead one to stay")
        node.amounts["nodefs.available"] = Amount(5, 100)
        await plane.until(lambda: "DiskPressure" in plane.runner.evictor.conditions, "the condition")
        await plane.until(lambda: len(plane.cri._containers) == left, "what may go to be gone")
        await plane.rounds()
        assert len(plane.cri._containers) == left


async def test_logs_of_pods_that_ended_make_room_before_one_is_evicted(tmp_path: Path) -> None:
    """FSY-04: and those of pods that run are rotated early."""
    node = node_with(900)
    node.places = {"nodefs": place("node", "logs")}
    node.amounts["nodefs.available"] = Amount(50, 100)
    manifests = files("once", "web", more=CRITICAL + "  restartPolicy: Never\n")
    async with plane_of(node, manifests, tmp_path, logs=PodLogs(max_size=1000)) as plane:
        await plane.until_phases(once="Running", web="Running")
        plane.cri.exit(plane.pod("once-n").containers[0].id, 0)
        plane.runner.rounds.due.set()
        await plane.until_phases(once="Succeeded", web="Running")
        once, web = (next((tmp_path / "logs").glob(f"default_{name}-n_*/a")) for name in ("once", "web"))
        for folder in (once, web):
            (folder / "0.log").write_bytes(b"x" * 200)
        node.places = {"nodefs": place("node", "logs", "image")}
        node.freed = lambda _signal: node.amounts.update({"nodefs.available": Amount(50, 100)})
        node.amounts["nodefs.available"] = Amount(5, 100)
        await plane.until(lambda: node.rooms == ["nodefs.available"], "images to go")
        await plane.until(lambda: not plane.runner.evictor.conditions, "the condition to end")
        assert (once / "0.log").stat().st_size == 200, "images were enough"
        node.places, node.freed = {"nodefs": place("node", "logs")}, lambda _signal: None
        node.amounts["nodefs.available"] = Amount(5, 100)
        await plane.until(lambda: (once / "0.log").stat().st_size == 0, "its log to go")
        await plane.until(lambda: not (web / "0.log").exists(), "the other to be rotated")
        assert node.rooms == ["nodefs.available"]
        assert sum(path.stat().st_size for path in web.iterdir()) == 200


async def test_a_look_that_fails_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EVN-05: what cannot be read decides nothing, and the next look is made."""
    node = node_with(61, web=500)

    async def fails() -> Any:
        node.looks += 1
        raise OSError(5, "Input/output error")

    look = node.look
    monkeypatch.setattr(node, "look", fails)
    async with plane_of(node, files("web"), tmp_path) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: node.looks > 2, "looks")
        monkeypatch.setattr(node, "look", look)
        await plane.until_phases(web="Failed")


async def test_where_a_kubelet_does_it_nobody_looks(tmp_path: Path) -> None:
    """EVN-01."""
    node = node_with(1, web=500)
    async with plane_of(node, files("web"), tmp_path, eviction=None) as plane:
        await plane.until_phases(web="Running")
        await plane.rounds()
        report = await plane.runner.evictor.report()
        assert (node.looks, report.is_on) == (0, False)
        assert plane.phases == {"web-n": "Running"}


async def test_people_see_what_is_left_and_who_would_go_first(tmp_path: Path) -> None:
    """EVN-12: from the plan's own values."""
    node = node_with(900, web=50, big=800)
    async with plane_of(node, files("web", "big"), tmp_path) as plane:
        await plane.until_phases(web="Running", big="Running")
        report = await plane.runner.evictor.report()
        memory = next(one for one in report.signals if one.signal == "memory.available")
        assert (memory.available, memory.line, memory.met_since_s) == (900 * MI, 100 * MI, 0.0)
        unseen = next(one for one in report.signals if one.signal == "nodefs.available")
        assert (unseen.capacity, unseen.message) == (0, "cannot be seen from here, so it decides nothing")
        assert [(one.rank, one.name, one.used) for one in report.candidates] == [
            (1, "big-n", 800 * MI), (2, "web-n", 50 * MI),
        ]  # fmt: skip
        assert plane.phases == {"web-n": "Running", "big-n": "Running"}


async def test_the_kernels_word_brings_the_next_look_and_no_more_than_one_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVN-11: the time between two looks is long here, and the shortest is short."""
    monkeypatch.setattr("agent.pods.run.evicting.SOONEST_S", 0.2)
    node, rules = node_with(900, web=500), msgspec.structs.replace(QUICK, period_s=600.0)
    async with plane_of(node, files("web"), tmp_path, eviction=rules) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: node.armed == [800 * MI], "it is armed")
        before = node.looks
        node.amounts["memory.available"] = Amount(61 * MI, 4096 * MI)
        node.rings.set()
        await plane.until_phases(web="Failed")
        began_s = time.monotonic()
        for _ in range(40):
            node.rings.set()
            await asyncio.sleep(0.01)
        most = 2 + (time.monotonic() - began_s) / 0.2

        assert node.armed[-1] is None, "what is short already rings by its pressure alone"
        assert 2 <= node.looks - before <= 2 * most
    assert node.armed == []

# SPDX-License-Identifier: Apache-2.0
"""What a kepd that has just begun shows, and what it makes of pods whose manifests went while it was away."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.kinds.pods.pod_parts import name_of, told
from agent.kinds.shown import How, Offer
from agent.model.refused import Refused
from agent.objects.wanted import Wanted
from agent.pods.attach.pod_service import PodService
from agent.pods.run import commands as commands_module
from agent.pods.run.one_pod import sandbox_maker
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import DISKS, Plane, Slow, manifest, running
from tests.pods.run.test_commands import commands_of

NAMES, TURNS = ("a", "b", "c", "d"), 20


class Later(FakeManifestDirectory):
    """Files that are read when the test says."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.may_read = asyncio.Event()

    async def news(self) -> AsyncIterator[Wanted]:
        await self.may_read.wait()
        async for wanted in super().news():
            yield wanted


class Busy(Slow):
    """Answers take some turns of the loop, in which others work."""

    def made(self) -> list[str]:
        return [one for one in self.calls if one in ("RunPodSandbox", "CreateContainer")]

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return await super().container_status(container_id)

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return await super().sandbox_status(sandbox_id)


class Ghosts(Slow):
    """The next lists show what was there when they were asked for, and what goes before they come."""

    sandboxes: tuple[pb.PodSandbox, ...] = ()
    containers: tuple[pb.Container, ...] = ()

    async def vanish(self) -> None:
        self.sandboxes, self.containers = tuple(await self.list_sandboxes()), tuple(await self.list_containers())
        for one in self.sandboxes:
            await self.stop_sandbox(one.id)
            await self.remove_sandbox(one.id)

    async def list_sandboxes(self) -> list[pb.PodSandbox]:
        late, self.sandboxes = self.sandboxes, ()
        return list(late) or await super().list_sandboxes()

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]:
        late, self.containers = self.containers, ()
        return list(late) or await super().list_containers(sandbox_id)


async def up(cri: Slow, logs: Path, *names: str) -> FakeManifestDirectory:
    """Pods that run, and a kepd that has gone."""
    names = names or ("web",)
    files = FakeManifestDirectory({f"/m/{name}.yaml": manifest(name, "i") for name in names})
    async with running(cri, files, logs) as plane:
        await plane.until_phases(**dict.fromkeys(names, "Running"))
    return files


async def shown(offer: Offer) -> list[tuple[str, str]]:
    return [(name_of(made), told(made, "phase")) async for _, made in offer.walk(How(), "")]


async def listed(plane: Plane) -> list[tuple[str, str]]:
    return await shown(PodService(commands_of(plane), None).offers["pods"])


async def test_who_asks_at_once_gets_what_there_is_when_it_is_known(tmp_path: Path) -> None:
    """NP-7: get pods was empty, and wait --for=delete was done, while the pod ran."""
    cri = Slow()
    await up(cri, tmp_path)
    files = Later({"/m/web.yaml": manifest("web", "i")})
    async with running(cri, files, tmp_path) as plane:
        offer = PodService(commands_of(plane), None).offers["pods"]
        assert offer.follow is not None
        asked = [asyncio.create_task(shown(offer)), asyncio.ensure_future(anext(offer.follow()))]
        await asyncio.wait(asked, timeout=0.05)
        early = [one for one in asked if one.done()]
        files.may_read.set()
        found: Any = await asyncio.gather(*asked)

    assert early == []
    assert (found[0][0][1], told(found[1].item, "phase")) == ("Running", "Running")


async def test_who_asks_for_too_long_learns_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NP-7: rather than that there is none."""
    monkeypatch.setattr(commands_module, "FIRST_LOOK_S", 0.01)
    async with running(Slow(), Later({}), tmp_path) as plane:
        with pytest.raises(Refused, match="not yet found out which pods there are") as caught:
            await listed(plane)

    assert caught.value.kind == "unavailable"


async def test_pods_that_run_are_there_while_the_runtime_does_not_answer(tmp_path: Path) -> None:
    """NP-7: with a manifest, and without; how they are is not known."""
    cri = Slow()
    files = await up(cri, tmp_path)
    files.put("/m/web.yaml", None)
    files.put("/m/new.yaml", manifest("new", "i"))
    cri.reachable = False
    async with running(cri, files, tmp_path) as plane:
        found = await listed(plane)
        status = plane.pod().status

    assert sorted(found) == [("new-n", "Pending"), ("web-n", "Unknown")]
    assert status == "Unknown"


async def test_conditions_keep_their_times_over_a_restart(tmp_path: Path) -> None:
    """NP-14: as far as a record tells."""
    clock = FakeClock()
    cri, files = Slow(), FakeManifestDirectory({"/m/web.yaml": manifest("web", "i")})
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await plane.until_phases(web="Running")
        before = {one.type: one.since_s for one in plane.pod().conditions}
    await clock.advance(3600.0)
    async with running(cri, files, tmp_path, clock=clock) as plane:
        await plane.until_phases(web="Running")
        after = {one.type: one.since_s for one in plane.pod().conditions}

    assert after == before


async def test_nothing_is_made_for_a_pod_whose_manifest_went_meanwhile(tmp_path: Path) -> None:
    """NP-13: its sandbox died as well, as in a reboot."""
    cri = Busy()
    files = await up(cri, tmp_path, *NAMES)
    for name in NAMES:
        files.put(f"/m/{name}.yaml", None)
    for one in await cri.list_sandboxes():
        await cri.stop_sandbox(one.id)
    before = cri.made()
    async with running(cri, files, tmp_path) as plane:
        await plane.until_ready()
        await plane.until(lambda: not plane.phases and not plane.runner.keepers, "it is gone")

    assert cri.made() == before
    assert await cri.list_sandboxes() == []


@pytest.mark.parametrize("uid", ["", ", uid: same"])
async def test_a_pod_replaced_meanwhile_is_made_once_as_it_is_now(
    tmp_path: Path, uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NP-13: under its name, while its sandbox died as well, and long ago."""
    monkeypatch.setattr(sandbox_maker, "FIRST_PAUSE_S", 0.0)
    cri = Busy()
    before = {f"/m/{name}.yaml": manifest(name, "i", more=uid and f"{uid}-{name}") for name in NAMES}
    files = FakeManifestDirectory(before)
    async with running(cri, files, tmp_path) as plane:
        await plane.until_phases(**dict.fromkeys(NAMES, "Running"))
    for path, content in before.items():
        files.put(path, content.replace(b"spec:", b"spec:\n  hostNetwork: true"))
    for made in await cri.list_containers():
        cri.exit(made.id, 137)
    for one in await cri.list_sandboxes():
        await cri.stop_sandbox(one.id)
    cri.calls.clear()
    async with running(cri, files, tmp_path) as plane:
        await plane.until_ready()
        await plane.until(
            lambda: (
                [(one.phase, one.spec.host_network) for one in plane.runner.pods.items.values()]
                == [("Running", True)] * len(NAMES)
            ),
            "all are as they should be",
        )

    assert sorted(cri.made()) == ["CreateContainer"] * len(NAMES) + ["RunPodSandbox"] * len(NAMES)
    assert len(await cri.list_sandboxes()) == len(NAMES)


@pytest.mark.parametrize("is_wanted", [True, False])
@pytest.mark.parametrize("has_record", [True, False])
async def test_a_list_that_comes_late_brings_nothing_back(tmp_path: Path, is_wanted: bool, has_record: bool) -> None:
    """NP-5: it shows a pod that has gone since it was asked for."""
    cri = Ghosts()
    files = await up(cri, tmp_path)
    if not is_wanted:
        files.put("/m/web.yaml", None)
    if not has_record:
        DISKS.pop(tmp_path)
    await cri.vanish()
    with capture_logs() as logs:
        async with running(cri, files, tmp_path) as plane:
            await plane.until_phases(**({"web": "Running"} if is_wanted else {}))
            await plane.until_ready()
            await plane.rounds()
            kept = len(plane.runner.keepers)

    assert [one["event"] for one in logs if one["log_level"] == "error"] == []
    assert kept == len(await cri.list_sandboxes()) == int(is_wanted)


@pytest.mark.parametrize("is_ready", [True, False])
async def test_a_sandbox_without_containers_and_record_goes(tmp_path: Path, is_ready: bool) -> None:
    """NP-13: TRM-30."""
    cri = Busy()
    files = await up(cri, tmp_path, *NAMES)
    for name in NAMES:
        files.put(f"/m/{name}.yaml", None)
    DISKS.pop(tmp_path)
    for made in await cri.list_containers():
        await cri.remove_container(made.id)
    for one in await cri.list_sandboxes():
        if not is_ready:
            await cri.stop_sandbox(one.id)
    before = cri.made()
    with capture_logs() as logs:
        async with running(cri, files, tmp_path) as plane:
            await plane.until_ready()
            await plane.until(lambda: not plane.phases and not plane.runner.keepers, "it is gone")

    assert [one["event"] for one in logs if one["log_level"] == "error"] == []
    assert cri.made() == before
    assert await cri.list_sandboxes() == []

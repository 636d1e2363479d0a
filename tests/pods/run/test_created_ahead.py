# SPDX-License-Identifier: Apache-2.0
"""FP-24: a container is created while the one before it starts, and never starts ahead of its turn (STA-02, STA-04)."""

import asyncio
from pathlib import Path

import pytest

from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, running

POD = """
apiVersion: v1
kind: Pod
metadata: {{name: web, uid: one}}
spec:
  terminationGracePeriodSeconds: 1
  initContainers: [{{name: side, image: "i:1", restartPolicy: Always{side}}}]
  containers: [{{name: main, image: "i:1"{main}}}, {{name: last, image: "i:1"}}]
"""


def given(side: str = "", main: str = "") -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/f.yaml": POD.format(side=side, main=main).encode()})


class Gated(Slow):
    """Starts wait for the test; says what was created and started, in order."""

    def __init__(self, *gates: str) -> None:
        super().__init__()
        self.registry.add("i:1")
        self.may_start = {name: asyncio.Event() for name in gates}
        self.deeds: list[str] = []
        self.fails: set[str] = set()

    async def create_container(self, sandbox_id: str, config: pb.ContainerConfig, sandbox: pb.PodSandboxConfig) -> str:
        made = await super().create_container(sandbox_id, config, sandbox)
        self.deeds.append(f"create {config.metadata.name} {config.metadata.attempt}")
        return made

    async def start_container(self, container_id: str) -> None:
        name = (await self.container_status(container_id)).metadata.name
        if name in self.may_start:
            await self.may_start[name].wait()
        if name in self.fails:
            raise RuntimeCallFailed("StartContainer", "out of luck")
        await super().start_container(container_id)
        self.deeds.append(f"start {name}")

    async def remove_container(self, container_id: str) -> None:
        self.deeds.append(f"remove {(await self.container_status(container_id)).metadata.name}")
        await super().remove_container(container_id)


FIRST = ["create side 0", "create main 0"]
ALL = [*FIRST, "start side", "create last 0", "start main", "start last"]


async def test_the_next_container_is_there_when_its_turn_comes(tmp_path: Path) -> None:
    cri = Gated("side", "main")
    async with running(cri, given(), tmp_path) as plane:
        await plane.until(lambda: cri.deeds == FIRST, "main is created")
        await plane.rounds()
        held, shown = list(cri.deeds), plane.pod()
        cri.may_start["side"].set()
        await plane.until(lambda: cri.deeds == ALL[:4], "last is created")
        cri.may_start["main"].set()
        await plane.until_phases(web="Running")
        events = [(one.reason, one.container) for one in plane.events if one.reason in ("Created", "Started")]

    assert held == FIRST, "nothing starts ahead of its turn"
    assert (shown.phase, [one.restart_count for one in shown.containers]) == ("Pending", [0, 0, 0])
    assert cri.deeds[: len(ALL)] == ALL
    assert events == [(reason, name) for name in ("side", "main", "last") for reason in ("Created", "Started")]


@pytest.mark.parametrize(
    ("side", "main"),
    [
        (', startupProbe: {exec: {command: ["true"]}}', ""),
        (', lifecycle: {postStart: {exec: {command: ["true"]}}}', ""),
        ("", ", imagePullPolicy: Always"),
    ],
    ids=["startup probe", "postStart", "pulled at each start"],
)
async def test_where_more_than_a_start_is_waited_for_nothing_is_made_ahead(
    side: str, main: str, tmp_path: Path
) -> None:
    cri = Gated("side")
    async with running(cri, given(side, main), tmp_path) as plane:
        await plane.until(lambda: cri.deeds, "side is created")
        await plane.rounds()
        held = list(cri.deeds)

    assert held == FIRST[:1]


async def test_a_sidecar_that_does_not_start_keeps_what_was_made_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made anew then, as the same attempt: what it was made with may be another by now."""
    monkeypatch.setattr("agent.pods.run.one_pod.starting.FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr("agent.pods.run.one_pod.created_ahead.FRESH_S", 0.0)
    cri = Gated()
    cri.fails.add("side")
    async with running(cri, given(), tmp_path) as plane:
        await plane.until(lambda: cri.deeds.count("create side 0") > 1, "side is tried again")
        held = list(cri.deeds)
        cri.fails.clear()
        await plane.until_phases(web="Running")

    assert not any(deed.startswith("start") for deed in held)
    assert cri.deeds.index("start side") < cri.deeds.index("remove main") < cri.deeds.index("start main")
    assert {deed for deed in cri.deeds if deed.startswith("create main")} == {"create main 0"}


async def test_another_manifest_makes_it_anew(tmp_path: Path) -> None:
    cri, files = Gated("side"), given()
    async with running(cri, files, tmp_path) as plane:
        await plane.until(lambda: cri.deeds == FIRST, "main is created")
        files.put("/m/f.yaml", POD.format(side="", main=", args: [x]").encode())
        await plane.rounds()
        cri.may_start["side"].set()
        await plane.until_phases(web="Running")

    assert cri.deeds.index("remove main") < cri.deeds.index("start main")


async def test_a_pod_that_ends_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    cri, files = Gated("side"), given()
    async with running(cri, files, tmp_path) as plane:
        await plane.until(lambda: cri.deeds == FIRST, "main is created")
        files.put("/m/f.yaml", None)
        await plane.rounds()
        cri.may_start["side"].set()
        await plane.until(lambda: not plane.phases, "the pod is gone")

    assert await cri.list_containers() == []
    assert "start main" not in cri.deeds


async def test_a_kill_before_its_turn_is_no_restart_and_no_other_order(tmp_path: Path) -> None:
    cri = Gated("side")
    async with running(cri, given(), tmp_path) as plane:
        await plane.until(lambda: cri.deeds == FIRST, "main is created")
    cri.may_start["side"].set()
    async with running(cri, given(), tmp_path) as plane:
        await plane.until_phases(web="Running")
        shown = plane.pod()

    assert [deed for deed in cri.deeds if deed.startswith("start")] == ["start side", "start main", "start last"]
    assert [one.restart_count for one in shown.containers] == [0, 0, 0]


async def test_what_was_found_ahead_is_not_asked_for_again(tmp_path: Path) -> None:
    cri = Gated("side", "main")
    async with running(cri, given(), tmp_path) as plane:
        await plane.until(lambda: cri.deeds == FIRST, "main is created")
        before = cri.calls.count("ImageStatus")
        cri.may_start["side"].set()
        await plane.until(lambda: cri.deeds == ALL[:4], "last is created, and main about to start")
        looks = cri.calls.count("ImageStatus") - before
        cri.may_start["main"].set()
        await plane.until_phases(web="Running")

    assert looks == 1, "of last, ahead of its launch"


async def test_who_fails_with_what_was_found_ahead_asks_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.pods.run.one_pod.starting.FIRST_PAUSE_S", 0.05)
    cri = Gated()
    cri.fails.add("main")
    async with running(cri, given(), tmp_path) as plane:
        await plane.until(lambda: cri.deeds.count("create main 0") > 1, "main is tried again")
        before = cri.calls.count("ImageStatus")
        await plane.until(lambda: cri.calls.count("ImageStatus") > before + 1, "its image is asked for again")
        cri.fails.clear()
        await plane.until_phases(web="Running")

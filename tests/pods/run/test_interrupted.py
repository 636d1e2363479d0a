# SPDX-License-Identifier: Apache-2.0
"""Pods that are removed or replaced while something long is under way for them end like any other."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.model.pods.pod import PodSpec
from agent.pods.run.pod_context import NoDevices
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, running

TURNS = 5
POD = """apiVersion: v1
kind: Pod
metadata: {name: web, uid: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: IMAGE, lifecycle: {postStart: {exec: {command: [begin]}}}, env: [{name: A, value: VALUE}]}
"""


class Reluctant(Slow):
    """What is given up takes some turns of the loop to end, as a call to a real runtime does."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        del container_id, command, timeout_s
        await self.hang()
        return pb.ExecSyncResponse()

    async def hang(self, *_: object) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(TURNS):
                await asyncio.sleep(0)


class ReluctantDevices(NoDevices):
    def __init__(self, cri: Reluctant) -> None:
        self._cri = cri

    async def hold(self, pod: PodSpec) -> None:
        del pod
        await self._cri.hang()


def written(image: str, value: str) -> bytes:
    return POD.replace("IMAGE", image).replace("VALUE", value).encode()


@pytest.mark.parametrize("how", ["removed", "removed twice", "replaced"])
@pytest.mark.parametrize("busy", ["hook", "pull", "devices"])
async def test_what_is_under_way_is_given_up_once(tmp_path: Path, busy: str, how: str) -> None:
    """NP-2."""
    cri = Reluctant()
    cri.registry.add("other")
    if busy == "pull":
        cri.while_pulling = cri.hang
    devices: Any = ReluctantDevices(cri) if busy == "devices" else None
    manifests = FakeManifestDirectory({"web.yaml": written("i", "a")})
    with capture_logs() as logs:
        async with running(cri, manifests, tmp_path / "logs", devices=devices) as plane:
            await asyncio.wait_for(cri.asked.wait(), 30)
            keeper = plane.runner.keeper("default", "web-n")
            assert keeper is not None
            if how == "replaced":
                cri.while_pulling = None
                manifests.put("web.yaml", written("other", "b").replace(b"uid: web", b"uid: next"))
                await plane.until(lambda: keeper.run.is_gone, "the first is gone")
            else:
                manifests.put("web.yaml", None)
                if how == "removed twice":
                    await plane.until(lambda: keeper.run.is_removed, "it is removed")
                    keeper.remove(0.5)
                await plane.until(lambda: not plane.phases, "it is gone")

    assert [one for one in logs if one["event"] == "pod_keeper_failed"] == []

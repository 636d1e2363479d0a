# SPDX-License-Identifier: Apache-2.0
"""How long calls to the runtime may take."""

from typing import Any

from agent.drivers.cri.driver import CriRuntime
from agent.wire.cri import runtime_v1_pb2 as pb


class Timed(CriRuntime):
    """Notes how each call is bounded, and answers nothing."""

    def __init__(self) -> None:
        super().__init__("unix:///none", request_timeout_s=120.0)
        self.limits: dict[str, float | None] = {}

    async def call(
        self, method: Any, request: Any, *, deadline_s: float | None = None, bounded: bool = True, secrets: Any = ()
    ) -> Any:
        del request, secrets
        limit_s = deadline_s if deadline_s is not None else self.request_timeout_s * method.deadline_factor
        self.limits[method.name] = limit_s if bounded else None
        return method.answer()


async def test_every_call_has_its_own_limit() -> None:
    """CLK-02: hooks and pulls are bounded by those who ask."""
    cri = Timed()
    await cri.run_sandbox(pb.PodSandboxConfig())
    await cri.start_container("c")
    await cri.stop_container("c", 30)
    await cri.pull_image("i")
    await cri.exec_sync("c", ["x"], 5)
    assert cri.limits == {
        "RunPodSandbox": 240.0, "StartContainer": 120.0, "StopContainer": 150.0, "PullImage": None, "ExecSync": 125.0,
    }  # fmt: skip
    await cri.exec_sync("c", ["x"], 0)

    assert cri.limits["ExecSync"] is None
    await cri.close()

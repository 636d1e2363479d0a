# SPDX-License-Identifier: Apache-2.0
"""What one look at a pod takes over."""

from types import SimpleNamespace

from agent.pods.run.one_pod.observer import PodObserver
from agent.pods.runtime.observed import SeenPod, SeenSandbox
from agent.wire.cri import runtime_v1_pb2 as pb


def sandbox(sandbox_id: str, attempt: int) -> SeenSandbox:
    return SeenSandbox(id=sandbox_id, namespace="default", name="web", uid="u", attempt=attempt)


async def test_a_sandbox_made_while_the_runtime_is_asked_stays() -> None:
    """REC-1: the list is older than what the pod's own work does meanwhile."""
    old, new = sandbox("old", 0), sandbox("new", 1)

    class Runtime:
        async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
            run.saw(SeenPod((new, *run.seen.sandboxes)))
            return pb.PodSandboxStatus(id=sandbox_id)

    run = SimpleNamespace(seen=SeenPod((old,)), context=SimpleNamespace(sandboxes=Runtime()), ring=lambda: None)
    run.saw = lambda seen: setattr(run, "seen", seen)
    await PodObserver(run).merge(SeenPod((old,)))

    assert [one.id for one in run.seen.sandboxes] == ["new", "old"]

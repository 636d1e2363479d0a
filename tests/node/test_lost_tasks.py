# SPDX-License-Identifier: Apache-2.0
"""Tasks that CRI has lost: a container counts as ended, and runs. A start that loses its caller leaves one at times."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.kit.removal import RemovingRuntime
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.lab import Container, Image, Lab, Pod
from tests.node.pods import Actor, Stage, pods_daemon, say

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

STARTS = 16
# From the call to the running container, on a machine with nothing else to do.
A_START_S = 0.06
# containerd 2 clears away a start for five seconds, and lets nobody remove it meanwhile.
WITHIN_S = 30.0


@pytest.fixture
async def runtime(lab: Lab) -> AsyncIterator[RemovingRuntime]:
    containerd = Containerd(lab.endpoint)
    made = RemovingRuntime(lab.endpoint, "", containerd)
    yield made
    await made.close()
    await containerd.close()


@pytest.fixture
async def pod(lab: Lab, runtime: RemovingRuntime) -> AsyncIterator[Pod]:
    made = lab.run_pod("lost")
    yield made
    await runtime.stop_sandbox(made.id)
    await runtime.remove_sandbox(made.id)


def tasks(lab: Lab) -> str:
    return lab.containerd.ctr("tasks", "ls")


def lost(lab: Lab, pod: Pod) -> Container:
    """One that has ended, and runs once more without CRI."""
    made = pod.run(
        "main", lab.preload(Image(name="node/lost")), ["sh", "-c", "[ -e /again ] || exec touch /again; sleep 900"]
    )
    made.wait_exited()
    lab.containerd.ctr("tasks", "start", "-d", made.id)
    return made


async def test_a_container_whose_task_is_lost_is_removed(lab: Lab, pod: Pod, runtime: RemovingRuntime) -> None:
    container, plain = lost(lab, pod), CriRuntime(lab.endpoint)
    await plain.stop_container(container.id, 0)
    with pytest.raises(RuntimeCallFailed, match="cannot delete running task") as refused:
        await plain.remove_container(container.id)
    await plain.close()
    assert refused.value.code == "FAILED_PRECONDITION"

    await runtime.remove_container(container.id)

    assert await runtime.list_containers(pod.id) == []
    assert container.id not in tasks(lab)


async def test_a_sandbox_with_a_lost_task_is_removed(lab: Lab, pod: Pod, runtime: RemovingRuntime) -> None:
    container = lost(lab, pod)
    await runtime.stop_sandbox(pod.id)
    assert container.id in tasks(lab)

    await runtime.remove_sandbox(pod.id)

    assert await runtime.list_sandboxes() == []
    assert container.id not in tasks(lab)


async def test_starts_that_lose_their_caller_leave_nothing(lab: Lab, pod: Pod, runtime: RemovingRuntime) -> None:
    """Wherever in a start that was."""
    image = lab.preload(Image(name="node/lost"))
    channel = grpc.insecure_channel(lab.endpoint)
    start = channel.unary_unary(
        "/runtime.v1.RuntimeService/StartContainer",
        request_serializer=pb.StartContainerRequest.SerializeToString,
        response_deserializer=pb.StartContainerResponse.FromString,
    )
    for number in range(STARTS):
        container = pod.create(f"c{number}", image, ["sleep", "900"])
        call = start.future(pb.StartContainerRequest(container_id=container.id))
        await asyncio.sleep(A_START_S * number / STARTS)
        call.cancel()
    channel.close()

    until_s = time.monotonic() + WITHIN_S
    while left := await runtime.list_containers(pod.id):
        for one in left:
            try:
                await runtime.remove_container(one.id)
            except RuntimeCallFailed as error:
                assert time.monotonic() < until_s, error
        await asyncio.sleep(0.1)
    assert len(tasks(lab).splitlines()) == 2, "that of the sandbox alone"


@pytest.fixture
def stage(lab: Lab, short_path: Path, free_port: int) -> Iterator[Stage]:
    with pods_daemon(lab, short_path, free_port) as kepd:
        yield Stage(kepd, lab.push(Image(name="node/lost")))


def test_a_pod_ends_although_a_task_of_it_is_lost(stage: Stage, lab: Lab) -> None:
    once = Actor("once").container(stage.image, stage.out)
    once["command"] = ["sh", "-c", f"[ -e /out/once ] && sleep 900; {say('start')}"]
    stage.write([], containers=[once, Actor("app").container(stage.image, stage.out)], restartPolicy="Never")
    stage.wait(lambda: stage.lines("app"), "the other one runs")
    exited = pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_EXITED))
    asked = pb.ListContainersRequest(filter=exited)
    ((ended,),) = stage.wait(
        lambda: [listed] if (listed := lab.cri.call("ListContainers", asked).containers) else [], "one is over"
    )
    lab.containerd.ctr("tasks", "start", "-d", ended.id)

    stage.remove()
    stage.wait_gone()

    assert lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items == []
    assert ended.id not in tasks(lab)
    assert "lost_task_ended" in stage.kepd.log.read_text()

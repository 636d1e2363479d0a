# SPDX-License-Identifier: Apache-2.0
"""The CRI proxy between a scripted kubelet and a real containerd: calls in the order of a kubelet, and crashes."""

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.kubelet import Kubelet, PodPlan

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

STAY = ("sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait")
SLOW = ("sh", "-c", "trap 'sleep 1; exit 0' TERM; sleep 3600 & wait")
SLOWER = ("sh", "-c", "trap 'sleep 5; exit 0' TERM; sleep 3600 & wait")
WORK = ("sh", "-c", "sleep 0.5")
FAIL = ("sh", "-c", "sleep 0.3; exit 3")
SIDECAR = {"kepd.dev/sidecars": "side", "kepd.dev/mains": "main"}


class Node:
    """kepd with the proxy, and a kubelet that is pointed at its link."""

    def __init__(self, kepd: Kepd, lab: Lab) -> None:
        self.kepd, self.lab = kepd, lab
        self.link = kepd.folder / "run" / "cri" / "kubelet.sock"
        self.image = lab.push(Image(name="node/proxy"))
        lab.cri.pull(self.image)
        self.plans: list[PodPlan] = []
        self.kubelet = Kubelet(lab, self.link)

    def plan(self, name: str, *containers: tuple[str, tuple[str, ...]], **more: object) -> PodPlan:
        plan = PodPlan(name, containers, image=self.image, **more)  # type: ignore[arg-type]
        self.plans.append(plan)
        return plan

    def start(self, *flags: str) -> None:
        self.kepd.start("--planes", "proxy,images", *flags).wait_ready()

    def wait(self, condition: Callable[[], object], what: str, within_s: float = 30.0) -> object:
        return self.kepd.wait(condition, what, within_s)

    def holds(self) -> list[dict[str, object]]:
        return [one["status"] for one in self.kepd.objects("holds")]

    def events(self) -> list[dict[str, object]]:
        items: list[dict[str, object]] = self.kepd.json("get", "events")["items"]
        return [one for one in items if one["reportingComponent"] == "kepd/proxy"]


@pytest.fixture
def node(lab: Lab, short_path: Path, free_port: int) -> Iterator[Node]:
    config = short_path / "kubelet.yaml"
    config.write_text("serializeImagePulls: false\nregistryPullQPS: 0\n")
    extra = f"proxy: {{kubeletConfig: {config}}}\nimages: {{maxParallelPulls: 2}}\n"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
        running = Node(kepd, lab)
        running.start()
        yield running
        running.kubelet.close()
        cleaner = Kubelet(lab, lab.place.containerd_socket)
        for plan in running.plans:
            if plan.uid in running.kubelet.sandboxes:
                cleaner.sandboxes[plan.uid] = running.kubelet.sandboxes[plan.uid]
                cleaner.remove(plan)
        cleaner.close()
        assert "Traceback" not in kepd.log.read_text(), kepd.log.read_text()


def test_a_main_listed_first_waits_for_its_sidecar_and_nothing_is_left_behind(node: Node) -> None:
    """ORD-1, ORD-3, ORD-6: refused at once with the text that the pod will show, then made at the next sync."""
    plan = node.plan("order", ("main", STAY), ("side", STAY), annotations=SIDECAR)
    refused = node.kubelet.sync(plan)

    assert refused == ["main: kepd: waiting for sidecar side"]
    first = node.kubelet.spoken("CreateContainer")[0]
    assert (first.code, first.ended_s - first.began_s < 1.0) == ("UNAVAILABLE", True)
    assert node.kubelet.sync(plan) == []
    assert node.kubelet.attempts == {(plan.uid, "main"): 1, (plan.uid, "side"): 1}
    present = node.lab.cri.call("ListContainers", pb.ListContainersRequest()).containers
    names = sorted(one.metadata.name for one in present if one.pod_sandbox_id == node.kubelet.sandboxes[plan.uid])
    assert names == ["main", "side"]


def test_a_main_is_held_until_its_sidecar_says_that_it_is_ready(node: Node) -> None:
    """ORD-4, ORD-9."""
    slow = ("sh", "-c", "trap 'exit 0' TERM; sleep 1; touch /tmp/ready; sleep 3600 & wait")
    notes = {**SIDECAR, "kepd.dev/ready.side": 'exec:["test", "-e", "/tmp/ready"]'}
    plan = node.plan("ready", ("side", slow), ("main", STAY), annotations=notes)
    assert node.kubelet.sync(plan) == []
    held = node.kubelet.last("CreateContainer", "main")

    assert 0.7 < held.ended_s - held.began_s < 4.0


def test_a_sidecar_stops_after_its_main_though_both_are_asked_at_once(node: Node) -> None:
    """STO-1, STO-2, STO-3 (a): held until the main is gone, forwarded with what is left, then the sandbox."""
    plan = node.plan("stop", ("side", STAY), ("main", SLOW), annotations=SIDECAR, grace_s=8)
    assert node.kubelet.sync(plan) == []
    node.kubelet.kill_pod(plan)
    side, main = (node.kubelet.status(plan, name) for name in ("side", "main"))

    assert side.finished_at > main.finished_at
    assert (side.exit_code, main.exit_code) == (0, 0)
    stopped = node.kubelet.last("StopContainer", "side")
    assert stopped.ended_s >= node.kubelet.last("StopContainer", "main").began_s + 1.0


def test_a_hook_of_a_main_is_waited_for_as_well(node: Node) -> None:
    """STO-3 (b): side's stop comes at once, main's only after its preStop."""
    hook = ("sh", "-c", "sleep 2")
    plan = node.plan("hook", ("side", STAY), ("main", STAY), annotations=SIDECAR, grace_s=8, hooks={"main": hook})
    assert node.kubelet.sync(plan) == []
    node.kubelet.kill_pod(plan)
    side, main = (node.kubelet.status(plan, name) for name in ("side", "main"))

    assert side.finished_at > main.finished_at
    assert node.kubelet.last("StopContainer", "main").began_s - node.kubelet.last("StopContainer", "side").began_s > 1.5
    codes = {one.code for one in node.kubelet.spoken("StopContainer")}
    assert codes == {"OK"}


def test_the_first_calls_of_a_kubelet_and_its_idle_rounds(node: Node) -> None:
    """What every kubelet says at its start, then again and again; two connections, as it has them."""
    image_side = Kubelet(node.lab, node.link)
    kubelet = node.kubelet
    kubelet.call("Version", pb.VersionRequest())
    image_side.call("ImageFsInfo", pb.ImageFsInfoRequest())
    for _ in range(3):
        with contextlib.suppress(grpc.RpcError):
            kubelet.call("RuntimeConfig", pb.RuntimeConfigRequest())
    kubelet.call("Version", pb.VersionRequest(version="0.1.0"))
    kubelet.call("UpdateRuntimeConfig", pb.UpdateRuntimeConfigRequest())
    kubelet.call("Status", pb.StatusRequest())
    image_side.call("ListImages", pb.ListImagesRequest())
    ready = pb.PodSandboxFilter(state=pb.PodSandboxStateValue(state=pb.SANDBOX_READY))
    running = pb.ContainerFilter(state=pb.ContainerStateValue(state=pb.CONTAINER_RUNNING))
    for _ in range(20):
        kubelet.call("ListPodSandbox", pb.ListPodSandboxRequest())
        kubelet.call("ListContainers", pb.ListContainersRequest())
        kubelet.call("ListPodSandbox", pb.ListPodSandboxRequest(filter=ready))
        kubelet.call("ListContainers", pb.ListContainersRequest(filter=running))
        kubelet.call("Status", pb.StatusRequest())
        image_side.call("ImageFsInfo", pb.ImageFsInfoRequest())
    image_side.close()
    codes = {one.code for one in (*kubelet.said, *image_side.said) if one.method != "RuntimeConfig"}

    assert codes == {"OK"}
    assert {one.code for one in kubelet.spoken("RuntimeConfig")} <= {"OK", "UNIMPLEMENTED"}


def test_sidecars_first_with_a_blocking_hook_never_meet_the_gate(node: Node) -> None:
    """ORD-11: postStart runs without a deadline between the start of one container and the making of the next."""
    plan = node.plan("s1", ("side", STAY), ("main", STAY), annotations=SIDECAR)
    kubelet = node.kubelet
    kubelet.run_sandbox(plan)
    for name in ("side", "main"):
        for _ in range(2):
            kubelet.call("ImageStatus", pb.ImageStatusRequest(image=pb.ImageSpec(image=plan.image)))
        kubelet.create(plan, name)
        kubelet.start(plan, name)
        if name == "side":
            hook = pb.ExecSyncRequest(container_id=kubelet.ids[plan.uid, name], cmd=["sh", "-c", "sleep 0.5"])
            kubelet.call("ExecSync", hook, None, name)
    for name in ("main", "side"):
        kubelet.status(plan, name)
    created = kubelet.spoken("CreateContainer")

    assert [one.name for one in created] == ["side", "main"]
    assert all(one.ended_s - one.began_s < 1.0 for one in created)
    assert {one.code for one in kubelet.said} == {"OK"}


def test_a_newer_kubelet_that_stops_in_order_itself_loses_no_time(node: Node) -> None:
    """STO-9: main first, and only when it is gone the sidecar."""
    plan = node.plan("s3", ("side", STAY), ("main", SLOW), annotations=SIDECAR)
    assert node.kubelet.sync(plan) == []
    node.kubelet.stop(plan, "main", 8).result()
    node.kubelet.stop(plan, "side", 7).result()
    said = node.kubelet.last("StopContainer", "side")

    assert said.ended_s - said.began_s < 0.9
    assert node.holds() == []


def test_after_a_kill_the_kubelet_finds_nothing_running(node: Node) -> None:
    """PRX-42: the final check of a kubelet, and its clearing up."""
    plan = node.plan("check", ("side", STAY), ("main", SLOW), annotations=SIDECAR)
    assert node.kubelet.sync(plan) == []
    node.kubelet.kill_pod(plan)
    selector = {"io.kubernetes.pod.uid": plan.uid}
    sandboxes = node.kubelet.call(
        "ListPodSandbox", pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(label_selector=selector))
    ).items
    states = [node.kubelet.state(plan, name) for name in ("side", "main")]
    node.kubelet.remove(plan)

    assert [one.state for one in sandboxes] == [pb.SANDBOX_NOTREADY]
    assert states == [pb.CONTAINER_EXITED] * 2


def test_a_sidecar_that_is_killed_alone_is_not_held_for_long(node: Node) -> None:
    """STO-3: no evidence of a pod's end within a second."""
    plan = node.plan("alone", ("side", STAY), ("main", STAY), annotations=SIDECAR)
    assert node.kubelet.sync(plan) == []
    node.kubelet.stop(plan, "side", 30).result()
    said = node.kubelet.last("StopContainer", "side")

    assert 0.9 < said.ended_s - said.began_s < 4.0
    assert node.kubelet.state(plan, "main") == pb.CONTAINER_RUNNING


def test_the_sleep_before_a_stop_keeps_the_container_serving(node: Node) -> None:
    """SLP-1."""
    plan = node.plan("sleep", ("main", STAY), annotations={"kepd.dev/prestop-sleep.main": "4s"})
    assert node.kubelet.sync(plan) == []
    asked = node.kubelet.stop(plan, "main", 10)
    node.wait(lambda: [one for one in node.holds() if one["reason"] == "sleep"], "the sleep shows")
    asked.result()
    said = node.kubelet.last("StopContainer", "main")

    assert 3.9 < said.ended_s - said.began_s < 8.0


def test_sidecars_of_a_finished_job_are_ended_and_look_like_successes(node: Node) -> None:
    """JOB-1 to JOB-6: masked through the proxy for good, as it was for whoever asks the runtime itself."""
    deaf = ("sh", "-c", "sleep 3600 & wait")
    notes = {**SIDECAR, "kepd.dev/job-end": "success"}
    plan = node.plan("job", ("side", deaf), ("main", WORK), annotations=notes, grace_s=1)
    assert node.kubelet.sync(plan) == []
    node.wait(lambda: node.kubelet.state(plan, "side") == pb.CONTAINER_EXITED, "the sidecar is ended")
    masked = node.kubelet.status(plan, "side")
    request = pb.ContainerStatusRequest(container_id=masked.id)
    bare = node.lab.cri.call("ContainerStatus", request).status

    assert (masked.exit_code, masked.reason, masked.message) == (0, "Completed", "")
    assert (bare.exit_code, bare.reason) == (137, "Error")
    assert masked.finished_at == bare.finished_at
    assert [one["reason"] for one in node.events()] == ["SidecarsEnded"]
    node.kepd.end(signal.SIGKILL)
    node.start()
    again = node.wait(lambda: _try(lambda: node.kubelet.status(plan, "side")), "an answer")
    assert (again.exit_code, again.reason) == (0, "Completed")  # type: ignore[attr-defined]


def test_a_failed_job_keeps_its_sidecar(node: Node) -> None:
    """JOB-1: `success` means code 0; the kubelet restarts the main, and its sidecar is there."""
    notes = {**SIDECAR, "kepd.dev/job-end": "success"}
    plan = node.plan("failed", ("side", STAY), ("main", FAIL), annotations=notes)
    assert node.kubelet.sync(plan) == []
    node.wait(lambda: node.kubelet.state(plan, "main") == pb.CONTAINER_EXITED, "the main fails")
    time.sleep(0.5)

    assert node.kubelet.state(plan, "side") == pb.CONTAINER_RUNNING
    assert node.kubelet.sync(plan) == []
    assert node.kubelet.attempts[plan.uid, "main"] == 2


def test_a_main_that_crashes_is_restarted_without_any_gate(node: Node) -> None:
    """ORD-1: once a main was started, restarts pass, even while the sidecar is down."""
    plan = node.plan("crash", ("side", STAY), ("main", FAIL), annotations=SIDECAR)
    assert node.kubelet.sync(plan) == []
    node.wait(lambda: node.kubelet.state(plan, "main") == pb.CONTAINER_EXITED, "the crash")
    node.lab.cri.call("StopContainer", pb.StopContainerRequest(container_id=node.kubelet.ids[plan.uid, "side"]))
    node.kubelet.create(plan, "main")
    said = node.kubelet.last("CreateContainer", "main")

    assert (said.code, said.ended_s - said.began_s < 1.0) == ("OK", True)


def _try(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except grpc.RpcError:
        return None


def _is_done(step: Callable[[], object]) -> bool:
    return _try(lambda: [step()]) is not None


def test_kill_9_in_the_middle_of_a_stop_keeps_the_order_and_restarts_nothing(node: Node) -> None:
    """REC-1, REC-5: the held call fails as if the runtime had gone; asked again, it is judged by the same rules."""
    plan = node.plan("kill", ("side", STAY), ("main", SLOWER), annotations=SIDECAR, grace_s=20)
    assert node.kubelet.sync(plan) == []
    before = {name: node.kubelet.status(plan, name).started_at for name in ("side", "main")}
    # The stop of the main is the evidence that the pod ends; without it the hold would last a second.
    asked = [node.kubelet.stop(plan, name, 20) for name in ("main", "side")]
    node.wait(lambda: node.holds(), "side is held")
    node.kepd.end(signal.SIGKILL)
    for one in asked:
        with pytest.raises(grpc.RpcError) as failed:
            one.result()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (
        node.lab.cri.call(
            "ContainerStatus", pb.ContainerStatusRequest(container_id=node.kubelet.ids[plan.uid, "side"])
        ).status.state
        == pb.CONTAINER_RUNNING
    )

    node.start()
    node.wait(lambda: _try(lambda: node.kubelet.status(plan, "main")), "the kubelet is connected again")
    assert {name: node.kubelet.status(plan, name).started_at for name in ("side", "main")} == before
    node.kubelet.kill_pod(plan)
    side, main = (node.kubelet.status(plan, name) for name in ("side", "main"))
    assert side.finished_at > main.finished_at
    assert node.kubelet.attempts == {(plan.uid, "main"): 1, (plan.uid, "side"): 1}


def test_a_restart_of_containerd_in_the_middle_of_a_stop_keeps_the_order(node: Node) -> None:
    """PRX-52: the held call fails as all calls do; what went on meanwhile is known from the lists."""
    plan = node.plan("away", ("side", STAY), ("main", SLOWER), annotations=SIDECAR, grace_s=20)
    assert node.kubelet.sync(plan) == []
    # The stop of the main is the evidence that the pod ends; without it the hold would last a second.
    asked = [node.kubelet.stop(plan, name, 20) for name in ("main", "side")]
    node.wait(lambda: node.holds(), "side is held")
    node.lab.containerd.restart()
    node.lab.cri.reconnect()
    for one in asked:
        with pytest.raises(grpc.RpcError) as failed:
            one.result()
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert node.holds() == []
    node.wait(lambda: _try(lambda: node.kubelet.call("Version", pb.VersionRequest())), "connected again")
    node.kubelet.kill_pod(plan)
    side, main = (node.kubelet.status(plan, name) for name in ("side", "main"))

    assert side.finished_at > main.finished_at
    assert node.kubelet.attempts == {(plan.uid, "main"): 1, (plan.uid, "side"): 1}


def test_kill_9_in_the_middle_of_a_start_forgets_no_gate(node: Node) -> None:
    """REC-1, ORD-3: the rules are those of before, from the runtime's own lists."""
    plan = node.plan("kill-start", ("main", STAY), ("side", STAY), annotations=SIDECAR)
    node.kubelet.run_sandbox(plan)
    node.kepd.end(signal.SIGKILL)
    node.start()
    node.wait(lambda: _try(lambda: node.kubelet.call("Version", pb.VersionRequest())), "the kubelet is connected again")

    assert node.kubelet.sync(plan) == ["main: kepd: waiting for sidecar side"]
    assert node.kubelet.sync(plan) == []


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_at_random_points_ends_in_the_same_state(node: Node, seed: int) -> None:
    """REC-1 to REC-5: starts, a Job and stops, each cut off somewhere; the kubelet goes on as kubelets do."""
    chance = random.Random(seed)
    notes = {**SIDECAR, "kepd.dev/job-end": "success"}
    serving = node.plan("cut", ("main", SLOW), ("side", STAY), annotations=SIDECAR, grace_s=20)
    job = node.plan("cut-job", ("side", STAY), ("main", WORK), annotations=notes, grace_s=2)
    for step in (lambda: sync_until_done(node, serving, job), lambda: node.kubelet.kill_pod(serving)):
        working = threading.Thread(target=_try, args=(step,))
        working.start()
        time.sleep(chance.uniform(0.0, 1.2))
        node.kepd.end(signal.SIGKILL)
        node.start()
        working.join()
        node.wait(lambda: _try(lambda: node.kubelet.call("Version", pb.VersionRequest())), "connected again")
        # A runtime may hold the name of a start that was cut off for a while.
        node.wait(partial(_is_done, step), "done by a kubelet that tries again")
    side, main = (node.kubelet.status(serving, name) for name in ("side", "main"))

    assert side.finished_at > main.finished_at
    node.wait(lambda: node.kubelet.state(job, "side") == pb.CONTAINER_EXITED, "the Job's sidecar is ended")
    ended = [node.kubelet.status(job, name) for name in ("side", "main")]
    assert [(one.exit_code, one.reason) for one in ended] == [(0, "Completed")] * 2


def sync_until_done(node: Node, *plans: PodPlan) -> None:
    """As a kubelet: what is missing is made, what is there is left alone, what has ended well is not made again. A
    start that was cut off is an end that went wrong."""

    def is_well(plan: PodPlan, name: str, state: int) -> bool:
        is_over = state == pb.CONTAINER_EXITED and node.kubelet.status(plan, name).exit_code == 0
        return is_over or state == pb.CONTAINER_RUNNING

    for plan in plans:
        for _ in range(5):
            listed = node.kubelet.adopt(plan)
            if {"main", "side"} <= {name for name, state in listed.items() if is_well(plan, name, state)}:
                break
            node.kubelet.sync(plan)


def test_a_pod_without_annotations_passes_untouched(node: Node) -> None:
    """NOH-8."""
    plan = node.plan("plain", ("main", STAY), ("side", STAY))
    assert node.kubelet.sync(plan) == []
    node.kubelet.kill_pod(plan)

    assert all(one.ended_s - one.began_s < 3.0 for one in node.kubelet.spoken("StopContainer"))
    assert node.holds() == []
    assert node.events() == []


def test_a_wrong_annotation_is_told_once_and_has_no_effect(node: Node) -> None:
    """PRX-53: the event is InvalidAnnotation."""
    notes = {"kepd.dev/sidecars": "Side Car!", "kepd.dev/mains": "main", "kepd.dev/prestop-sleep.main": "soon"}
    plan = node.plan("wrong", ("main", STAY), annotations=notes)
    assert node.kubelet.sync(plan) == []
    node.kubelet.stop(plan, "main", 10).result()
    told = [str(one["message"]) for one in node.events() if one["reason"] == "InvalidAnnotation"]

    assert sorted(text.partition(":")[0] for text in told) == ["kepd.dev/prestop-sleep.main", "kepd.dev/sidecars"]

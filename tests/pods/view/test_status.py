# SPDX-License-Identifier: Apache-2.0
"""Phases, conditions and the words for lists."""

from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.pods.fields import Resources
from agent.model.pods.state import PodState, with_since
from agent.pods.plan.remembered import Memory, PodOutcome
from agent.pods.runtime.observed import Instance, SeenPod, Stage
from agent.pods.runtime.qos import cpu_quota, cpu_shares, oom_score, pod_needs, qos_class
from agent.pods.view.status import Look, pod_status
from tests.pods.pods import Runs, World, container, make_pod


def shown(world: World) -> PodState:
    plan = world.settle()
    return pod_status(Look(pod=world.pod, seen=world.seen, memory=world.memory, waiting=plan.waiting))


def ready(world: World, *names: str) -> World:
    for name in names:
        world.memory = world.memory.changed(name, lambda one: replace(one, is_ready=True))
    return world


POLICIES = ("Always", "OnFailure", "Never")


@pytest.mark.parametrize(
    ("behaves", "phases"),
    [
        ({"i": [Runs()]}, ("Pending", "Pending", "Pending")),
        ({"i": [Runs(0, 1)]}, ("Pending", "Pending", "Failed")),
        ({}, ("Running", "Running", "Running")),
        ({"a": [Runs(0, 1)]}, ("Running", "Running", "Running")),
        ({"a": [Runs(0, 0)], "b": [Runs(0, 0)]}, ("Running", "Succeeded", "Succeeded")),
        ({"a": [Runs(0, 0)], "b": [Runs(0, 1)]}, ("Running", "Running", "Failed")),
        ({"a": [Runs(0, 1)], "b": [Runs(0, 1)]}, ("Running", "Running", "Failed")),
        ({"s": [Runs(0, 137)]}, ("Running", "Running", "Running")),
    ],
)
def test_the_phase_follows_from_the_table(behaves: dict, phases: tuple[str, ...]) -> None:
    """Section 3, row by row; after a second, with everything of that second done."""
    behaves = {"i": [Runs(0, 0)], **behaves}
    found = []
    for policy in POLICIES:
        world = World(make_pod(("a", "b"), ("i", "+s"), restartPolicy=policy), behaves).run(1)
        found.append(shown(world).phase)

    assert tuple(found) == phases


def _ready(state: PodState) -> tuple[int, int]:
    counted = [one for one in state.containers if one.kind != "init"]
    return sum(one.is_ready for one in counted), len(counted)


def test_a_sidecar_that_is_not_started_keeps_the_pod_pending() -> None:
    sidecar = container("s", restartPolicy="Always", startupProbe={"exec": {"command": ["true"]}})
    world = World(make_pod(("a",), (sidecar,)), started=lambda name: name != "s")
    state = shown(world)

    assert (state.phase, state.status, _ready(state)) == ("Pending", "Init:0/1", (0, 2))
    assert [(one.type, one.is_true, one.message) for one in state.conditions][1] == (
        "Initialized", False, "containers with incomplete status: [s]",
    )  # fmt: skip


def test_a_ready_pod_is_shown_ready() -> None:
    """STS-01, PRB-14."""
    world = ready(World(make_pod(("a",), ("i", "+s")), {"i": [Runs(1)]}).run(5), "a", "s")
    state = shown(world)

    assert (state.phase, state.status, _ready(state), state.ip) == ("Running", "Running", (2, 2), "192.0.2.2")
    assert all(one.is_true for one in state.conditions)
    assert [one.state for one in state.containers] == ["Terminated", "Running", "Running"]


def test_who_is_not_ready_is_named() -> None:
    """STS-02."""
    world = ready(World(make_pod(("a", "b"), ("+s",))).run(1), "s")
    condition = shown(world).conditions[3]

    assert (condition.reason, condition.message) == (
        "ContainersNotReady",
        "containers with unready status: [a b]",
    )


def test_a_readiness_gate_nobody_can_open_keeps_the_pod_unready() -> None:
    world = World(make_pod(("a",), readinessGates=[{"conditionType": "x/y"}]))
    world.settle()
    conditions = {one.type: one for one in shown(ready(world, "a")).conditions}

    assert (conditions["ContainersReady"].is_true, conditions["Ready"].reason) == (True, "ReadinessGatesNotReady")


def test_back_off_is_a_state_of_its_own() -> None:
    """RST-07, STS-05."""
    world = World(make_pod(("a", "b")), {"a": [Runs(1, 3)]}).run(3)
    (a, _) = shown(world).containers

    assert (a.state, a.reason, a.restart_count) == ("Waiting", "CrashLoopBackOff", 1)
    assert a.message == "back-off 10s restarting failed container=a pod=web_default(u1)"
    assert a.last is not None
    assert (a.last.exit_code, a.last.reason) == (3, "Error")


def test_an_image_that_cannot_be_had_is_a_state_of_its_own() -> None:
    world = World(make_pod(("a", "b")), fails={"a": "ImagePullBackOff"})

    assert (shown(world).status, shown(world).phase) == ("ImagePullBackOff", "Pending")


def test_a_condition_says_since_when_it_is_so() -> None:
    """NP-14: what did not change keeps its time."""
    world = World(make_pod())
    first = with_since(shown(world), None, 10.0)
    then = with_since(shown(ready(world, *world.pod.by_name)), first, 20.0)
    last = with_since(shown(world), then, 30.0)

    assert {one.since_s for one in first.conditions} == {10.0}
    assert {one.type: one.since_s for one in then.conditions} == {
        "PodReadyToStartContainers": 10.0, "Initialized": 10.0, "Ready": 20.0, "ContainersReady": 20.0,
        "PodScheduled": 10.0,
    }  # fmt: skip
    assert last == then


def test_resources_are_what_a_container_has_not_what_it_shall_have() -> None:
    """NP-14: while a resize waits."""
    world = World(make_pod(["a"]))
    world.settle()
    had = Resources(limits={"cpu": "2"})
    world.memory = world.memory.changed("a", lambda one: replace(one, resources=had))

    assert shown(world).containers[0].resources == Resources(limits={"cpu": "2"}, requests={"cpu": "2"})


def test_what_is_over_is_shown_so_for_ever() -> None:
    """CMP-05, CMP-06: also when nothing of it is left."""
    memory = Memory(outcome=PodOutcome(phase="Failed", reason="DeadlineExceeded", message="too long"))
    state = pod_status(Look(pod=make_pod(), seen=World(make_pod()).seen, memory=memory))

    assert (state.phase, state.status, state.message) == ("Failed", "DeadlineExceeded", "too long")
    assert state.conditions[2].reason == "PodFailed"


def limits(cpu: object, memory: object) -> dict:
    return {"limits": {"cpu": cpu, "memory": memory}}


class TestResources:
    def test_shares_and_quota(self) -> None:
        """RES-01."""
        assert [cpu_shares(milli) for milli in (0, 1, 100, 1500, 10**9)] == [2, 2, 102, 1536, 262144]
        assert [cpu_quota(milli) for milli in (0, 1, 500)] == [0, 1000, 50000]

    @pytest.mark.parametrize(
        ("resources", "quality"),
        [
            ([{}, {}], "BestEffort"),
            ([limits(1, "1Gi"), limits("500m", "1G")], "Guaranteed"),
            ([limits(1, "1Gi"), {}], "Burstable"),
            ([{**limits(1, "1Gi"), "requests": {"cpu": "0.5"}}], "Burstable"),
            ([{"requests": {"memory": "1Mi"}}], "Burstable"),
        ],
    )
    def test_quality_of_service(self, resources: list, quality: str) -> None:
        """RES-02."""
        pod = make_pod([container(f"c{index}", resources=one) for index, one in enumerate(resources)])

        assert qos_class(pod) == quality

    def test_pod_level_resources_win(self) -> None:
        """KEP-2837."""
        assert qos_class(make_pod(("a",), resources=limits(1, "1Gi"))) == "Guaranteed"

    def test_a_sidecar_is_not_killed_before_the_mains(self) -> None:
        """RES-03: k/k#111356."""
        sidecar = container("s", restartPolicy="Always", resources={"requests": {"memory": "1Mi"}})
        main = container("a", resources={"requests": {"memory": "512Mi"}})
        pod = make_pod((main,), (sidecar,))

        assert [oom_score(pod, one, 1 << 30) for one in pod.containers] == [500, 500]
        assert oom_score(make_pod(), make_pod().containers[0], 1 << 30) == 1000

    def test_the_pod_gets_what_the_hungriest_moment_needs(self) -> None:
        """RES-04."""
        inits = (
            container("i", resources=limits(3, "1Gi")),
            container("s", restartPolicy="Always", resources=limits(1, "1Gi")),
        )
        pod = make_pod((container("a", resources=limits(1, "4Gi")),), inits)
        needs = pod_needs(pod)

        assert (needs.cpu_request, needs.memory_limit) == (3000, 5 << 30)
        assert pod_needs(make_pod((container("a", resources=limits(1, "4Gi")), "b"))).cpu_limit == 0

    def test_what_the_runtime_class_takes_comes_on_top(self) -> None:
        """RES-04: of what is limited only, and not for the containers themselves."""
        overhead = {"cpu": "250m", "memory": "64Mi"}
        needs = pod_needs(make_pod((container("a", resources=limits(1, "1Gi")),), overhead=overhead))
        free = pod_needs(make_pod(("a",), overhead=overhead))

        assert (needs.cpu_request, needs.cpu_limit) == (1250, 1250)
        assert (needs.memory_limit, needs.memory_request) == ((1 << 30) + (64 << 20),) * 2
        assert (free.cpu_request, free.cpu_limit, free.memory_limit) == (250, 0, 0)


def test_last_words_share_what_a_pod_may_have() -> None:
    """TMS-01: 12 KiB over all containers; lines stay lines, and nothing else that a terminal would act on."""
    said = "one\ntwo\x1b[2J" + "x" * 8000
    ended = Instance(id="c1", name="a", sandbox_id="s1", stage=Stage.ENDED, exit_code=1, message=said)
    alone = pod_status(Look(pod=make_pod(["a"], restartPolicy="Never"), seen=SeenPod((), (ended,)), memory=Memory()))
    four = pod_status(Look(pod=make_pod("abcd", restartPolicy="Never"), seen=SeenPod((), (ended,)), memory=Memory()))

    assert alone.containers[0].message.startswith("one\ntwo?[2Jxxx")
    assert [len(one.containers[0].message) for one in (alone, four)] == [len(said), 3072]


RULE = {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]}


@pytest.mark.parametrize(
    ("policy", "own", "code", "phase"),
    [
        ("Never", {"restartPolicy": "Never", **RULE}, 42, "Running"),
        ("Never", {"restartPolicy": "Never", **RULE}, 1, "Failed"),
        ("Never", {"restartPolicy": "Never", **RULE}, 0, "Succeeded"),
        ("Never", {"restartPolicy": "OnFailure"}, 1, "Running"),
        ("Never", {"restartPolicy": "Always"}, 0, "Running"),
        ("Always", {"restartPolicy": "Never"}, 1, "Failed"),
        ("Always", {"restartPolicy": "OnFailure"}, 0, "Succeeded"),
        ("OnFailure", {"restartPolicy": "Never"}, 1, "Failed"),
        ("OnFailure", {}, 1, "Running"),
        ("Never", {}, 1, "Failed"),
    ],
)
def test_a_phase_is_final_only_where_no_container_starts_again(policy: str, own: Any, code: int, phase: str) -> None:
    """NP-12: its own policy and rules count before the pod's, so no phase leaves Failed."""
    pod = make_pod([container("a", **own)], restartPolicy=policy)
    ended = Instance(id="c1", name="a", sandbox_id="s1", stage=Stage.ENDED, exit_code=code)

    assert pod_status(Look(pod=pod, seen=SeenPod((), (ended,)), memory=Memory())).phase == phase


@pytest.mark.parametrize(("own", "code", "phase"), [(RULE, 42, "Pending"), (RULE, 1, "Failed"), ({}, 1, "Failed")])
def test_a_failed_init_container_is_what_a_failed_pod_shows(own: Any, code: int, phase: str) -> None:
    """NP-12: and not PodInitializing, which says that it goes on."""
    setup = container("setup", **({"restartPolicy": "Never", **own} if own else {}))
    pod = make_pod(["a"], [setup], restartPolicy="Never")
    ended = Instance(id="c1", name="setup", sandbox_id="s1", stage=Stage.ENDED, exit_code=code)
    found = pod_status(Look(pod=pod, seen=SeenPod((), (ended,)), memory=Memory()))

    assert (found.phase, found.status) == (phase, "Init:Error")

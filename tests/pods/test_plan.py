# SPDX-License-Identifier: Apache-2.0
from agent.model.pod import ContainerSpec, PodSpec, static_uid
from agent.pods.plan import (
    CreateContainer,
    MakeSandbox,
    RemoveSandbox,
    SeenContainer,
    SeenSandbox,
    StartContainer,
    plan_pods,
)


def pod(uid: str, *names: str) -> PodSpec:
    containers = tuple(ContainerSpec(name=name, image="i") for name in names)
    return PodSpec(namespace="default", name=uid, uid=uid, containers=containers)


WEB = pod("web", "a", "b")


def test_nothing_to_do_is_an_empty_plan() -> None:
    """STY-02."""
    running = (SeenContainer("1", "a", is_created_only=False), SeenContainer("2", "b", is_created_only=False))

    assert plan_pods([WEB], [SeenSandbox("s", "web", is_ready=True, containers=running)]) == ()
    assert plan_pods([], []) == ()


def test_each_look_gives_the_next_step() -> None:
    empty = SeenSandbox("s", "web", is_ready=True)
    created = SeenSandbox("s", "web", is_ready=True, containers=(SeenContainer("1", "a", is_created_only=True),))
    started = SeenSandbox("s", "web", is_ready=True, containers=(SeenContainer("1", "a", is_created_only=False),))

    assert plan_pods([WEB], []) == (MakeSandbox(WEB),)
    assert plan_pods([WEB], [empty]) == (CreateContainer(WEB, WEB.containers[0], "s"),)
    assert plan_pods([WEB], [created]) == (StartContainer("1", WEB),)
    assert plan_pods([WEB], [started]) == (CreateContainer(WEB, WEB.containers[1], "s"),)


def test_what_is_not_wanted_dead_or_double_is_removed_first() -> None:
    seen = [
        SeenSandbox("old", "gone", is_ready=True),
        SeenSandbox("dead", "web", is_ready=False),
        SeenSandbox("s", "web", is_ready=True),
        SeenSandbox("twin", "web", is_ready=True),
    ]

    assert plan_pods([WEB], seen)[:3] == (RemoveSandbox("old"), RemoveSandbox("dead"), RemoveSandbox("twin"))


def test_a_plan_reads_as_one_line_per_step() -> None:
    assert str(MakeSandbox(WEB)) == "make sandbox of web_default(web)"


def test_the_identity_of_a_file_pod_is_stable_and_depends_on_content_node_and_path() -> None:
    """IDN-02: a golden value, because a new version must not restart pods."""
    assert static_uid("x", "n", "p") == "1e01eace8f89f8a3afef77c8923d98f1"
    assert (
        len({static_uid(*given) for given in [("x", "n", "p"), ("y", "n", "p"), ("x", "m", "p"), ("x", "n", "q")]}) == 4
    )

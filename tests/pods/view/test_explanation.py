# SPDX-License-Identifier: Apache-2.0
"""CL-9: `explain pod` says how containers ended, in the runtime's words, and what comes next."""

from typing import Any

import pytest
from msgspec.structs import replace

from agent.cli.commands.objects.explain import explained_head
from agent.model.pods.state import PodState
from agent.pods.view.explanation import container_lines, cpu_lines
from agent.wire.kepd.v1 import pod_pb2
from agent.wire.kepd.v1.reason_pb2 import Reason
from tests.pods.pods import Runs, World, container, make_pod
from tests.pods.view.test_status import shown


def explained(world: World, state: PodState | None = None) -> list[str]:
    waiting = world.plan().waiting
    state = state or shown(world)
    return list(container_lines(state, waiting, world.pod.spec.restart_policy, world.now_s, world.now_s))


def test_a_crashing_container_shows_its_end_and_when_it_is_tried_next() -> None:
    world = World(make_pod(("app",)), {"app": [Runs(2, 3)]}).run(5)
    state = shown(world)
    ended = replace(state.containers[0].last, started_at_s=1.0, finished_at_s=3.0, message="no database")
    state = replace(state, containers=(replace(state.containers[0], last=ended),))
    lines = explained(world, state)

    assert lines[0].startswith("app: CrashLoopBackOff: back-off 10s restarting failed container=app")
    assert lines[1] == "app: ended 3 s ago with exit code 3 (Error), after 2.0 s: no database"
    assert lines[2] == "app: next it is started again, in 9 s, at 00:00:15 UTC"


def test_the_last_words_are_shown_on_one_line_and_cut_in_front() -> None:
    state = shown(World(make_pod(("app",), restartPolicy="Never"), {"app": [Runs(1, 1)]}).run(3))
    long = replace(state.containers[0], message="x" * 500 + "\nno \x1bdatabase\n")
    world = World(make_pod(("app",), restartPolicy="Never"))
    lines = list(container_lines(replace(state, containers=(long,)), (), "Never", world.now_s, 4.0))

    assert "no ?database" in lines[0]
    assert "\n" not in lines[0]
    assert len(lines[0]) < 500


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "All its containers have succeeded; it is not tried again, for restartPolicy is Never"),
        (4, "The pod has failed with app (4); it is not tried again, for restartPolicy is Never"),
    ],
)
def test_a_job_pod_that_has_ended_says_how_and_that_nothing_follows(code: int, line: str) -> None:
    world = World(make_pod(("app",), restartPolicy="Never"), {"app": [Runs(1, code)]}).run(3)
    lines = explained(world)

    assert lines[-1] == line
    assert f"with exit code {code}" in lines[0]


def test_a_container_that_stays_ended_beside_others_says_why() -> None:
    world = World(make_pod(("a", "b"), restartPolicy="OnFailure"), {"a": [Runs(1, 0)]}).run(3)

    assert explained(world)[-1] == "a: it is not started again: restartPolicy is OnFailure"


@pytest.mark.parametrize(
    ("answer", "head"),
    [
        ({"phase": "Failed", "status": "Error"}, "Error; it has ended, and nothing more happens to it"),
        ({"phase": "Running", "status": "Running"}, "Running; it is well and waits for nothing"),
        (
            {"phase": "Running", "status": "CrashLoopBackOff", "reasons": [Reason(cause="it fails", words="no port")]},
            "CrashLoopBackOff: it fails: no port",
        ),
    ],
)
def test_what_has_ended_does_not_wait_for_nothing(answer: dict[str, Any], head: str) -> None:
    assert [*explained_head("default/web", pod_pb2.ExplainPodResponse(**answer))] == [f"POD default/web  {head}"]


def test_volumes_and_named_ports_are_told_without_their_content() -> None:
    app = container(
        "app",
        volumeMounts=[{"name": "v", "mountPath": "/v", "readOnly": True}, {"name": "d", "mountPath": "/d"}],
        ports=[{"name": "http", "containerPort": 80}, {"containerPort": 81}],
    )
    volumes = [
        {"name": "v", "secret": {"secretName": "keys"}},
        {"name": "d"},
        {"name": "h", "hostPath": {"path": "/srv"}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
    ]
    state = shown(World(make_pod((app,), volumes=volumes)))
    told = [(one.name, one.source, one.mounts) for one in state.volumes]

    assert told == [
        ("v", "secret keys", ("app:/v (ro)",)),
        ("d", "emptyDir", ("app:/d",)),
        ("h", "hostPath /srv", ()),
        ("m", "emptyDir in Memory", ()),
    ]
    assert [(one.name, one.port) for one in state.ports] == [("http", 80)]


def test_a_limit_of_cpu_is_told_with_whether_the_program_learns_of_it() -> None:
    limited = {"resources": {"limits": {"cpu": "500m"}}}
    by_field = {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    mains = (
        container("plain", **limited), container("told", **limited, env=[by_field]),
        container("go", **limited, env=[{"name": "GOMAXPROCS", "value": "1"}]), container("free"),
    )  # fmt: skip
    pod = make_pod(mains)
    lines = list(cpu_lines(pod, 4))

    assert lines[0].startswith("plain: may use 500m CPU, while a program that counts processors finds 4; Go 1.25")
    assert lines[1:] == [
        "told: may use 500m CPU, as CPUS tells it",
        "go: may use 500m CPU, as GOMAXPROCS tells it",
    ]
    assert len(list(cpu_lines(make_pod((container("all", resources={"limits": {"cpu": 4}}),)), 4))) == 0

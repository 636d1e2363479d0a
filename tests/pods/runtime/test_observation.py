# SPDX-License-Identifier: Apache-2.0
"""What the runtime tells of containers, on the clock that decisions are made by."""

import pytest

from agent.model.pods.container_fields import Probe
from agent.pods.plan.probe import is_delayed
from agent.pods.plan.restart import BackOff, RestartCurve
from agent.pods.runtime.names import INSTANCE, UID
from agent.pods.runtime.observed import Instance, Stage, seen_pods, with_status
from agent.wire.cri import runtime_v1_pb2 as pb

NOW_S, WALL_S = 1000.0, 1_800_000_000.0
HOUR_S = 3600.0


def status(started_s: float, finished_s: float = 0.0) -> pb.ContainerStatus:
    """Of a container whose moments are told in wall time."""
    state = pb.CONTAINER_EXITED if finished_s else pb.CONTAINER_RUNNING
    return pb.ContainerStatus(state=state, started_at=int(started_s * 1e9), finished_at=int(finished_s * 1e9))


def listed() -> Instance:
    return Instance(id="c1", name="app", sandbox_id="s1", stage=Stage.UNKNOWN)


def test_moments_are_told_on_the_clock_of_decisions() -> None:
    found = with_status(listed(), status(WALL_S - 60, WALL_S - 10), NOW_S, WALL_S)

    assert (found.started_s, found.finished_s) == (pytest.approx(940.0), pytest.approx(990.0))
    assert with_status(listed(), status(WALL_S - 60), NOW_S, WALL_S).finished_s == 0.0


def test_a_clock_that_was_set_back_freezes_neither_probes_nor_restarts() -> None:
    """FP-17: what the runtime noted by the earlier clock lies in the future."""
    wall_s = WALL_S - HOUR_S
    running = with_status(listed(), status(WALL_S - 60), NOW_S, wall_s)
    ended = with_status(listed(), status(WALL_S - 60, WALL_S - 10), NOW_S, wall_s)

    assert not is_delayed(Probe(), running.started_s, NOW_S)
    assert BackOff().due_s(ended.finished_s, RestartCurve()) <= NOW_S


def test_a_runtime_whose_clock_is_behind_takes_no_back_off_away() -> None:
    """What it started an hour "before" kepd asked for it has ended no earlier than that."""
    ended = with_status(listed(), status(WALL_S - HOUR_S, WALL_S - HOUR_S + 1), NOW_S, WALL_S)
    backoff, dues = BackOff(), []
    for _ in range(4):
        backoff = backoff.started(NOW_S, ended.finished_s)
        dues.append(backoff.due_s(ended.finished_s, RestartCurve()) - NOW_S)

    assert dues == [10.0, 20.0, 40.0, 80.0]


def test_a_moment_that_is_known_does_not_move_with_the_clock() -> None:
    """FP-17: or a delay would begin anew at each look."""
    known = with_status(listed(), status(WALL_S - 60), NOW_S, WALL_S)
    again = with_status(known, status(WALL_S - 60), NOW_S + 5, WALL_S + 5 - HOUR_S)
    ended = with_status(again, status(WALL_S - 60, WALL_S - HOUR_S + 6), NOW_S + 8, WALL_S + 8 - HOUR_S)

    assert again.started_s == ended.started_s == known.started_s
    assert ended.finished_s == pytest.approx(NOW_S + 6)


def test_what_a_list_names_twice_is_there_once() -> None:
    """A runtime did so, and its healthy containers were ended as doubles."""
    sandbox = pb.PodSandbox(id="s1", labels={UID: "u1"}, annotations={INSTANCE: "i"}, state=pb.SANDBOX_READY)
    container = pb.Container(id="c1", pod_sandbox_id="s1", state=pb.CONTAINER_RUNNING)
    (found,) = seen_pods([sandbox, sandbox], [container, container], "i", 0.0).values()

    assert [one.id for one in found.sandboxes] == ["s1"]
    assert [one.id for one in found.instances] == ["c1"]

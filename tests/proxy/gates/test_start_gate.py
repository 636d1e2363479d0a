# SPDX-License-Identifier: Apache-2.0
"""The start gate, as values."""

import pytest

from agent.proxy.gates.start import OPENS_S, Go, HeldStart, StartRefused, judge_create, judge_start
from tests.proxy.pods import CREATED, EXITED, RUNNING, container, sandbox

BOTH = {"sidecars": "a,b", "mains": "main,other"}
READY = {**BOTH, "ready.b": "tcp:80"}


def create(pod, name="main", now_s=1.0, arrived_s=1.0, deadline_s=121.0):
    return judge_create(pod, name, now_s, arrived_s, deadline_s)


def test_a_main_is_refused_while_a_sidecar_was_never_made() -> None:
    """ORD-3."""
    assert create(sandbox(BOTH)) == StartRefused("a")
    assert create(sandbox(BOTH, container("a"))) == StartRefused("b")
    assert create(sandbox(BOTH, container("a"), container("b"))) == Go()
    assert StartRefused("b").text == "kepd: waiting for sidecar b"


def test_without_mains_there_is_no_gate() -> None:
    """ORD-2: an init container must not wait for sidecars that come after it."""
    assert create(sandbox({"sidecars": "a"}), "init") == Go()


@pytest.mark.parametrize("name", ["init", "debugger"])
def test_containers_that_are_neither_are_never_refused(name: str) -> None:
    """NOH-4."""
    assert create(sandbox(BOTH), name) == Go()


def test_restarts_are_never_gated() -> None:
    """ORD-1: not even while no sidecar runs."""
    pod = sandbox(BOTH, container("main", EXITED, code=1), container("a", EXITED), container("b", EXITED))

    assert create(pod) == Go()
    assert judge_start(pod, "main", 1.0, 1.0, None) == Go()


def test_sidecars_are_made_in_the_order_of_the_list_and_never_held() -> None:
    """ORD-10, NOH-4."""
    assert create(sandbox(BOTH), "a") == Go()
    assert create(sandbox(BOTH), "b") == StartRefused("a")
    assert create(sandbox(READY, container("a", is_ready=False)), "b") == Go()


def test_a_main_waits_for_readiness_within_its_own_time_and_the_kubelet_s() -> None:
    """ORD-4: the earlier of start-timeout and 15 s before the deadline."""
    pod = sandbox(READY, container("a"), container("b", is_ready=False))

    assert create(pod) == HeldStart(("b",), 61.0)
    assert create(pod, deadline_s=40.0) == HeldStart(("b",), 25.0)
    assert create(pod, deadline_s=None) == HeldStart(("b",), 61.0)
    assert create(pod, now_s=61.0) == Go("b")
    pod.containers["b-0"].is_ready = True
    assert create(pod) == Go()


def test_a_strict_pod_is_refused_where_an_open_one_passes() -> None:
    """ORD-4, ORD-7."""
    pod = sandbox({**READY, "start-policy": "strict"}, container("a"), container("b", is_ready=False))

    assert create(pod, now_s=61.0) == StartRefused("b")
    assert create(sandbox({**BOTH, "start-policy": "strict"}), now_s=10 * OPENS_S) == StartRefused("a")


def test_an_open_pod_is_refused_for_five_minutes_at_most() -> None:
    """ORD-7: a typo in the list, or an image that is not there."""
    assert create(sandbox(BOTH), now_s=OPENS_S - 0.1) == StartRefused("a")
    assert create(sandbox(BOTH), now_s=OPENS_S) == Go("a")
    assert create(sandbox(BOTH), "b", now_s=OPENS_S) == Go("a")


@pytest.mark.parametrize("state", [EXITED, CREATED])
def test_a_sidecar_that_does_not_run_ends_the_wait(state) -> None:
    """ORD-5: the kubelet that has to restart it waits for this very call."""
    pod = sandbox(READY, container("a", state), container("b", is_ready=False))

    assert create(pod) == StartRefused("a")
    assert judge_start(pod, "main", 1.0, 1.0, 121.0) == Go()


def test_the_highest_attempt_of_a_sidecar_counts() -> None:
    """REC-2."""
    pod = sandbox(BOTH, container("a", EXITED), container("a", RUNNING, attempt=1), container("b"))

    assert create(pod) == Go()


def test_a_start_is_held_and_never_refused() -> None:
    """ORD-6: the second check."""
    pod = sandbox(READY, container("a"), container("b", is_ready=False), container("main", CREATED))

    assert judge_start(pod, "main", 1.0, 1.0, 121.0) == HeldStart(("b",), 61.0)
    assert judge_start(pod, "main", 61.0, 1.0, 121.0) == Go("b")
    assert judge_start(pod, "a", 1.0, 1.0, 121.0) == Go()


def test_a_sandbox_that_ends_has_no_gates() -> None:
    """ORD-8."""
    pod = sandbox({**BOTH, "start-policy": "strict"})
    pod.is_ending = True

    assert create(pod) == Go()

# SPDX-License-Identifier: Apache-2.0
"""The stop gate, as values; and what holds for every pod whatever happens to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.host.joints.proxy_pods import stop_order
from agent.proxy.gates.ledger import LedgerContainer, Sandbox
from agent.proxy.gates.stop import Forward, HeldStop, StopCall, StopRules, judge_stop, note_evidence
from tests.proxy.pods import EXITED, container, sandbox

ORDER = {"sidecars": "a,b", "mains": "main"}


def wish(one: LedgerContainer, timeout_s: int = 8, arrived_s: float = 0.0) -> StopCall:
    return StopCall(one, timeout_s, arrived_s, arrived_s, arrived_s + timeout_s - 2)


def judge(pod: Sandbox, name: str, now_s: float, timeout_s: int = 8, *, assumes: bool = True):
    one = pod.current(name)
    assert one is not None
    return judge_stop(pod, wish(one, timeout_s), now_s, StopRules(stop_order, assumes))


def ending(notes=ORDER, **hooks) -> Sandbox:
    """A pod whose kill is known."""
    pod = sandbox(notes, container("a", **hooks), container("b"), container("main", **hooks))
    pod.evidence_s = 0.0
    return pod


def test_a_sidecar_waits_for_mains_and_later_sidecars() -> None:
    """STO-1, STO-4."""
    pod = ending()

    assert judge(pod, "a", 0.0) == HeldStop("order", ("main", "b"), 6.0)
    assert judge(pod, "b", 0.0) == HeldStop("order", ("main",), 6.0)
    assert judge(pod, "main", 0.0) == Forward(8)
    pod.containers["main-0"].state = EXITED
    assert judge(pod, "b", 3.2) == Forward(4)
    pod.containers["b-0"].state = EXITED
    assert judge(pod, "a", 3.4) == Forward(4)


def test_without_mains_every_other_container_is_one() -> None:
    """STO-1."""
    pod = ending({"sidecars": "a,b"})

    assert judge(pod, "b", 0.0) == HeldStop("order", ("main",), 6.0)


def test_two_seconds_are_left_whatever_is_waited_for() -> None:
    """STO-1, STO-2."""
    assert judge(ending(), "b", 6.0) == Forward(2, ("main",))


@pytest.mark.parametrize("timeout_s", [0, 1, 2])
def test_a_kill_in_a_hurry_is_never_held(timeout_s: int) -> None:
    """NOH-6."""
    assert judge(ending(), "a", 0.0, timeout_s) == Forward(timeout_s)


def test_what_is_down_already_passes() -> None:
    """STO-5, STO-9: a newer kubelet stops its sidecars when the mains are gone."""
    pod = ending()
    for one in pod.containers.values():
        one.state = EXITED

    assert judge(pod, "a", 0.0) == Forward(8)


def test_a_sidecar_alone_is_kept_for_a_second_and_pays_for_it() -> None:
    """STO-3."""
    pod = sandbox(ORDER, container("a"), container("b"), container("main"))

    assert judge(pod, "b", 0.0) == HeldStop("evidence", ("main",), 1.0)
    assert judge(pod, "b", 1.0) == Forward(7)


@pytest.mark.parametrize("kind", ["httpGet", "tcpSocket", "sleep"])
def test_a_hook_that_no_call_shows_is_allowed_for(kind: str) -> None:
    """STO-3 (c), and the knob against it."""
    pod = sandbox(ORDER, container("a"), container("b"), container("main", hook={kind: {"seconds": 3}}))

    assert judge(pod, "b", 2.0) == HeldStop("order", ("main",), 6.0)
    assert judge(pod, "b", 0.5, assumes=False) == HeldStop("evidence", ("main",), 1.0)


def test_two_stops_at_once_are_the_end_of_a_pod() -> None:
    """STO-3 (a), (b)."""
    for stops_s, hooks_s, expected in (
        ({"a-0": 5.0, "main-0": 5.9}, {}, 5.0),
        ({"a-0": 5.0}, {"main-0": 5.1}, 5.0),
        ({"a-0": 5.0}, {}, None),
        ({"a-0": 4.0, "main-0": 5.9}, {}, None),
        ({}, {"main-0": 5.0}, None),
    ):
        pod = sandbox(ORDER, container("a"), container("b"), container("main"))
        pod.stops_s, pod.hooks_s = stops_s, hooks_s
        note_evidence(pod, 5.9)

        assert pod.evidence_s == expected


def test_one_stop_is_enough_where_the_end_of_the_pod_is_known() -> None:
    """STO-3 (d): and without any stop there is nothing to say."""
    pod = sandbox(ORDER, container("a"), container("main"))
    note_evidence(pod, 5.0, is_known=True)
    assert pod.evidence_s is None
    pod.stops_s = {"a-0": 5.5}
    note_evidence(pod, 6.0, is_known=True)

    assert pod.evidence_s == 5.5


def test_evidence_does_not_outlive_the_grace() -> None:
    """A container that was restarted long ago says nothing about today."""
    pod = ending(grace_s=5)
    note_evidence(pod, 5.5)
    assert pod.evidence_s == 0.0
    note_evidence(pod, 40.0)

    assert pod.evidence_s is None


def test_a_sleep_comes_before_the_stop_and_is_paid_for() -> None:
    """SLP-1."""
    pod = sandbox({"prestop-sleep.main": "3s"}, container("main"))

    assert judge(pod, "main", 0.0) == HeldStop("sleep", (), 3.0)
    pod.turns_s["main-0"] = 0.0
    assert judge(pod, "main", 3.0) == Forward(5)
    assert judge(pod, "main", 0.0, 4) == HeldStop("sleep", (), 2.0)


def test_a_kubelet_that_slept_itself_is_not_doubled() -> None:
    """SLP-3."""
    pod = sandbox({"prestop-sleep.main": "3s"}, container("main", hook={"sleep": {"seconds": 3}}))

    assert judge(pod, "main", 0.0) == Forward(8)


def test_a_sidecar_sleeps_when_its_turn_comes_with_what_is_left() -> None:
    """SLP-4."""
    pod = ending({**ORDER, "prestop-sleep.b": "5s"})
    pod.containers["main-0"].state = EXITED

    assert judge(pod, "b", 2.0) == HeldStop("sleep", (), 6.0)
    pod.turns_s["b-0"] = 2.0
    assert judge(pod, "b", 6.0) == Forward(2)


def test_a_pod_has_one_budget_even_where_the_kubelet_grants_it_twice() -> None:
    """STO-8: an older kubelet after a hook of 5 s."""
    pod = ending(grace_s=8)
    main = pod.containers["main-0"]

    assert judge_stop(pod, wish(main, 8, 5.0), 5.0, StopRules(stop_order)) == Forward(3)
    assert judge_stop(pod, wish(main, 8, 9.0), 9.0, StopRules(stop_order)) == Forward(2)
    assert judge_stop(pod, wish(main, 60, 5.0), 5.0, StopRules(stop_order)) == Forward(60), (
        "a longer grace was asked for"
    )


def test_a_sandbox_that_ends_has_no_gates() -> None:
    """NOH-3."""
    pod = ending()
    pod.is_ending = True

    assert judge(pod, "a", 3.0) == Forward(5)


@given(
    timeout_s=st.integers(0, 100_000),
    waited_s=st.floats(0, 200_000),
    sleep_s=st.floats(0, 1000),
    running=st.sets(st.sampled_from(["a", "b", "main"])),
    has_evidence=st.booleans(),
)
def test_a_hold_always_ends_in_time_and_never_gives_more_than_was_asked(
    timeout_s: int, waited_s: float, sleep_s: float, running: set[str], has_evidence: bool
) -> None:
    """PRX-41, STO-2: for every pod and every moment."""
    notes = {**ORDER, "prestop-sleep.a": f"{int(sleep_s)}s"}
    pod = sandbox(notes, container("a"), container("b"), container("main"))
    for one in pod.containers.values():
        one.state = one.state if one.name in running | {"a"} else EXITED
    pod.evidence_s = 0.0 if has_evidence else None
    verdict = judge(pod, "a", waited_s, timeout_s)

    if isinstance(verdict, HeldStop):
        assert waited_s < verdict.until_s <= max(timeout_s - 2, 1.0)
    else:
        assert min(timeout_s, 2) <= verdict.timeout_s <= timeout_s

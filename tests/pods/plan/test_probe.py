# SPDX-License-Identifier: Apache-2.0
"""What probes amount to."""

from agent.model.pods.container_fields import Probe
from agent.pods.plan.probe import (
    AnswerKind,
    ProbeAnswer,
    ProbeKind,
    ProbeState,
    after_answer,
    first_state,
    is_delayed,
    next_run_s,
)

LETTERS = {"s": AnswerKind.SUCCESS, "w": AnswerKind.WARNING, "f": AnswerKind.FAILURE, "e": AnswerKind.ERROR}


def verdicts(kind: ProbeKind, letters: str, **fields: int) -> str:
    state, found = first_state(kind), ""
    for letter in letters:
        state = after_answer(state, Probe(**fields), ProbeAnswer(LETTERS[letter]))
        found += {True: "+", False: "-", None: "?"}[state.verdict]
    return found


def test_first_words() -> None:
    """PRB-01."""
    assert [first_state(kind).verdict for kind in (ProbeKind.READINESS, ProbeKind.LIVENESS, ProbeKind.STARTUP)] == [
        False, True, None,
    ]  # fmt: skip


def test_only_equal_answers_in_a_row_change_the_verdict() -> None:
    """PRB-05."""
    assert verdicts(ProbeKind.LIVENESS, "fffsf") == "++-+" + "+"
    assert verdicts(ProbeKind.READINESS, "ssfsss", success_threshold=3) == "-----+"
    assert verdicts(ProbeKind.STARTUP, "ffsf", failure_threshold=3) == "??++"


def test_a_warning_is_a_success_and_an_error_nothing() -> None:
    """PRB-05."""
    assert verdicts(ProbeKind.READINESS, "w") == "+"
    assert verdicts(ProbeKind.LIVENESS, "ffeef") == "++++-"


def test_the_schedule_is_kept_whatever_a_run_takes() -> None:
    """PRB-02."""
    assert [next_run_s(100.0, 10, now_s) for now_s in (100.0, 100.3, 109.9, 110.0, 131.0)] == [110, 110, 110, 120, 140]


def test_the_delay_counts_whole_seconds_from_the_start_of_the_container() -> None:
    """PRB-03."""
    probe = Probe(initial_delay_seconds=2)

    assert [is_delayed(probe, 10.5, now_s) for now_s in (12.4, 12.5)] == [True, False]


def test_state_is_a_value() -> None:
    assert after_answer(ProbeState(), Probe(), ProbeAnswer(AnswerKind.ERROR)) == ProbeState()

# SPDX-License-Identifier: Apache-2.0
"""What the answers of a probe amount to, and when it is asked next.

Thresholds, first words, the schedule.
"""

from enum import StrEnum

import msgspec

from agent.model.pods.container_fields import Probe


class ProbeKind(StrEnum):
    STARTUP = "startup"
    LIVENESS = "liveness"
    READINESS = "readiness"

    @property
    def title(self) -> str:  # type: ignore[override]  # str has a method of that name
        return self.value.capitalize()


class AnswerKind(StrEnum):
    """A warning counts as success; an error says that the question could not be asked."""

    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"
    ERROR = "error"


class ProbeAnswer(msgspec.Struct, frozen=True):
    kind: AnswerKind
    text: str = ""

    @property
    def is_good(self) -> bool:
        return self.kind in (AnswerKind.SUCCESS, AnswerKind.WARNING)


class ProbeState(msgspec.Struct, frozen=True):
    """The verdict in force (None: none yet), and how many equal answers came in a row."""

    verdict: bool | None = None
    last: bool | None = None
    in_a_row: int = 0


FIRST = {ProbeKind.READINESS: False, ProbeKind.LIVENESS: True, ProbeKind.STARTUP: None}


def first_state(kind: ProbeKind) -> ProbeState:
    return ProbeState(FIRST[kind])


def after_answer(state: ProbeState, probe: Probe, answer: ProbeAnswer) -> ProbeState:
    """An error moves nothing."""
    if answer.kind is AnswerKind.ERROR:
        return state
    is_good = answer.is_good
    in_a_row = state.in_a_row + 1 if state.last is is_good else 1
    needed = probe.successes if is_good else probe.failures
    return ProbeState(is_good if in_a_row >= needed else state.verdict, is_good, in_a_row)


def next_run_s(began_s: float, period_s: float, now_s: float) -> float:
    """The next moment of the schedule; moments that passed while the last run took its time are left out."""
    runs = int((now_s - began_s) / period_s + 1e-9) + 1
    return began_s + runs * period_s


def is_delayed(probe: Probe, started_s: float, now_s: float) -> bool:
    """Whole seconds since the container started."""
    return int(now_s - started_s + 1e-9) < probe.initial_delay_seconds

# SPDX-License-Identifier: Apache-2.0
"""Calls to the runtime as they belong to an operation: who waits for one is found by the context of its task.

Owns: the context variable, and the bound on what all operations keep of their calls.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

import msgspec

from agent.model.images.pull import PullPhase
from agent.model.span import SpanRef

NOTE_BYTES = 512
"""What a note costs, generously: five short fields."""


class CallNote(msgspec.Struct, frozen=True):
    """One call that has ended. `container` is empty where it is about the pod. Wall time."""

    container: str
    method: str
    code: str
    begin_s: float
    end_s: float


class NotesRoom:
    """How much all operations together may keep until it is decided whether their trace is kept."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0

    def take(self) -> bool:
        if self._bytes + NOTE_BYTES > self._most_bytes:
            return False
        self._bytes += NOTE_BYTES
        return True

    def give_back(self, notes: int) -> None:
        self._bytes -= notes * NOTE_BYTES


class Caller(Protocol):
    """An operation that makes calls. Answers with the span of the call, if its trace is kept for sure."""

    def called(self, method: str, code: str, duration_s: float) -> SpanRef | None: ...

    def pulled(self, image: str, phases: Sequence[PullPhase]) -> None:
        """A pull that the operation has waited for is over."""


CALLER: ContextVar[Caller | None] = ContextVar("kepd_caller", default=None)

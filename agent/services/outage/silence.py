# SPDX-License-Identifier: Apache-2.0
"""Whether the API server speaks: with a server, alone since a moment, or returning.

    WITH_SERVER ── no news of either kind for `after_s` ──► ALONE ── news of one kind ──► RETURNING
         ▲                                                                                    │
         ├───────────────────── both kinds have news, and no list is doubted ─────────────────┤
         └────────────────────────────── a list is doubted ──────────────────────────────────►┘

Every server that is configured is asked before news are lost, by list and watch; any word ends a silence of its kind.
A server that lists only a part of what was known has not returned, whether it was away or not.
Never: reads a clock, or decides what a silence means for an endpoint.
"""

from enum import StrEnum

KINDS = ("Service", "EndpointSlice")
"""Both have to be silent; one alone may be a right that is missing."""


class Phase(StrEnum):
    WITH_SERVER = "with server"
    ALONE = "alone"
    RETURNING = "returning"


class Silence:
    """`now_s` of each call is monotonic. At its beginning nothing was ever heard."""

    def __init__(self, after_s: float, now_s: float) -> None:
        self.after_s = after_s
        self.phase = Phase.WITH_SERVER
        self.since_s = now_s
        """Since when it is as it is. Alone: since nothing was heard, which is earlier than when that was noticed."""
        self.vouched_s = now_s
        """When a server last vouched for what is known: earlier than the beginning, where that was a snapshot."""
        self._never = set(KINDS)
        self._lost_s: dict[str, float] = dict.fromkeys(KINDS, now_s)
        self._doubted: set[str] = set()

    def heard(self, kind: str) -> None:
        self._lost_s.pop(kind, None)
        self._never.discard(kind)

    def lost(self, kind: str, now_s: float) -> None:
        """No server gives news of that kind. Where none ever did, the silence is as old as what is known."""
        if kind in self._never:
            self._lost_s[kind] = min(self.vouched_s, self._lost_s[kind])
        elif kind in KINDS:
            self._lost_s.setdefault(kind, now_s)

    def doubts(self, kind: str, *, is_doubted: bool) -> None:
        (self._doubted.add if is_doubted else self._doubted.discard)(kind)

    @property
    def due_s(self) -> float:
        """When time alone makes a difference; never: infinity."""
        if self.phase is not Phase.WITH_SERVER or len(self._lost_s) < len(KINDS):
            return float("inf")
        return max(self._lost_s.values()) + self.after_s

    def look(self, now_s: float) -> bool:
        """Whether the phase is another one now."""
        before = self.phase
        self.phase, since_s = self._next(now_s)
        if self.phase is not before:
            self.since_s = since_s
        return self.phase is not before

    def _next(self, now_s: float) -> tuple[Phase, float]:
        if len(self._lost_s) == len(KINDS):
            # Whoever was alone stays so until there is a word; whoever was not waits for a while.
            if self.phase is Phase.RETURNING:
                return Phase.ALONE, max(self._lost_s.values())
            is_alone = self.phase is Phase.ALONE or now_s >= self.due_s
            return (Phase.ALONE, max(self._lost_s.values())) if is_alone else (self.phase, now_s)
        if not self._doubted and (self.phase is Phase.WITH_SERVER or not self._lost_s):
            return Phase.WITH_SERVER, now_s
        return Phase.RETURNING, now_s

# SPDX-License-Identifier: Apache-2.0
"""What to ask an API server next, given what it answered last.

    ┌──────────► STREAMING ── not offered, odd ──► PAGING ◄──┐ next page, page expired
    │  expired       │ initial events end             │ ─────┘
    │                ▼                                │ last page
    └──────────── WATCHING ◄──────────────────────────┘
                     └─ ended, broken: same place again

Owns: the position of one follower, the transition table, back-off, and the query of each request.
Never: does I/O, reads a clock or rolls dice; luck arrives as an argument. follower.py carries out what this says.
Source of behaviour: kubernetes/client-go `tools/cache/reflector.go`, KEP-3157, and recordings of a 1.36 server.
"""

from collections.abc import Mapping
from enum import StrEnum, auto

import msgspec
from msgspec.structs import replace

from agent.drivers.kube import errors

PAGE_LIMIT = 500
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
SLOW_WAIT_S = 60.0
SPREAD_S = 1.0
EXPIRED_PAGES = 2


class Phase(StrEnum):
    STREAMING = auto()
    PAGING = auto()
    WATCHING = auto()


class Reply(StrEnum):
    PAGE = auto()
    LAST_PAGE = auto()
    INITIAL_END = auto()
    ENDED = auto()
    ENDED_AT_ONCE = auto()
    EXPIRED = auto()
    AHEAD = auto()
    NOT_UNDERSTOOD = auto()
    DENIED = auto()
    THROTTLED = auto()
    FAILED = auto()
    UNANSWERED = auto()
    SILENT = auto()
    TOO_BIG = auto()
    UNREADABLE = auto()


class Delay(StrEnum):
    """How long before the next request. ONCE = hardly at all the first time; SLOW = soon a minute."""

    NONE = auto()
    ONCE = auto()
    BACKOFF = auto()
    SLOW = auto()


class Move(msgspec.Struct, frozen=True):
    """An edge. `is_outage` = whoever follows is told that news have stopped."""

    to: Phase
    wait: Delay = Delay.NONE
    is_outage: bool = False


S, P, W = Phase.STREAMING, Phase.PAGING, Phase.WATCHING
AGAIN, SLOWLY = Delay.BACKOFF, Delay.SLOW

FAILURES = (
    Reply.AHEAD, Reply.THROTTLED, Reply.FAILED, Reply.UNANSWERED, Reply.SILENT, Reply.TOO_BIG, Reply.UNREADABLE,
)  # fmt: skip

# STREAMING as a target means "list again": it becomes PAGING on a server that does not offer streaming.
TRANSITIONS: Mapping[tuple[Phase, Reply], Move] = {
    # The same once more, unless a line below says otherwise.
    **{(phase, answer): Move(phase, AGAIN, is_outage=True) for phase in Phase for answer in FAILURES},
    **{(phase, Reply.DENIED): Move(phase, SLOWLY, is_outage=True) for phase in Phase},
    (S, Reply.INITIAL_END): Move(W),
    (S, Reply.ENDED): Move(P),
    (S, Reply.ENDED_AT_ONCE): Move(P),
    (S, Reply.EXPIRED): Move(P, AGAIN),
    (S, Reply.NOT_UNDERSTOOD): Move(P),
    (S, Reply.SILENT): Move(P, AGAIN, is_outage=True),
    (S, Reply.TOO_BIG): Move(P, AGAIN, is_outage=True),
    (S, Reply.UNREADABLE): Move(P, AGAIN, is_outage=True),
    (P, Reply.PAGE): Move(P),
    (P, Reply.LAST_PAGE): Move(W),
    (P, Reply.EXPIRED): Move(P, Delay.ONCE),
    (P, Reply.NOT_UNDERSTOOD): Move(P, SLOWLY, is_outage=True),
    (W, Reply.ENDED): Move(W),
    (W, Reply.ENDED_AT_ONCE): Move(W, AGAIN),
    (W, Reply.EXPIRED): Move(S, Delay.ONCE),
    (W, Reply.AHEAD): Move(S, AGAIN, is_outage=True),
    # A watch from a version the server has never seen is not refused, it waits for ever: after a restore from an older
    # backup nothing but a new list helps.
    (W, Reply.UNANSWERED): Move(S, AGAIN, is_outage=True),
    (W, Reply.NOT_UNDERSTOOD): Move(S, AGAIN, is_outage=True),
    (W, Reply.TOO_BIG): Move(P, AGAIN, is_outage=True),
    (W, Reply.UNREADABLE): Move(P, AGAIN, is_outage=True),
}

# The fault may be that server's alone, so another one is asked without waiting.
MAY_BE_ONE_SERVER = frozenset({Reply.FAILED, Reply.UNANSWERED, Reply.SILENT, Reply.AHEAD})
FINE = (W, Reply.ENDED)
STREAMING_UNKNOWN = frozenset({Reply.ENDED, Reply.ENDED_AT_ONCE, Reply.NOT_UNDERSTOOD, Reply.SILENT})

KINDS: tuple[tuple[type[errors.KubeError], Reply], ...] = (
    (errors.Expired, Reply.EXPIRED),
    (errors.VersionAhead, Reply.AHEAD),
    (errors.Unprocessable, Reply.NOT_UNDERSTOOD),
    (errors.Denied, Reply.DENIED),
    (errors.Missing, Reply.DENIED),
    (errors.Throttled, Reply.THROTTLED),
    (errors.Unanswered, Reply.UNANSWERED),
    (errors.StreamSilent, Reply.SILENT),
    (errors.AnswerTooBig, Reply.TOO_BIG),
    (errors.AnswerUnreadable, Reply.UNREADABLE),
)


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where one follower is. `failures` are those since a watch last delivered something, of some kinds also alone."""

    phase: Phase = Phase.STREAMING
    resource_version: str = ""
    continue_token: str = ""
    page_limit: int = PAGE_LIMIT
    may_stream: bool = True
    expired_pages: int = 0
    failures: int = 0
    expired: int = 0
    denied: int = 0

    def options(self, timeout_s: int) -> dict[str, str]:
        if self.phase is Phase.PAGING:
            options = {"limit": str(self.page_limit)} if self.page_limit else {}
            return {**options, "continue": self.continue_token}
        options = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        if self.phase is Phase.STREAMING:
            return {**options, "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        return {**options, "resourceVersion": self.resource_version}

    def delivered(self, resource_version: str) -> "Position":
        """A watch brought an event or bookmark: go on from there, and old failures no longer count."""
        if not self.failures and resource_version == self.resource_version:
            return self
        version = resource_version or self.resource_version
        return replace(self, resource_version=version, failures=0, expired=0, denied=0)

    def __str__(self) -> str:
        return f"{self.phase} at {self.resource_version or 'start'}, failures={self.failures}"


class Decision(msgspec.Struct, frozen=True):
    """What follows: the new position, how long to wait before acting on it, and whether to tell of an outage."""

    position: Position
    wait_s: float
    is_outage: bool


def classify(error: errors.KubeError) -> Reply:
    return next((answer for kind, answer in KINDS if isinstance(error, kind)), Reply.FAILED)


def advance(
    position: Position,
    answer: Reply,
    *,
    luck: float = 0.0,
    resource_version: str = "",
    continue_token: str = "",
    retry_after_s: float | None = None,
    server_count: int = 1,
) -> Decision:
    """The one step of the machine. Raises KeyError for an answer that the phase cannot get."""
    move = TRANSITIONS[position.phase, answer]
    wait_s = _wait_s(move.wait, position, luck)
    if answer in MAY_BE_ONE_SERVER and position.failures + 1 < server_count:
        wait_s = 0.0
    if retry_after_s is not None:
        wait_s = max(wait_s, retry_after_s * (1 + 0.2 * luck))
    after = _counted(_moved(position, move.to, answer), answer, move.wait, is_fine=(position.phase, answer) == FINE)
    if resource_version:
        after = replace(after, resource_version=resource_version)
    if continue_token:
        after = replace(after, continue_token=continue_token)
    return Decision(after, wait_s, move.is_outage or (move.wait is Delay.ONCE and position.failures > 0))


def _counted(position: Position, answer: Reply, wait: Delay, *, is_fine: bool) -> Position:
    """With one failure more, or with none."""
    if is_fine:
        return replace(position, failures=0, expired=0, denied=0)
    return replace(
        position,
        failures=position.failures + (wait is not Delay.NONE),
        expired=position.expired + (answer is Reply.EXPIRED),
        denied=position.denied + (answer is Reply.DENIED),
    )


def _moved(position: Position, to: Phase, answer: Reply) -> Position:
    """The new phase with what the edge does to the rest."""
    if position.phase is Phase.STREAMING and answer in STREAMING_UNKNOWN:
        position = replace(position, may_stream=False)
    if to is Phase.STREAMING and not position.may_stream:
        to = Phase.PAGING
    if to is Phase.PAGING:
        return _paging(position, answer)
    return replace(position, phase=to, continue_token="", page_limit=PAGE_LIMIT, expired_pages=0)


def _paging(position: Position, answer: Reply) -> Position:
    """A list by pages: from its beginning, unless the page at hand is merely asked for again."""
    if position.phase is not Phase.PAGING:
        return replace(position, phase=Phase.PAGING, continue_token="", page_limit=PAGE_LIMIT, expired_pages=0)
    if answer is Reply.EXPIRED:
        # The list took longer than the server remembers: once more, then all at once, which cannot expire.
        expired = position.expired_pages + 1
        limit = 0 if expired >= EXPIRED_PAGES else position.page_limit
        return replace(position, continue_token="", expired_pages=expired, page_limit=limit)
    if answer is Reply.TOO_BIG:
        return replace(position, page_limit=max(1, (position.page_limit or PAGE_LIMIT) // 10))
    return position


def _wait_s(wait: Delay, position: Position, luck: float) -> float:
    if wait is Delay.NONE:
        return 0.0
    if wait is Delay.ONCE and position.expired == 0:
        # After a restart of the server every node is told "too old" in the same moment, most of them after failures.
        return SPREAD_S * luck
    if wait is Delay.SLOW:
        # A server that has just started denies everybody until it has read its own rules.
        return _growing_s(2 * FIRST_WAIT_S, position.denied, SLOW_WAIT_S) * (0.5 + luck / 2)
    return _growing_s(FIRST_WAIT_S, position.failures, LONGEST_WAIT_S) * (0.5 + luck / 2)


def _growing_s(first_s: float, times: int, longest_s: float) -> float:
    return min(longest_s, first_s * 2.0 ** min(times, 16))

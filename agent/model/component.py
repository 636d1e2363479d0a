# SPDX-License-Identifier: Apache-2.0
"""State of the parts of the daemon: readiness, metrics, API and the service manager show it.

A part reports through its `Report`; no other code changes its line.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from agent.model.feed import Feed


class State(StrEnum):
    """starting → ready ⇄ degraded; failed → starting. off and absent never change."""

    OFF = "off"
    ABSENT = "absent"
    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"


SETTLED = frozenset({State.OFF, State.ABSENT, State.READY, State.DEGRADED})
FINE = frozenset({State.OFF, State.ABSENT, State.READY})


class Component(msgspec.Struct, frozen=True):
    """One line of the board. `busy_until_s` is the moment by which its present work promised to be over."""

    name: str
    is_plane: bool
    state: State
    message: str = ""
    since_s: float = 0.0
    restarts: int = 0
    restart_at_s: float | None = None
    busy_until_s: float | None = None

    @property
    def is_ready(self) -> bool:
        return self.state in FINE

    @property
    def has_settled(self) -> bool:
        """Whether its first attempt to become ready is over, one way or the other."""
        return self.state in SETTLED or self.restarts > 0


class Board:
    """All lines. `feed` tells the changes of states and messages."""

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._lines: dict[str, Component] = {}
        self.feed: Feed[Component] = Feed()

    def add(self, name: str, state: State, message: str = "", *, is_plane: bool = False) -> "Report":
        """A new line, and the handle that changes it."""
        self.update(name, Component(name, is_plane, state, message, self._wall_s()))
        return Report(self, name)

    def lines(self) -> tuple[Component, ...]:
        return tuple(self._lines.values())

    def summary(self) -> str:
        unready = [line for line in self._lines.values() if not line.is_ready]
        if not unready:
            running = [line.name for line in self._lines.values() if line.is_plane and line.state is State.READY]
            return f"ready; planes: {', '.join(running) or 'none'}"
        return "; ".join(f"{line.name}: {line.message or line.state}" for line in unready)

    def update(self, name: str, line: Component) -> None:
        before = self._lines.get(name, line)
        if before.state != line.state:
            line = replace(line, since_s=self._wall_s())
        self._lines[name] = line
        self.feed.put(name, replace(line, busy_until_s=None))

    def line(self, name: str) -> Component:
        return self._lines[name]


class Report:
    def __init__(self, board: Board, name: str) -> None:
        self._board = board
        self._name = name

    def starting(self, message: str = "starting") -> None:
        self._set(State.STARTING, message)

    def ready(self, message: str = "") -> None:
        self._set(State.READY, message)

    def degraded(self, message: str) -> None:
        """It runs with something missing; the message says what and what would heal it."""
        self._set(State.DEGRADED, message)

    def failed(self, message: str, restart_at_s: float) -> None:
        line = self._board.line(self._name)
        self._board.update(
            self._name,
            replace(
                line,
                state=State.FAILED,
                message=message,
                restarts=line.restarts + 1,
                restart_at_s=restart_at_s,
                busy_until_s=None,
            ),
        )

    def busy_until(self, deadline_s: float | None) -> None:
        """A promise for the watchdog: the present step is over by then (monotonic). None = at rest."""
        self._board.update(self._name, replace(self._board.line(self._name), busy_until_s=deadline_s))

    def _set(self, state: State, message: str) -> None:
        line = self._board.line(self._name)
        self._board.update(self._name, replace(line, state=state, message=message, restart_at_s=None))

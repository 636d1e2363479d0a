# SPDX-License-Identifier: Apache-2.0
"""`kepctl top -w` on a terminal: answers and keys in, lines out. It draws once for each answer and each key."""

import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from agent.cli.session import CommandFailed, Session
from agent.wire.kepd.v1 import node_pb2
from kepd_ui.run.terminal import Terminal, TerminalGone, check_terminal
from kepd_ui.top_screen import TopView, draw_top, press, rows_of

SIGNALLED = 128
TICK_S = 1.0
PATIENCE = 3
"""After so many intervals without an answer the screen says so."""


class Shown(Protocol):
    """What was asked for, of an answer with everything."""

    @property
    def of(self) -> str: ...

    @property
    def order(self) -> str: ...

    def picked(self, answer: node_pb2.ListStatsResponse) -> node_pb2.ListStatsResponse: ...


class _Answers:
    """What the daemon sends, from a thread that waits for it."""

    def __init__(self, watched: Iterator[node_pb2.ListStatsResponse], terminal: Terminal) -> None:
        self._watched, self._terminal = watched, terminal
        self._came: queue.Queue[node_pb2.ListStatsResponse | CommandFailed] = queue.Queue(10)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        try:
            for answer in self._watched:
                self._tell(answer)
            self._tell(CommandFailed("the daemon ended the watch"))
        except CommandFailed as error:
            self._tell(error)

    def _tell(self, one: node_pb2.ListStatsResponse | CommandFailed) -> None:
        with suppress(queue.Full):
            self._came.put_nowait(one)
        self._terminal.wake()

    def latest(self) -> node_pb2.ListStatsResponse | CommandFailed | None:
        found = None
        with suppress(queue.Empty):
            while True:
                found = self._came.get_nowait()
        return found


def run_live(
    session: Session,
    answers: tuple[node_pb2.ListStatsResponse, Iterator[node_pb2.ListStatsResponse]],
    shown: Shown,
    every_s: float,
) -> int:
    """Until the user quits. `answers` are the first and those that follow. Returns the exit code."""
    check_terminal()
    has_colour = session.color == "always" or (session.color == "auto" and not os.environ.get("NO_COLOR"))
    is_ascii = "utf" not in (sys.stdout.encoding or "").lower()
    terminal = Terminal(has_colour=has_colour)
    first, further = answers
    answer, view = shown.picked(first), TopView(order=shown.order)
    screen = _Screen(terminal, shown, every_s, is_ascii=is_ascii)
    watched = _Answers(further, terminal)
    try:
        with terminal.opened():
            while not view.is_over:
                came, view = screen.turn(answer, view, watched)
                answer = came if came is not None else answer
    except TerminalGone as ended:
        return SIGNALLED + ended.number
    return 0


class _Screen:
    def __init__(self, terminal: Terminal, shown: Shown, every_s: float, *, is_ascii: bool) -> None:
        self._terminal, self._shown, self._is_ascii = terminal, shown, is_ascii
        self._patience_s = max(PATIENCE * every_s, PATIENCE)
        self._quiet_s = 0.0

    def turn(
        self, answer: node_pb2.ListStatsResponse, view: TopView, answers: _Answers
    ) -> tuple[node_pb2.ListStatsResponse | None, TopView]:
        """Draw, wait for a key or an answer, and take over what came."""
        size = self._terminal.size()
        self._terminal.show(draw_top(answer, self._shown.of, view, size, is_ascii=self._is_ascii))
        keys, is_woken = self._terminal.keys(TICK_S)
        self._quiet_s = 0.0 if is_woken else self._quiet_s + TICK_S
        came = answers.latest()
        if isinstance(came, CommandFailed):
            raise came
        note = f"no answer for {self._quiet_s:.0f} s" if self._quiet_s >= self._patience_s else ""
        view = replace(view, note=note)
        for key in keys:
            if key == "suspend":
                self._terminal.suspend()
            view = press(view, key, len(rows_of(answer, self._shown.of, view.order)), size)
        return None if came is None or view.is_held else self._shown.picked(came), view

# SPDX-License-Identifier: Apache-2.0
"""The loop: keys and news in, lines out. It draws when something changed, and at most some times a second."""

import os
import time
from collections.abc import Callable

from agent.cli.client import connected
from agent.cli.session import Session
from agent.wire.kepd.v1 import node_pb2
from kepd_ui.board import Board, Head
from kepd_ui.run.feeds import Feeds
from kepd_ui.run.reading import BoardReading
from kepd_ui.run.terminal import Terminal, TerminalGone, check_terminal
from kepd_ui.screen import draw, room_of
from kepd_ui.view import Chosen, View, Wish, on_key

SHORTEST_REDRAW_S = 0.25
"""Of news. A key is answered at once."""
TICK_S = 1.0
"""Ages grow."""
SIGNALLED = 128


def run_ui(session: Session) -> int:
    """Until the user quits. Returns the exit code."""
    check_terminal()
    with connected(session) as daemon:
        # What does not answer at all fails as with every command, before the screen changes.
        node = daemon.call("kepd.v1.NodeService/GetNode", node_pb2.GetNodeRequest(), node_pb2.GetNodeResponse).node
        has_colour = session.color == "always" or (session.color == "auto" and not os.environ.get("NO_COLOR"))
        terminal = Terminal(has_colour=has_colour)
        feeds = Feeds(daemon, terminal.wake)
        loop = Loop(session, terminal, feeds)
        loop.board.take(Head(node, ()))
        try:
            with terminal.opened():
                feeds.start()
                loop.run()
        except TerminalGone as ended:
            return SIGNALLED + ended.number
        finally:
            feeds.stop()
            loop.close_page()
    return 0


class Loop:
    def __init__(self, session: Session, terminal: Terminal, feeds: Feeds) -> None:
        self.board = Board()
        self._session, self._terminal, self._feeds = session, terminal, feeds
        self._view, self._chosen = View(), Chosen()
        self._reading: BoardReading | None = None
        self._is_over = False

    def run(self) -> None:
        drawn_s = 0.0
        is_new = True
        while not self._is_over:
            now_s = time.monotonic()
            if (is_new and now_s - drawn_s >= SHORTEST_REDRAW_S) or now_s - drawn_s >= TICK_S:
                self._draw()
                is_new, drawn_s = False, now_s
            due_s = drawn_s + (SHORTEST_REDRAW_S if is_new else TICK_S)
            keys, is_woken = self._terminal.keys(max(due_s - time.monotonic(), 0.0))
            is_new |= is_woken
            for told in self._feeds.news():
                self.board.take(told)
            for key in keys:
                self._press(key)
            if keys and not self._is_over:
                self._draw()
                is_new, drawn_s = False, time.monotonic()

    def close_page(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None

    def _draw(self) -> None:
        page = self._reading.page if self._reading is not None else None
        lines = draw(self.board, self._view, page, self._chosen, self._terminal.size(), time.time())
        self._terminal.show(lines)

    def _press(self, key: str) -> None:
        page = self._reading.page if self._reading is not None else None
        room = room_of(self._view, self.board, self._terminal.size(), page)
        keys = self._chosen.keys(self.board, self._view.panel, self._view.filter)
        self._view, wish = on_key(self._view, key, keys, room)
        if wish is not None:
            self._carry_out(wish)

    def _carry_out(self, wish: Wish) -> None:
        deeds: dict[str, Callable[[], None]] = {
            "quit": self._quit, "close": self.close_page, "redraw": self._terminal.forget,
            "suspend": self._terminal.suspend,
        }  # fmt: skip
        deed = deeds.get(wish.kind)
        if deed is not None:
            deed()
            return
        self.close_page()
        width = self._terminal.size().width
        self._reading = BoardReading(self._session, wish, self.board, width, self._terminal.wake)
        self._reading.start()

    def _quit(self) -> None:
        self._is_over = True

# SPDX-License-Identifier: Apache-2.0
"""The terminal while the screen is ours; however that ends, it comes back as it was.

Owns: its mode, its other screen, the signals that end or resize it, and the pipe by which threads end a wait for keys.
"""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from agent.cli.session import CommandFailed
from agent.model.exit_codes import USAGE
from kepd_ui.cells import Line
from kepd_ui.keys import read_keys
from kepd_ui.painting import ENTER, LEAVE, painted
from kepd_ui.screen import Size

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
READ_BYTES = 4096
ESCAPE_S = 0.05
"""A lone Escape and the beginning of an arrow look the same for that long."""
SMALLEST = Size(20, 6)


class TerminalGone(Exception):
    """A signal, or the terminal itself, ends the program."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    def __init__(self, *, has_colour: bool) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._has_colour = has_colour
        self._shown: Sequence[Line] = ()
        self._rest = ""
        self._ended_by = 0
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._mode = termios.tcgetattr(self._in)

    @contextmanager
    def opened(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._end) for number in ENDING}
        before[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._resized)
        try:
            self._enter()
            yield
        finally:
            with suppress(OSError, termios.error):
                # A terminal that is gone cannot be restored.
                self._leave()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake_in)
            os.close(self._wake_out)

    def wake(self) -> None:
        """From any thread and from signal handlers."""
        with suppress(BlockingIOError, OSError):
            os.write(self._wake_out, b"\0")

    def keys(self, wait_s: float) -> tuple[list[str], bool]:
        """Those pressed, after `wait_s` at the latest, and whether somebody woke it."""
        ready, _, _ = select.select([self._in, self._wake_in], [], [], wait_s)
        if self._wake_in in ready:
            with suppress(BlockingIOError):
                os.read(self._wake_in, READ_BYTES)
        if self._ended_by:
            raise TerminalGone(self._ended_by)
        if self._in not in ready:
            return [], self._wake_in in ready
        data = os.read(self._in, READ_BYTES)
        if not data:
            raise TerminalGone(signal.SIGHUP)
        keys, self._rest = read_keys(self._rest + data.decode(errors="ignore"), is_all=False)
        if self._rest and not select.select([self._in], [], [], ESCAPE_S)[0]:
            more, self._rest = read_keys(self._rest)
            keys += more
        return keys, self._wake_in in ready

    def size(self) -> Size:
        width, height = os.get_terminal_size(self._out)
        return Size(max(width, SMALLEST.width), max(height, SMALLEST.height))

    def show(self, lines: Sequence[Line]) -> None:
        self._write(painted(self._shown, lines, has_colour=self._has_colour))
        self._shown = lines

    def forget(self) -> None:
        """What is shown is drawn anew."""
        self._shown = ()

    def suspend(self) -> None:
        """Until the shell continues it; the shell has its screen meanwhile."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()

    def _enter(self) -> None:
        tty.setraw(self._in)
        self._write(ENTER)
        self.forget()

    def _leave(self) -> None:
        try:
            self._write(LEAVE)
        finally:
            termios.tcsetattr(self._in, termios.TCSAFLUSH, self._mode)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        while data:
            data = data[os.write(self._out, data) :]

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._ended_by = number
        self.wake()

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self.forget()
        self.wake()


def check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        text = "the screen needs a terminal for its input and output; see kepctl get pods -w for lines instead"
        raise CommandFailed(text, USAGE)
    if os.environ.get("TERM", "dumb") == "dumb":
        raise CommandFailed("TERM names no terminal that can move its cursor; see kepctl get pods -w", USAGE)

# SPDX-License-Identifier: Apache-2.0
"""What a long command does, on standard error, once it takes longer than people wait without wondering.

One line that is renewed on a terminal, a line every few seconds elsewhere; a quick command says nothing. A thread of
its own looks at the clock, since a step may take long without a word in between.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

from agent.cli.terminal import CleanText, clean

QUIET_S = 2.0
TERMINAL_EVERY_S, ELSEWHERE_EVERY_S = 0.5, 5.0
USUAL_COLUMNS = 80
ERASE = "\r\x1b[K"


class Progress:
    """Use it as a context and call it with what is done now; the line is gone afterwards."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        given = sys.stderr if stream is None else stream
        # What cleans the stream would take the control signs away; the text is cleaned by itself.
        self._stream = given.unfiltered if isinstance(given, CleanText) else given
        self._now, self._wait = now, wait
        self._is_terminal = self._stream.isatty()
        self._began_s, self._told_s = now(), -ELSEWHERE_EVERY_S
        self._text = self._shown = ""
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __call__(self, text: str) -> None:
        self._text = text

    def say(self, text: str) -> None:
        """A line of its own that stays, at once."""
        with self._writing:
            self._write((ERASE if self._shown else "") + f"{clean(text)}\n")
            self._shown = ""

    def end(self) -> None:
        """Nothing is written from now on; what stands on the terminal is erased."""
        with self._writing:
            is_first = not self._ended.is_set()
            self._ended.set()
            if is_first and self._is_terminal and self._shown:
                self._write(ERASE)

    def look(self) -> None:
        """Write if it is time to."""
        passed_s = self._now() - self._began_s
        with self._writing:
            if self._ended.is_set() or passed_s < QUIET_S or not self._text:
                return
            line = f"{clean(self._text)} ({passed_s:.0f} s)"
            if self._is_terminal:
                # One that wraps could not be taken back.
                line = line[: self._columns() - 1]
                if line != self._shown:
                    self._write(ERASE + line)
                    self._shown = line
            elif passed_s - self._told_s >= ELSEWHERE_EVERY_S:
                self._told_s = passed_s
                self._write(f"{line}\n")

    def _run(self) -> None:
        while not self._wait(self._ended, TERMINAL_EVERY_S):
            self.look()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or USUAL_COLUMNS
        except (OSError, ValueError):
            return USUAL_COLUMNS

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # Without a reader of its progress a rehearsal goes on.
            self._ended.set()

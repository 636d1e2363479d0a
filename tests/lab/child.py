# SPDX-License-Identifier: Apache-2.0
"""One long-running process of the lab: start, readiness, end, and the last lines of its log.

Owns: the process from start to reaping and the log file it writes.
Never: looks for a process by name; it only signals the one it started. Each has a session of its own, so that
Ctrl-C in a terminal reaches the lab's owner and not its parts.
"""

import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.lab.errors import LabError

__all__ = ["Child"]

POLL_S = 0.005
TAIL_BYTES = 16 * 1024
LINE_CHARACTERS = 400


class Child:
    """A process with a name, a log and an end."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str],
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = list(argv)
        self._environment = dict(environment)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LabError(f"{self.name}: was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process unless it runs; its input is a pipe that closes when this process ends."""
        if self.is_running:
            return
        self._reap()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._directory,
                start_new_session=True,
            )

    def wait_ready(self, problem: Callable[[], str], within_s: float) -> None:
        """Ask `problem` until it answers with an empty text; the last answer is in the error."""
        deadline_monotonic = time.monotonic() + within_s
        while what := problem():
            if self._process is None or self._process.poll() is not None:
                status = self._process.returncode if self._process else None
                raise LabError(f"{self.name} ended with status {status} before it was ready ({what}){self.log_tail()}")
            if time.monotonic() > deadline_monotonic:
                raise LabError(f"{self.name} not ready after {within_s} s: {what}{self.log_tail()}")
            time.sleep(POLL_S)

    def stop(self, within_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL when that is ignored."""
        if self._process is not None and self.is_running:
            self._process.terminate()
            try:
                self._process.wait(within_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._reap()

    def kill(self) -> None:
        """SIGKILL: what a crash looks like to the others."""
        self.signal(signal.SIGKILL)
        self._reap()

    def signal(self, number: int) -> None:
        """Send a signal if the process lives; SIGSTOP and SIGCONT imitate one that hangs."""
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def _reap(self) -> None:
        if self._process is not None:
            self._process.wait(10)
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    def log_tail(self, lines: int = 20) -> str:
        """The end of what was logged since the last start, ready to be put behind a message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self._log_offset, self.log.stat().st_size - TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return f"; {self.log} does not exist"
        tail = [textwrap.shorten(line, LINE_CHARACTERS) for line in text.splitlines()[-lines:]]
        return f"; end of {self.log}:\n  " + "\n  ".join(tail) if tail else f"; nothing new in {self.log}"

# SPDX-License-Identifier: Apache-2.0
"""Servers in pods: TCP and UDP, each answers "<its name> <the client's address>".

Owns: one process for all of them, which goes through the namespaces to open its sockets and then waits in one loop;
it ends with this process, because it reads from a pipe that closes then.
Never: slows a test down: nothing is shared with the interpreter that measures.
"""

import json
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

__all__ = ["Listener", "Servers"]

_READY_WITHIN_S = 30.0


@dataclass(frozen=True)
class Listener:
    """One address and port in a namespace, for both protocols."""

    name: str
    namespace: str
    address: str
    port: int


class Servers:
    """The process."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        script = Path(__file__).with_name("server_process.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._tell({"open": [asdict(one) for one in listeners]})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def add(self, listener: Listener) -> None:
        """One more."""
        self._tell({"open": [asdict(listener)]})

    def remove(self, name: str) -> None:
        """Everything under this name is closed; who connects then is refused by the pod itself."""
        self._tell({"close": name})

    def close(self) -> None:
        """End the process."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate(timeout=_READY_WITHIN_S)

    def _tell(self, command: dict[str, object]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _READY_WITHIN_S)
        if not ready or self._process.stdout.readline() != "done\n":
            self._process.kill()
            raise RuntimeError(f"the servers' process did not do {str(command)[:200]}")

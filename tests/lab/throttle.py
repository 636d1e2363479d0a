# SPDX-License-Identifier: Apache-2.0
"""The slow and faulty way to the registry, as tests see it.

Owns: the proxy's process (throttle_server.py, inside the namespace) and the commands sent over its control socket;
each takes effect at once, for requests already in flight too where that has a meaning.
Never: stands between tests and the registry unless they use the throttle's address (LAB-14).
"""

import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.lab.child import Child
from tests.lab.errors import LabError
from tests.lab.faults import Fault, Request
from tests.lab.netns import Netns
from tests.lab.packages import Programs
from tests.lab.place import Place

__all__ = ["Throttle"]

READY_WITHIN_S = 40.0
CONTROL_WITHIN_S = 40.0
SOURCE_ROOT = Path(__file__).resolve().parents[2]


class Throttle:
    """A proxy on a port of its own in front of the registry's port."""

    def __init__(self, place: Place, netns: Netns, programs: Programs, *, port: int, upstream_port: int) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._socket = place.throttle_socket
        server = [sys.executable, "-m", "tests.lab.throttle_server", str(port), str(upstream_port), str(self._socket)]
        self.process = Child(
            "throttle",
            netns.command(server),
            log=place.log("throttle"),
            environment=programs.environment() | {"PYTHONDONTWRITEBYTECODE": "1"},
            directory=SOURCE_ROOT,
        )

    def begin(self) -> None:
        self._socket.unlink(missing_ok=True)
        self.process.start()

    def wait_ready(self) -> None:
        self.process.wait_ready(self._problem, READY_WITHIN_S)

    def stop(self) -> None:
        self.process.stop()

    def limit(self, *, per_connection_bytes_s: int | None = None, total_bytes_s: int | None = None) -> None:
        """Set both limits of what the registry sends; none means no limit."""
        for name, rate in (("per_connection_bytes_s", per_connection_bytes_s), ("total_bytes_s", total_bytes_s)):
            if rate is not None and rate < 1:
                raise LabError(f"throttle: {name}={rate}: must be at least 1, or None for no limit")
        self._do("limit", per_connection_bytes_s=per_connection_bytes_s, total_bytes_s=total_bytes_s)

    def inject(self, fault: Fault) -> int:
        """Switch a fault on; returns the number that clears it. Of several that fit, the oldest is used."""
        return int(self._do("inject", fault=asdict(fault)))

    def clear(self, number: int | None = None) -> None:
        """Switch one fault off, or all; what hangs because of it goes on."""
        self._do("clear", id=number)

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """A fault for the length of a `with` block."""
        number = self.inject(fault)
        try:
            yield
        finally:
            self.clear(number)

    def requests(self, pattern: str = "") -> list[Request]:
        """What was asked since `forget`, oldest first, where `METHOD /path` contains a match of `pattern`."""
        seen = (Request(**entry) for entry in self._do("requests"))
        return [request for request in seen if re.search(pattern, request.line)]

    def in_flight(self, pattern: str = "") -> int:
        return sum(request.is_in_flight for request in self.requests(pattern))

    def peak_in_flight(self, pattern: str = "") -> int:
        """The largest number of such requests at the same moment since `forget`."""
        changes = []
        for request in self.requests(pattern):
            changes.append((request.started_s, 1))
            if request.ended_s is not None:
                changes.append((request.ended_s, -1))
        running = peak = 0
        for _, change in sorted(changes):
            running += change
            peak = max(peak, running)
        return peak

    def forget(self) -> None:
        """Drop the records of finished requests."""
        self._do("forget")

    def reset(self) -> None:
        """No limits, no faults, no records: the state it starts with."""
        self.limit()
        self.clear()
        self.forget()

    def _problem(self) -> str:
        try:
            self._do("requests")
        except OSError as error:
            return f"control socket {self._socket}: {error}"
        return ""

    def _do(self, command: str, **arguments: object) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(CONTROL_WITHIN_S)
            connection.connect(str(self._socket))
            connection.sendall(json.dumps({"do": command, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                reply = json.loads(stream.readline())
        if "error" in reply:
            raise LabError(f"throttle: {command} {arguments}: {reply['error']}")
        return reply["result"]

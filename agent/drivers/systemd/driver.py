# SPDX-License-Identifier: Apache-2.0
"""What a service manager gives us and wants to hear: sd_notify, the watchdog, sockets it opened.

The datagram protocol is a few lines, so no library. Without a service manager every call is a no-op.
"""

import os
import socket
import time
from collections.abc import Mapping

FIRST_ACTIVATED_FD = 3


class ServiceManager:
    """The notification socket, if there is one. Losing a message is harmless and therefore silent."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environment)
        """How often the manager wants a sign of life at the least; None if it wants none from this process."""

    def ready(self, status: str) -> None:
        """Start-up or reload is over."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """One line for `systemctl status`."""
        self._send(f"STATUS={status}")

    def reloading(self) -> None:
        """A reload begins; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def extend_timeout(self, duration_s: float) -> None:
        """More time for what is in flight."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(duration_s * 1e6)}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if self._address is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            try:
                out.sendto(message.encode(), self._address)
            except OSError:
                return


def _address(text: str) -> str | None:
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    usec = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 1e6


def activated_socket(environment: Mapping[str, str], name: str) -> socket.socket | None:
    """The listening socket of that name which the manager opened for this process, if any."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    count = environment.get("LISTEN_FDS", "0")
    for offset in range(int(count) if count.isdecimal() else 0):
        if offset < len(names) and names[offset] == name:
            return socket.socket(fileno=FIRST_ACTIVATED_FD + offset)
    return None

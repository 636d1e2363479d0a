# SPDX-License-Identifier: Apache-2.0
"""Connections from inside a namespace, and how they end: answered, refused, or not at all.

Owns: one thread per place that stays inside its namespace, so that a connection costs no process.
Never: judges; a reply says what was seen, and tests compare.
"""

import ctypes
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

from tests.lab.namespace import Namespace

__all__ = ["Caller", "Outcome", "Reply"]

T = TypeVar("T")
Outcome = Literal["answered", "refused", "timeout", "unreachable"]
Protocol = Literal["TCP", "UDP"]

IP_BIND_ADDRESS_NO_PORT = 24
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Reply:
    """`server` is who answered, `client` the address it saw."""

    outcome: Outcome
    server: str = ""
    client: str = ""
    took_s: float = 0.0


class Caller:
    """Connects from one namespace, with the addresses of one place unless told otherwise. Owns its thread."""

    def __init__(self, namespace: Namespace, v4: str, v6: str) -> None:
        self._namespace = namespace
        self._v4, self._v6 = v4, v6
        self._thread = ThreadPoolExecutor(1, "caller", initializer=self._enter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def run(self, work: Callable[[], T], within_s: float = 60.0) -> T:
        """Do something inside."""
        return self._thread.submit(work).result(within_s)

    def connect(
        self, address: str, port: int, protocol: Protocol = "TCP", *, source: str = "", wait_s: float = 1.0
    ) -> Reply:
        """One new connection, or one datagram from a new port, and the answer to it."""
        own = source or self._source(address)
        return self.run(lambda: _connect(address, port, protocol, own, wait_s))

    def spread(
        self, address: str, port: int, count: int, protocol: Protocol = "TCP", *, source: str = "", wait_s: float = 1.0
    ) -> Counter[str]:
        """How many of so many connections each server answered; what was not answered counts under its outcome."""

        own = source or self._source(address)

        def many() -> Counter[str]:
            replies = (_connect(address, port, protocol, own, wait_s) for _ in range(count))
            return Counter(reply.server or reply.outcome for reply in replies)

        return self.run(many, within_s=60.0 + count * wait_s)

    def hold(self, address: str, port: int, *, wait_s: float = 5.0) -> socket.socket:
        """A TCP connection that stays; the caller closes it."""

        def hold() -> socket.socket:
            return socket.create_connection((address, port), wait_s, (self._source(address), 0))

        return self.run(hold)

    def datagrams(self, source: str = "", port: int = 0, *, is_v6: bool = False) -> socket.socket:
        """A UDP socket that keeps its port, for flows that go on; the caller closes it."""

        def make() -> socket.socket:
            made = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_DGRAM)
            made.bind((source, port))
            return made

        return self.run(make)

    def _source(self, address: str) -> str:
        return self._v6 if ":" in address else self._v4

    def _enter(self) -> None:
        descriptor = os.open(self._namespace.path, os.O_RDONLY)
        try:
            if _libc.setns(descriptor, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(descriptor)


def _connect(address: str, port: int, protocol: Protocol, source: str, wait_s: float) -> Reply:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol == "TCP" else socket.SOCK_DGRAM
    began = time.monotonic()
    with closing(socket.socket(family, kind)) as connection:
        connection.settimeout(wait_s)
        if protocol == "TCP":
            # A port in TIME_WAIT for every connection would soon be all ports: end with a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        # The port is chosen when the other end is known: 28 000 ports are enough then for any number of ends.
        connection.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        connection.bind((source, 0))
        try:
            connection.connect((address, port))
            if protocol == "UDP":
                connection.send(b"?")
            server, client = connection.recv(200).decode().split()
        except TimeoutError:
            return Reply("timeout", took_s=time.monotonic() - began)
        except (ConnectionRefusedError, ConnectionResetError, PermissionError):
            # A rejected datagram of the host itself fails with EPERM in send() (TY-14).
            return Reply("refused", took_s=time.monotonic() - began)
        except OSError:
            return Reply("unreachable", took_s=time.monotonic() - began)
    return Reply("answered", server, client, time.monotonic() - began)

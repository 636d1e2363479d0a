# SPDX-License-Identifier: Apache-2.0
"""Ends TCP sockets of this host's network namespace, each found by both of its ends.

A socket is looked up first and then ended by the kernel's own number for it: a lookup by addresses also finds whoever
listens on the port, and that one must stay. One thread does the calls, so that the event loop waits for none of them.
Source: include/uapi/linux/inet_diag.h and sock_diag.h of the kernel.
"""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from agent.drivers.netlink.attributes import ACK, HEADER, REQUEST
from agent.model.services.flow import Flow, SocketsUnavailable

_NETLINK_SOCK_DIAG = 4
_FIND, _DESTROY = 20, 21
_ERROR = 2
_ALL_STATES = 0xFFFFFFFF
_TIME_WAIT, _LISTENS = 6, 10
_NO_COOKIE = b"\xff" * 8
_COOKIE = slice(44, 52)
_PORTS = slice(4, 8)
_DEADLINE_S = 5.0
_ANSWER_BYTES = 65536
_FAMILIES = {"IPv4": socket.AF_INET, "IPv6": socket.AF_INET6}
_GONE = (errno.ENOENT, errno.ESTALE)

OpenSocket = Callable[[], socket.socket]


def open_diag_socket() -> socket.socket:
    """Of the network namespace of the calling thread."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    opened.settimeout(_DEADLINE_S)
    return opened


class HostSockets:
    """Tests hand in where sockets live."""

    def __init__(self, *, opens: OpenSocket = open_diag_socket) -> None:
        self._opens = opens
        self._executor = ThreadPoolExecutor(1, "host-sockets")

    async def destroy(self, flows: Iterable[Flow]) -> int:
        doomed = tuple(flows)
        if not doomed:
            return 0
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._destroy, doomed)

    def _destroy(self, flows: Sequence[Flow]) -> int:
        try:
            with self._opens() as opened:
                return sum(_end(opened, one) for one in flows)
        except OSError as error:
            raise _failure(error) from error


def _end(opened: socket.socket, one: Flow) -> bool:
    """Whether there was such a socket."""
    found = _call(opened, _FIND, one, _NO_COOKIE)
    if found is None or found[1] in (_LISTENS, _TIME_WAIT):
        return False
    ports = struct.pack(">HH", one.source_port, one.destination_port)
    if found[_PORTS] != ports:
        return False
    return _call(opened, _DESTROY, one, found[_COOKIE]) is not None


def _call(opened: socket.socket, kind: int, one: Flow, cookie: bytes) -> bytes | None:
    """The answer's payload, empty for an acknowledgement; None: there is no such socket."""
    ends = struct.pack(">HH", one.source_port, one.destination_port)
    ends += one.source.ljust(16, b"\0") + one.destination.ljust(16, b"\0") + bytes(4) + cookie
    asked = struct.pack("=BBBBI", _FAMILIES[one.family], socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + ends
    flags = REQUEST | (ACK if kind == _DESTROY else 0)
    opened.sendto(HEADER.pack(HEADER.size + len(asked), kind, flags, 0, 0) + asked, (0, 0))
    answer = opened.recv(_ANSWER_BYTES)
    _, answered, _, _, _ = HEADER.unpack_from(answer)
    if answered != _ERROR:
        return answer[HEADER.size :]
    code = -int(struct.unpack_from("=i", answer, HEADER.size)[0])
    if code in _GONE:
        return None
    if code:
        raise OSError(code, os.strerror(code))
    return b""


def _failure(error: OSError) -> SocketsUnavailable:
    if isinstance(error, TimeoutError):
        return SocketsUnavailable("the kernel gives no answer about sockets; kepd tries again with the next ones")
    if error.errno in (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT):
        return SocketsUnavailable("the kernel cannot end sockets: it needs CONFIG_INET_DIAG_DESTROY")
    if error.errno in (errno.EPERM, errno.EACCES):
        return SocketsUnavailable("kepd may not end sockets: it needs CAP_NET_ADMIN")
    return SocketsUnavailable(f"sockets cannot be ended: {error.strerror}")

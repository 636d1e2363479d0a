# SPDX-License-Identifier: Apache-2.0
"""Addresses that this host takes on `lo` for itself: added, taken away, and watched, by small netlink messages.

Each is of scope link and deprecated, so that no packet of the host chooses it as its source.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address

_NEW, _DELETE, _DUMP_ADDRESSES, _ERROR, _DONE = 20, 21, 22, 2, 3
_REQUEST, _ACK, _DUMP, _REPLACE, _CREATE = 0x1, 0x4, 0x300, 0x100, 0x400
_ADDRESS, _LOCAL, _CACHE_INFO, _FLAGS = 1, 2, 6, 8
_SCOPE_LINK, _NO_DAD, _FOR_EVER = 253, 0x02, 0xFFFFFFFF
_GROUPS = 0x1 | 0x10 | 0x100
"""Links, addresses of IPv4, addresses of IPv6."""
_HEADER, _BODY, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("=HH")
_DEADLINE_S = 5.0


def open_route_socket() -> socket.socket:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)


class LoAddresses:
    """Raises OSError where the kernel refuses. `opens` is for tests, whose network namespace is another one."""

    def __init__(self, opens: Callable[[], socket.socket] = open_route_socket, index: int = 1) -> None:
        self._opens, self._index = opens, index

    def add(self, address: str) -> None:
        """As /32 or /128; one that is there stays."""
        self._change(_NEW, _REQUEST | _ACK | _CREATE | _REPLACE, address)

    def remove(self, address: str) -> None:
        with suppress(FileNotFoundError):
            self._change(_DELETE, _REQUEST | _ACK, address)

    def present(self, addresses: Iterable[str]) -> set[str]:
        """Those of them that `lo` has."""
        packed = {ip_address(one).packed: one for one in addresses}
        found: set[str] = set()
        with self._opens() as asking:
            asking.settimeout(_DEADLINE_S)
            asking.sendto(_HEADER.pack(17 + 3, _DUMP_ADDRESSES, _REQUEST | _DUMP, 1, 0) + b"\0\0\0\0", (0, 0))
            while True:
                for kind, body in _messages(asking.recv(1 << 16)):
                    if kind in (_DONE, _ERROR):
                        return found
                    index = _BODY.unpack_from(body)[4]
                    found |= {packed[one] for one in _addresses(body) if one in packed and index == self._index}

    def _change(self, kind: int, flags: int, address: str) -> None:
        packed = ip_address(address).packed
        family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
        body = _BODY.pack(family, len(packed) * 8, _NO_DAD, _SCOPE_LINK, self._index)
        body += _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed)
        if kind == _NEW:
            body += _attribute(_CACHE_INFO, struct.pack("=IIII", 0, _FOR_EVER, 0, 0))
            body += _attribute(_FLAGS, struct.pack("=I", _NO_DAD))
        with self._opens() as asking:
            asking.settimeout(_DEADLINE_S)
            asking.sendto(_HEADER.pack(16 + len(body), kind, flags, 1, 0) + body, (0, 0))
            for answer, found in _messages(asking.recv(1 << 16)):
                code = struct.unpack_from("=i", found)[0] if answer == _ERROR else 0
                if code and not (kind == _DELETE and code == -99):
                    raise OSError(-code, f"address {address} on lo was refused")

    async def changes(self) -> AsyncGenerator[None, None]:
        """Something happened to addresses or links. Never ends."""
        with self._opens() as listening:
            listening.setblocking(False)
            listening.bind((0, _GROUPS))
            loop = asyncio.get_running_loop()
            while True:
                with suppress(OSError):
                    await loop.sock_recv(listening, 1 << 16)
                yield None


def _attribute(kind: int, payload: bytes) -> bytes:
    return _ATTRIBUTE.pack(4 + len(payload), kind) + payload + bytes(-len(payload) % 4)


def _messages(block: bytes) -> Iterable[tuple[int, bytes]]:
    at = 0
    while at + 16 <= len(block):
        length, kind, _, _, _ = _HEADER.unpack_from(block, at)
        if length < 16:
            return
        yield kind, block[at + 16 : at + length]
        at += (length + 3) & ~3


def _addresses(body: bytes) -> Iterable[bytes]:
    at = _BODY.size
    while at + 4 <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < 4:
            return
        if kind in (_ADDRESS, _LOCAL):
            yield body[at + 4 : at + length]
        at += (length + 3) & ~3

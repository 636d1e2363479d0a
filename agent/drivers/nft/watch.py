# SPDX-License-Identifier: Apache-2.0
"""Who changes our table, other than we ourselves.

Owns: the socket that hears the kernel's notifications, the filter that keeps our own away from it, and the sentences.
Never: repairs; it does not even know what should be there.
Source of behaviour: NF-64. A commit's notifications come first, then the new generation with process id and name.
"""

import asyncio
import ctypes
import errno
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field

from agent.drivers.nft.attributes import HEADER, Message, attributes
from agent.model.nft_table import TABLE, Family

__all__ = ["Commit", "Hearing", "foreign_changes", "listen"]

_GROUP = 7
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 33, 26
_RECEIVE_BYTES = 1 << 23
_DATAGRAM_BYTES = 1 << 16
_FAMILY_NUMBERS = {"IPv4": 2, "IPv6": 10}

_WORDS = {
    Message.NEW_TABLE: "table created",
    Message.DELETE_TABLE: "table deleted",
    Message.NEW_CHAIN: "chain written",
    Message.DELETE_CHAIN: "chain deleted",
    Message.NEW_RULE: "rule added",
    Message.DELETE_RULE: "rule deleted",
    Message.NEW_SET: "map created",
    Message.DELETE_SET: "map deleted",
    Message.NEW_ELEMENTS: "element added",
    Message.DELETE_ELEMENTS: "element deleted",
}


@dataclass(slots=True)
class Commit:
    """What one process did to our table in one transaction."""

    deeds: Counter[str] = field(default_factory=Counter)
    pid: int = 0
    process: str = ""

    def __str__(self) -> str:
        who = f"{self.process or 'a process'} (pid {self.pid})" if self.pid else "somebody"
        what = ", ".join(f"{deed}, {count} times" if count > 1 else deed for deed, count in self.deeds.items())
        return f"{who} changed our table: {what}"


class Hearing:
    """Collects notifications until the generation tells that a commit is complete. Mutated by `hear` alone."""

    def __init__(self, family: Family, is_own: Callable[[int], bool]) -> None:
        self._family = _FAMILY_NUMBERS[family]
        self._is_own = is_own
        self._open: dict[int, Commit] = {}

    def hear(self, datagram: bytes) -> Iterator[Commit]:
        """The commits of others to our table that are complete now."""
        at = 0
        while at + HEADER.size + 4 <= len(datagram):
            length, kind, _, _, port = HEADER.unpack_from(datagram, at)
            if length < HEADER.size + 4:
                return
            if not self._is_own(port):
                begin, end = at + HEADER.size + 4, min(at + length, len(datagram))
                if kind == Message.NEW_GENERATION:
                    yield from self._complete(port, datagram, begin, end)
                elif datagram[at + HEADER.size] == self._family:
                    self._note(port, kind, datagram, begin, end)
            at += (length + 3) & ~3

    def lost(self) -> Commit:
        """Some of them did not reach us."""
        self._open.clear()
        return Commit(Counter(["so much at once that the kernel's messages were lost"]))

    def _note(self, port: int, kind: int, datagram: bytes, begin: int, end: int) -> None:
        table = next((datagram[a:b] for number, a, b in attributes(datagram, begin, end) if number == 1), b"")
        if table.rstrip(b"\0") == TABLE.encode():
            deed = _WORDS[Message(kind)] if kind in _WORDS else f"message {kind:#x}"
            self._open.setdefault(port, Commit()).deeds[deed] += 1

    def _complete(self, port: int, datagram: bytes, begin: int, end: int) -> Iterator[Commit]:
        commit = self._open.pop(port, None)
        if commit is None:
            return
        for number, a, b in attributes(datagram, begin, end):
            if number == 2:
                commit.pid = int.from_bytes(datagram[a:b], "big")
            if number == 3:
                commit.process = datagram[a:b].rstrip(b"\0").decode(errors="replace")
        yield commit


def listen(opened: socket.socket, own_port: int) -> socket.socket:
    """Join the group. What we ourselves wrote is dropped by the kernel: a first sync has 100 000 notifications."""
    opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
    _attach(opened, own_port)
    opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP)
    opened.setblocking(False)
    return opened


def _attach(opened: socket.socket, own_port: int) -> None:
    """Classic BPF: load the sender's port id of the first message; ours: keep nothing; else: keep all."""
    sender = int.from_bytes(struct.pack("=I", own_port), "big")
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in ((load, 0, 0, 12), (jump_if_equal, 0, 1, sender), (give, 0, 0, 0), (give, 0, 0, 0xFFFFFFFF))
    )
    kept = ctypes.create_string_buffer(program, len(program))
    opened.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(kept))
    )


async def foreign_changes(opened: socket.socket, hearing: Hearing) -> AsyncGenerator[str, None]:
    """A sentence for each commit of others. Owns the socket, and never ends of itself."""
    loop = asyncio.get_running_loop()
    with opened:
        while True:
            try:
                datagram = await loop.sock_recv(opened, _DATAGRAM_BYTES)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield str(hearing.lost())
                continue
            for commit in hearing.hear(datagram):
                yield str(commit)

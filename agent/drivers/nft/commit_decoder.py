# SPDX-License-Identifier: Apache-2.0
"""What the kernel's notifications say about our table.

A commit's notifications come first, then the new generation with process id and name.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from agent.drivers.netlink.attributes import HEADER, attributes
from agent.drivers.nft.messages import Message
from agent.model.services.nft_table import CLIENTS, TABLE, TableFamily

_FAMILY_NUMBERS = {"inet": 1, "IPv4": 2, "bridge": 7, "IPv6": 10}

_ELEMENTS = (Message.NEW_ELEMENTS, Message.DELETE_ELEMENTS)
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


class Commit(msgspec.Struct):
    """What one process did to our table in one transaction."""

    deeds: Counter[str] = msgspec.field(default_factory=Counter)
    pid: int = 0
    process: str = ""

    def __str__(self) -> str:
        who = f"{self.process or 'a process'} (pid {self.pid})" if self.pid else "another process"
        what = ", ".join(f"{deed}, {count} times" if count > 1 else deed for deed, count in self.deeds.items())
        return f"{who} changed kepd's table: {what}"


class CommitDecoder:
    """Collects notifications until the generation tells that a commit is complete. Mutated by `hear` alone."""

    def __init__(self, family: TableFamily, is_own: Callable[[int], bool], table: str = TABLE) -> None:
        self._table = table.encode()
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
        return Commit(Counter(["so much at once that messages of the kernel were lost"]))

    def _note(self, port: int, kind: int, datagram: bytes, begin: int, end: int) -> None:
        said = {number: datagram[a:b].rstrip(b"\0") for number, a, b in attributes(datagram, begin, end) if number < 3}
        # Packets bring clients and time takes them away: there is nothing to compare them with.
        is_client = kind in _ELEMENTS and said.get(2, b"").startswith((CLIENTS.encode(), b"cl_"))
        if said.get(1) == self._table and not is_client:
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

# SPDX-License-Identifier: Apache-2.0
"""A batch as one netlink transaction: the order of messages, how many elements go into one.

Also the way back from a message that the kernel refused to the chain or element that is to blame.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.drivers.netlink.attributes import ACK, APPEND, CREATE, REQUEST, message, nested, number, text
from agent.drivers.nft.dump import HOOKS
from agent.drivers.nft.elements import Counts, additions, deletions
from agent.drivers.nft.expressions import choice_rules
from agent.drivers.nft.messages import Message
from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import CLIENTS, TABLE, Batch, ChoiceChain, Family, layout_of

_BEGIN, _END = 0x10, 0x11
_NF_TABLES = 10
# A nested attribute counts its bytes in sixteen bits.
_MOST_NESTED_BYTES = 60_000
_MESSAGE_HEADER_BYTES = 20
_HOOK = re.compile(r"type (?P<type>\w+) hook (?P<hook>\w+) priority (?P<priority>-?\d+); policy (?P<policy>\w+)")


class _BatchPart(msgspec.Struct, frozen=True):
    chain: str = ""
    map: str = ""
    keys: Sequence[bytes] = ()
    elements: Sequence[bytes] = ()
    offset: int = 0
    """Where in the message the first element begins."""

    def refusal(self, errno: int, offset: int) -> RulesRefused:
        at = self.offset
        for key, element in zip(self.keys, self.elements, strict=True):
            if at <= offset < at + len(element):
                return RulesRefused.by_kernel(errno, map=self.map, key=key)
            at += len(element)
        key = self.keys[0] if len(self.keys) == 1 else b""
        return RulesRefused.by_kernel(errno, map=self.map, key=key, chain=self.chain)


class Transaction(msgspec.Struct, frozen=True):
    """The bytes to send, and what they are about. Sequence numbers run from `first`, that of the opening message."""

    data: bytes
    first: int
    parts: Sequence[_BatchPart]

    @property
    def last(self) -> int:
        """The sequence number of the message that is acknowledged."""
        return self.first + len(self.parts)

    def refusal(self, errno: int, sequence: int, offset: int) -> RulesRefused:
        """Who is to blame. `offset` is where in that message the kernel stopped, 0 if it does not say."""
        index = sequence - self.first - 1
        if 0 <= index < len(self.parts):
            return self.parts[index].refusal(errno, offset)
        return RulesRefused.by_kernel(errno)


class _Writer:
    """Collects messages. The last one but the closing one asks for the acknowledgement."""

    def __init__(self, family: Family, first: int) -> None:
        self._family = family
        self._first = first
        self._pending: list[tuple[Message, int, bytes]] = []
        self._parts: list[_BatchPart] = []

    def add(self, kind: Message, flags: int, payload: bytes, part: _BatchPart) -> None:
        self._pending.append((kind, flags, payload))
        self._parts.append(part)

    def add_elements(self, kind: Message, map_name: str, keys: Sequence[bytes], elements: Sequence[bytes]) -> None:
        flags = CREATE if kind is Message.NEW_ELEMENTS else 0
        whose = text(1, TABLE) + text(2, map_name)
        longest = max(map(len, elements), default=1)
        step = max(1, _MOST_NESTED_BYTES // longest)
        for at in range(0, len(elements), step):
            piece = elements[at : at + step]
            part = _BatchPart("", map_name, keys[at : at + step], piece, _MESSAGE_HEADER_BYTES + len(whose) + 4)
            self.add(kind, flags, whose + nested(3, *piece), part)

    def finish(self) -> Transaction:
        last = len(self._pending) - 1
        messages = [message(_BEGIN, REQUEST, self._first, "", b"", _NF_TABLES)]
        for index, (kind, flags, payload) in enumerate(self._pending):
            asked = flags | REQUEST | (ACK if index == last else 0)
            messages.append(message(kind, asked, self._first + 1 + index, self._family, payload))
        messages.append(message(_END, REQUEST, self._first + len(messages), "", b"", _NF_TABLES))
        return Transaction(b"".join(messages), self._first, self._parts)


def transaction(
    batch: Batch, family: Family, first: int, counts: Mapping[str, Counts] | None = None, like_clients: bytes = b""
) -> Transaction:
    """New chains, deletions, additions, chains and maps that go.

    `counts`: by map, what replaced elements had counted. `like_clients`: what makes a map one of clients.
    """
    writer = _Writer(family, first)
    for number_in_batch, name in enumerate(sorted({one.clients for one in batch.chains} - {CLIENTS}), 1):
        # One that is there already stays as it is.
        size = nested(9, number(1, int(name.rpartition("_")[2])))
        made_of = text(1, TABLE) + text(2, name) + like_clients + size + number(10, number_in_batch)
        writer.add(Message.NEW_SET, CREATE, made_of, _BatchPart(map=name))
    for name, body in batch.bodies.items():
        writer.add(Message.NEW_CHAIN, CREATE, text(1, TABLE) + text(3, name) + _hook(body.hook), _BatchPart(name))
    for name, body in batch.bodies.items():
        _write_rules(writer, name, body.rules)
    for chain in batch.chains:
        _add_chain(writer, chain, family)
    for name, keys in batch.deletes.items():
        writer.add_elements(Message.DELETE_ELEMENTS, name, keys, deletions(layout_of(name), family, keys))
    for name, pairs in batch.adds.items():
        elements = additions(layout_of(name), family, pairs, (counts or {}).get(name))
        writer.add_elements(Message.NEW_ELEMENTS, name, [key for key, _ in pairs], elements)
    for name in batch.gone_chains:
        writer.add(Message.DELETE_CHAIN, 0, text(1, TABLE) + text(3, name), _BatchPart(name))
    for name in batch.gone_maps:
        writer.add(Message.DELETE_SET, 0, text(1, TABLE) + text(2, name), _BatchPart(map=name))
    return writer.finish()


def _add_chain(writer: _Writer, chain: ChoiceChain, family: Family) -> None:
    """A chain that exists loses the rules it has."""
    writer.add(Message.NEW_CHAIN, CREATE, text(1, TABLE) + text(3, chain.name), _BatchPart(chain.name))
    _write_rules(writer, chain.name, choice_rules(chain, family))


def _write_rules(writer: _Writer, chain: str, rules: Iterable[bytes]) -> None:
    """These, in place of those that the chain has."""
    part = _BatchPart(chain)
    whose = text(1, TABLE) + text(2, chain)
    writer.add(Message.DELETE_RULE, 0, whose, part)
    for rule in rules:
        writer.add(Message.NEW_RULE, CREATE | APPEND, whose + nested(4, rule), part)


def _hook(hook: str) -> bytes:
    """As nft writes it: `type nat hook output priority -100; policy accept`."""
    found = _HOOK.fullmatch(hook)
    if found is None:
        return b""
    where = number(1, HOOKS.index(found["hook"])) + number(2, int(found["priority"]) & 0xFFFFFFFF)
    return nested(4, where) + number(5, int(found["policy"] == "accept")) + text(7, found["type"])


def removal(table: str, family: Family, first: int) -> Transaction:
    writer = _Writer(family, first)
    writer.add(Message.DELETE_TABLE, 0, text(1, table), _BatchPart())
    return writer.finish()

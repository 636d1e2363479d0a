# SPDX-License-Identifier: Apache-2.0
"""Our table in the kernel, by netlink. Every call here blocks, and runs in the driver's thread."""

import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from agent.drivers.netlink.attributes import Answer, attribute, attributes, nested, number, text
from agent.drivers.netlink.connection import NetlinkConnection
from agent.drivers.nft.dump import (
    chain_facts,
    clients_in,
    counted_elements,
    elements,
    object_packets,
    rule_chain,
    rule_expressions,
    table_facts,
)
from agent.drivers.nft.elements import Counts, deletions
from agent.drivers.nft.messages import Message
from agent.drivers.nft.transaction import removal, transaction
from agent.drivers.nft.watch import OwnSockets
from agent.model.services.iptables_rules import OWNER, RIVALS
from agent.model.services.nft_error import Interrupted, NftFailed, NftMissing, NotPermitted, RulesRefused
from agent.model.services.nft_table import (
    CLIENTS,
    LAYOUT,
    MAPS,
    PATTERN,
    RACE_DROPS,
    TABLE,
    WAYS_IN,
    AffineClient,
    Batch,
    ChainBody,
    Content,
    Family,
    TableFamily,
    TableState,
    layout_of,
)

_KUBE_PROXY_TABLE = "kube-proxy"
_MOST_TRIES = 5
_MOST_READINGS = 40
_SETTLE_S = 0.02
_MOST_SINGLY = 64
_ELEMENT_BYTES = 160
_SET_COUNT = 20
# What makes a map one of clients: all but its name, handle and size, and what the kernel says besides.
_LIKE_CLIENTS = (3, 4, 5, 6, 7, 13)
_LONGEST_PAUSE_S = 0.1
_MOST_SAMPLES = 3
_NO_NF_TABLES = (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT)
_NO_RIGHT = (errno.EPERM, errno.EACCES)
_Data = TypeVar("_Data")


def failure(family: TableFamily, code: int, table: str = TABLE) -> NftFailed:
    """What an errno means that belongs to no element or chain."""
    if code in _NO_RIGHT:
        return NotPermitted(f"kepd may not change table {table} of {family}: it needs CAP_NET_ADMIN")
    if code in _NO_NF_TABLES:
        return NftMissing("the kernel has no nf_tables: load the module, or set services.backend to iptables")
    return NftFailed(f"table {table} of {family}: {os.strerror(code)}; kepd tries again")


class KernelTable:
    """One family's table over one connection. Raises OSError where an errno says it all."""

    def __init__(self, family: Family, connection: NetlinkConnection, deadline_s: float) -> None:
        self._family: Family = family
        self._connection = connection
        self._deadline_s = deadline_s

    def check_access(self) -> None:
        """Asking needs the same right as changing. A table with an owner can be changed by that process alone."""
        for answer in self._dump(Message.GET_TABLE):
            facts = table_facts(answer)
            if facts.name == TABLE and facts.owner not in (0, self._connection.port_id):
                whose = f"table {TABLE} of {self._family} belongs to the process with netlink port {facts.owner}"
                raise NotPermitted(f"{whose}: stop it, or delete the table; kepd tries again")

    def rivals(self) -> Sequence[str]:
        """Tables and chains with the rules of other programs for Services."""
        tables = map(table_facts, self._dump(Message.GET_TABLE))
        found = [
            f"table {one.name} of kube-proxy"
            for one in tables
            if one.name == _KUBE_PROXY_TABLE and self._dump(Message.GET_RULE, text(1, one.name))
        ]
        chains = list(map(chain_facts, self._dump(Message.GET_CHAIN)))
        # Our own iptables backend has kube-proxy's names, and this chain beside them; its rules go after ours are in.
        ours = {TABLE, *(one.table for one in chains if one.name == OWNER)}
        found += [
            f"chain {one.name} of {RIVALS[one.name]} in table {one.table}"
            for one in chains
            if one.table not in ours and one.name in RIVALS and self._has_rules(one.table, one.name)
        ]
        return found

    def forward_drops(self) -> Sequence[str]:
        """Chains of others whose policy drops what this node forwards."""
        answers = (*self._dump(Message.GET_CHAIN), *self._dump(Message.GET_CHAIN, family="inet"))
        return [
            f"chain {one.name} of table {one.table}"
            for one in map(chain_facts, answers)
            if " hook forward " in one.hook and one.hook.endswith("policy drop") and one.table != TABLE
        ]

    def has_table(self, name: str) -> bool:
        """Whether the family has one of that name, whose ever."""
        return any(table_facts(answer).name == name for answer in self._dump(Message.GET_TABLE))

    def forward_chains(self) -> Sequence[str]:
        """Of others, whatever they do."""
        answers = (*self._dump(Message.GET_CHAIN), *self._dump(Message.GET_CHAIN, family="inet"))
        return [
            f"chain {one.name} of table {one.table}"
            for one in map(chain_facts, answers)
            if " hook forward " in one.hook and not one.table.startswith(TABLE)
        ]

    def _has_rules(self, table: str, chain: str) -> bool:
        answers = self._dump(Message.GET_RULE, text(1, table) + text(2, chain))
        return any(rule_chain(answer) == chain for answer in answers)

    def apply(self, batch: Batch, own_sockets: OwnSockets) -> None:
        counted = {name: keys for name, keys in batch.replaced.items() if layout_of(name).has_counter}
        counts = {name: self._counts_of(name, keys) for name, keys in counted.items()}
        facts = self._facts_of(CLIENTS) if any(one.clients != CLIENTS for one in batch.chains) else {}
        like = b"".join(attribute(kind, facts[kind]) for kind in _LIKE_CLIENTS if kind in facts)
        planned = transaction(batch, self._family, self._connection.take_sequence(0), counts, like)
        self._connection.take_sequence(len(planned.parts) + 2)
        if len(planned.data) > self._connection.most_bytes:
            text = (
                f"{len(planned.data)} bytes in one transaction; this node's sockets take {self._connection.most_bytes}"
            )
            raise RulesRefused(
                f"{text}: raise net.core.wmem_max, or run kepd outside of a user namespace", errno=errno.EMSGSIZE
            )
        with own_sockets.transaction(batch.size, self._generation):
            refused = self._connection.transact(planned.data, planned.first, planned.last, self._deadline_s)
        if refused is None:
            return
        if refused.errno in _NO_RIGHT:
            self.check_access()
            raise failure(self._family, refused.errno)
        raise planned.refusal(refused.errno, refused.sequence, refused.offset)

    def has_services(self) -> bool:
        for name in WAYS_IN:
            try:
                if self._whole(name, partial(elements, MAPS[name], self._family)):
                    return True
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        return False

    def most_elements(self) -> int:
        return self._connection.most_bytes // _ELEMENT_BYTES

    def read(self) -> TableState | None:
        table = next((one for one in map(table_facts, self._dump(Message.GET_TABLE)) if one.name == TABLE), None)
        if table is None:
            return None
        chains = map(chain_facts, self._dump(Message.GET_CHAIN))
        ours = {chain.name: chain for chain in chains if chain.table == TABLE}
        rules = self._rules(TABLE)
        bodies = {name: ChainBody(rules.get(name, ()), one.hook) for name, one in ours.items()}
        text = ours[LAYOUT].comment if LAYOUT in ours else ""
        return TableState(text, bodies, self._content(), table.is_dormant)

    def take_pattern(self, own_sockets: OwnSockets) -> dict[str, tuple[bytes, ...]]:
        """The rules of the pattern by chain. The table goes; one that stays does nothing and is replaced next time."""
        rules = self._rules(PATTERN)
        planned = removal(PATTERN, self._family, self._connection.take_sequence(0))
        self._connection.take_sequence(len(planned.parts) + 2)
        with own_sockets.transaction(1, self._generation):
            self._connection.transact(planned.data, planned.first, planned.last, self._deadline_s)
        return rules

    def _rules(self, table: str) -> dict[str, tuple[bytes, ...]]:
        found: dict[str, list[bytes]] = {}
        for answer in self._dump(Message.GET_RULE, text(1, table)):
            found.setdefault(rule_chain(answer), []).append(rule_expressions(answer))
        return {name: tuple(rules) for name, rules in found.items()}

    def counters(self, name: str) -> dict[bytes, tuple[int, int]]:
        return self._whole(name, counted_elements)

    def client_count(self, name: str) -> int:
        """Entries of a map of clients. Kernels before 6.16 do not say it; there all are read."""
        count = self._facts_of(name).get(_SET_COUNT)
        return int.from_bytes(count, "big") if count else sum(map(len, self._clients(name)))

    def clients(self, name: str, most: int, pairs: Collection[bytes] | None) -> list[AffineClient]:
        """The first that the kernel tells, which it does in the order of a hash: a sample. `most` 0: all.

        Between two messages the kernel only remembers how many it told. A map that grows then changes its order, and
        some come twice and others never; so where entries are missing all are read again.
        """
        found: dict[bytes, AffineClient] = {}
        seen: set[bytes] = set()
        for _ in range(_MOST_SAMPLES):
            for some in self._clients(name, is_paced=not most):
                seen.update(one.key for one in some)
                found.update((one.key, one) for one in some if pairs is None or one.pair in pairs)
                if most and len(found) >= most:
                    return list(found.values())
            counted = int.from_bytes(self._facts_of(name).get(_SET_COUNT, b""), "big")
            # What has expired is still counted for a moment.
            if most or counted - len(seen) <= counted // 64:
                break
        return list(found.values())

    def _clients(self, name: str, *, is_paced: bool = True) -> Iterator[list[AffineClient]]:
        """The kernel begins anew for each message, so that 262 144 take it 5 s: all are read at half a core."""
        whose, began_s = text(1, TABLE) + text(2, name), time.monotonic()
        for answer, _ in self._connection.stream(Message.GET_ELEMENTS, self._family, whose, self._deadline_s):
            yield clients_in(answer, self._family)
            time.sleep(min(time.monotonic() - began_s, _LONGEST_PAUSE_S) if is_paced else 0)
            began_s = time.monotonic()

    def _facts_of(self, name: str) -> dict[int, bytes]:
        whose = text(1, TABLE) + text(2, name)
        block, begin, end = self._connection.ask(Message.GET_SET, self._family, whose, self._deadline_s)
        return {kind: block[at:stop] for kind, at, stop in attributes(block, begin, end)}

    def race_drops(self) -> int:
        """What the named counter of that name has counted."""
        counter = 1
        whose = text(1, TABLE) + text(2, RACE_DROPS) + number(3, counter)
        return object_packets(self._connection.ask(Message.GET_OBJECT, self._family, whose, self._deadline_s))

    def _counts_of(self, name: str, keys: Collection[bytes]) -> Counts:
        """What these elements have counted. One that is not there has no count: the transaction will tell."""
        try:
            if len(keys) > _MOST_SINGLY:
                return self.counters(name)
            found: dict[bytes, tuple[int, int]] = {}
            for element in deletions(MAPS[name], self._family, list(keys)):
                whose = text(1, TABLE) + text(2, name) + nested(3, element)
                answer = self._connection.ask(Message.GET_ELEMENTS, self._family, whose, self._deadline_s)
                found.update(counted_elements([answer]) or {})
            return found
        except (OSError, Interrupted):
            return {}

    def _content(self) -> Content:
        """All our maps; one that is not there has no place in it."""
        content: Content = {}
        for layout in MAPS.values():
            try:
                content[layout.name] = self._whole(layout.name, partial(elements, layout, self._family))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        return content

    def _whole(self, name: str, decode: Callable[[Iterable[Answer]], dict[bytes, _Data] | None]) -> dict[bytes, _Data]:
        """All elements, asked for again while the kernel moves them about (see dump.py)."""
        for _ in range(_MOST_READINGS):
            found = decode(self._dump(Message.GET_ELEMENTS, text(1, TABLE) + text(2, name)))
            if found is not None:
                return found
            time.sleep(_SETTLE_S)
        raise Interrupted(
            f"map {name} of table {TABLE} did not settle in {_MOST_READINGS} readings; kepd reads it again"
        )

    def _dump(self, kind: Message, payload: bytes = b"", *, family: str = "") -> Sequence[Answer]:
        for _ in range(_MOST_TRIES):
            dump = self._connection.dump(kind, family or self._family, payload, self._deadline_s)
            if dump.is_whole:
                return dump.answers
        raise Interrupted(
            f"{_MOST_TRIES} readings of the table were cut short by other programs' changes; kepd reads it again"
        )

    def _generation(self) -> int:
        """The number of the rule set, which each commit to any table raises by one."""
        generation_attribute = 1
        block, begin, end = self._connection.ask(Message.GET_GENERATION, "", b"", self._deadline_s)
        for kind, at, stop in attributes(block, begin, end):
            if kind == generation_attribute:
                return int.from_bytes(block[at:stop], "big")
        raise OSError(errno.EPROTO, "a generation without a number")

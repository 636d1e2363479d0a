# SPDX-License-Identifier: Apache-2.0
"""Our nftables table of one family, in the network namespace of whoever starts us.

Owns: one netlink socket and one thread that uses it, so that neither encoding nor the kernel's locks hold up the
event loop. Structure goes through the nft program, everything else through netlink (NF-3).
Never: decides what should be in the table, or touches another one (NF-1).
"""

import asyncio
import errno
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import TypeVar

from agent.drivers.nft.attributes import Message, text
from agent.drivers.nft.binary import require_kernel, require_nft, run_text
from agent.drivers.nft.dump import Answer, chain_facts, counted_elements, elements, rule_chain, table_facts
from agent.drivers.nft.hearing import Hearing
from agent.drivers.nft.netlink import Connection, OpenSocket, open_socket
from agent.drivers.nft.transaction import transaction
from agent.drivers.nft.watch import Ear, Listening
from agent.model.nft_error import Interrupted, NftFailed, NftMissing, NotPermitted, OutcomeUnknown
from agent.model.nft_table import LAYOUT, MAPS, TABLE, Batch, Content, Family, TableState

__all__ = ["NftTable"]

_DEADLINE_S = 30.0
_KUBE_PROXY_TABLE = "kube-proxy"
_RIVAL_CHAINS = {"KUBE-SERVICES": "kube-proxy", "CILIUM_PRE_nat": "cilium"}
_NO_NF_TABLES = (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT)
_MOST_READINGS = 40
_SETTLE_S = 0.02
_Result = TypeVar("_Result")
_Data = TypeVar("_Data")


class NftTable:
    """`listening` is what the tables of one process share. Tests hand in where sockets and the program live."""

    def __init__(
        self,
        family: Family,
        *,
        command: Sequence[str] = ("nft",),
        opens: OpenSocket = open_socket,
        listening: Listening | None = None,
        deadline_s: float = _DEADLINE_S,
    ) -> None:
        self._family = family
        self._command = tuple(command)
        self._opens = opens
        self._deadline_s = deadline_s
        self._connection: Connection | None = None
        self._listening = listening or Listening()
        self._executor = ThreadPoolExecutor(1, f"nft-{family}")

    async def check(self) -> None:
        """Whether this node can have the table at all; raises what is wrong in one line."""
        require_kernel(os.uname().release)
        await require_nft(self._command, self._deadline_s)
        await self._call(self._check_access)

    async def rivals(self) -> Sequence[str]:
        """Tables and chains of other programs for Services (DS-14)."""
        return await self._call(self._rivals)

    async def load(self, text: str) -> None:
        """Run a text of structure as one transaction."""
        await run_text(self._command, text, self._deadline_s, self._listening.add_load)

    async def read(self) -> TableState | None:
        """What is there, by netlink (NF-8); None: no table of ours."""
        return await self._call(self._read)

    async def apply(self, batch: Batch) -> None:
        """All of it or nothing."""
        if batch:
            await self._call(lambda connection: self._apply(connection, batch))

    async def counters(self, name: str) -> Mapping[bytes, tuple[int, int]]:
        """Packets and bytes per element of a map with counters (NF-37)."""
        return await self._call(lambda connection: self._whole(connection, name, counted_elements))

    async def changes(self) -> AsyncGenerator[str, None]:
        """A sentence for each transaction of others on our table (NF-64)."""
        opened = await self._call(lambda _: self._opens())
        ear = Ear(opened, Hearing(self._family, self._listening.is_own), self._listening.own_ports)
        self._listening.add_ear(ear)
        try:
            async with aclosing(ear.sentences()) as sentences:
                async for sentence in sentences:
                    yield sentence
        finally:
            self._listening.remove_ear(ear)
            ear.close()

    async def close(self) -> None:
        """Let go of the socket and the thread; the table stays (SY-13)."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._executor.shutdown(wait=False)

    async def _call(self, work: Callable[[Connection], _Result]) -> _Result:
        """Run in our thread. If the deadline passes, the work may still come to its end there, before any later one."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2 * self._deadline_s):
                return await loop.run_in_executor(self._executor, self._work, work)
        except TimeoutError as error:
            raise OutcomeUnknown("nf_tables is blocked by somebody else; the table is read again") from error

    def _work(self, work: Callable[[Connection], _Result]) -> _Result:
        try:
            if self._connection is None:
                self._connection = Connection(self._opens())
                self._listening.add_port(self._connection.port_id)
            return work(self._connection)
        except OSError as error:
            raise self._failure(error.errno or 0) from error

    def _failure(self, code: int) -> NftFailed:
        if code in (errno.EPERM, errno.EACCES):
            return NotPermitted(f"table {TABLE} of {self._family} may not be changed: right is CAP_NET_ADMIN")
        if code in _NO_NF_TABLES:
            return NftMissing("the kernel has no nf_tables: load the module, or set services.backend to iptables")
        return NftFailed(f"table {TABLE} of {self._family}: {os.strerror(code)}; it is tried again")

    def _rivals(self, connection: Connection) -> Sequence[str]:
        tables = map(table_facts, connection.dump(Message.GET_TABLE, self._family, b"", self._deadline_s))
        found = [f"table {one.name} of kube-proxy" for one in tables if one.name == _KUBE_PROXY_TABLE]
        chains = map(chain_facts, connection.dump(Message.GET_CHAIN, self._family, b"", self._deadline_s))
        found += [
            f"chain {one.name} of {_RIVAL_CHAINS[one.name]} in table {one.table}"
            for one in chains
            if one.table != TABLE and one.name in _RIVAL_CHAINS
        ]
        return found

    def _check_access(self, connection: Connection) -> None:
        """Asking needs the same right as changing. A table with an owner can be changed by that process alone."""
        for answer in connection.dump(Message.GET_TABLE, self._family, b"", self._deadline_s):
            facts = table_facts(answer)
            if facts.name == TABLE and facts.owner not in (0, connection.port_id):
                whose = f"table {TABLE} of {self._family} belongs to the process with netlink port {facts.owner}"
                raise NotPermitted(f"{whose}: end it, or delete the table; it is tried again")

    def _apply(self, connection: Connection, batch: Batch) -> None:
        planned = transaction(batch, self._family, connection.next_sequence)
        with self._listening.transaction(batch.size, lambda: connection.generation(self._deadline_s)):
            failure = connection.transact(planned.data, planned.first, planned.last, self._deadline_s)
        if failure is None:
            return
        if failure.errno in (errno.EPERM, errno.EACCES):
            self._check_access(connection)
            raise self._failure(failure.errno)
        raise planned.refusal(failure.errno, failure.sequence, failure.offset)

    def _read(self, connection: Connection) -> TableState | None:
        tables = connection.dump(Message.GET_TABLE, self._family, b"", self._deadline_s)
        if all(table_facts(answer).name != TABLE for answer in tables):
            return None
        chains = map(chain_facts, connection.dump(Message.GET_CHAIN, self._family, b"", self._deadline_s))
        ours = {chain.name: chain.comment for chain in chains if chain.table == TABLE}
        rules = dict.fromkeys(ours, 0)
        for answer in connection.dump(Message.GET_RULE, self._family, text(1, TABLE), self._deadline_s):
            name = rule_chain(answer)
            rules[name] = rules.get(name, 0) + 1
        return TableState(ours.get(LAYOUT, ""), frozenset(ours), self._content(connection), rules)

    def _content(self, connection: Connection) -> Content:
        """All our maps; one that is not there has no place in it."""
        content: Content = {}
        for layout in MAPS.values():
            try:
                decode = partial(elements, layout, self._family)
                content[layout.name] = self._whole(connection, layout.name, decode)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        return content

    def _whole(
        self, connection: Connection, name: str, decode: Callable[[Iterable[Answer]], dict[bytes, _Data] | None]
    ) -> dict[bytes, _Data]:
        """All elements, asked for again while the kernel moves them about (see dump.py)."""
        for _ in range(_MOST_READINGS):
            found = decode(self._dump_map(connection, name))
            if found is not None:
                return found
            time.sleep(_SETTLE_S)
        raise Interrupted(f"map {name} of table {TABLE} did not settle in {_MOST_READINGS} readings; it is read again")

    def _dump_map(self, connection: Connection, name: str) -> Iterator[Answer]:
        whose = text(1, TABLE) + text(2, name)
        return connection.dump(Message.GET_ELEMENTS, self._family, whose, self._deadline_s)

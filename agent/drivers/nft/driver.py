# SPDX-License-Identifier: Apache-2.0
"""Our nftables table of one family, in the network namespace of whoever starts us.

One netlink socket and one thread that uses it, so that neither encoding nor the kernel's locks hold up the event loop.
Structure goes through the nft program, everything else through netlink. Never: touches another table.
"""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager
from typing import TypeVar

from agent.drivers.netlink.connection import NetlinkConnection, NetlinkSilent, OpenSocket, open_socket
from agent.drivers.nft.binary import require_kernel, require_nft, run_text
from agent.drivers.nft.kernel_table import KernelTable, failure
from agent.drivers.nft.watch import OwnSockets
from agent.model.services.nft_error import NotPermitted, OutcomeUnknown
from agent.model.services.nft_table import AffineClient, Batch, Family, TableState

_DEADLINE_S = 30.0
_Result = TypeVar("_Result")


class NftTable:
    """`listening` is what the tables of one process share. Tests hand in where sockets and the program live."""

    def __init__(
        self,
        family: Family,
        *,
        command: Sequence[str] = ("nft",),
        opens: OpenSocket = open_socket,
        own_sockets: OwnSockets | None = None,
    ) -> None:
        self.family: Family = family
        self._command = tuple(command)
        self._opens = opens
        self._connection: NetlinkConnection | None = None
        self._own_sockets = own_sockets or OwnSockets()
        self._unclaimed: list[socket.socket] = []
        self._executor = ThreadPoolExecutor(1, f"nft-{family}")

    async def check(self) -> None:
        """Whether this node can have the table at all; raises what is wrong in one line."""
        require_kernel(os.uname().release)
        await require_nft(self._command, _DEADLINE_S)
        await self._call(KernelTable.check_access)

    async def rivals(self) -> Sequence[str]:
        """Tables and chains of other programs for Services."""
        return await self._call(KernelTable.rivals)

    async def forward_drops(self) -> Sequence[str]:
        return await self._call(KernelTable.forward_drops)

    async def has_table(self, name: str) -> bool:
        return await self._call(lambda table: table.has_table(name))

    async def forward_chains(self) -> Sequence[str]:
        """Chains of others that see what this node forwards."""
        return await self._call(KernelTable.forward_chains)

    async def load(self, text: str) -> None:
        try:
            with self._own_sockets.program():
                await run_text(self._command, text, _DEADLINE_S, self._own_sockets.add_load)
        except NotPermitted:
            # Perhaps because of an owner, which nft does not name.
            await self._call(KernelTable.check_access)
            raise

    async def has_services(self) -> bool:
        return await self._call(KernelTable.has_services)

    async def most_elements(self) -> int:
        return await self._call(KernelTable.most_elements)

    async def pattern(self, text: str) -> Mapping[str, tuple[bytes, ...]]:
        """The rules that the kernel makes of a text, by chain; the table that showed them is gone again."""
        await self.load(text)
        return await self._call(lambda table: table.take_pattern(self._own_sockets))

    async def read(self) -> TableState | None:
        return await self._call(KernelTable.read)

    async def apply(self, batch: Batch) -> None:
        if batch:
            await self._call(lambda table: table.apply(batch, self._own_sockets))

    async def counters(self, name: str) -> Mapping[bytes, tuple[int, int]]:
        """Packets and bytes per element of a map with counters."""
        return await self._call(lambda table: table.counters(name))

    async def race_drops(self) -> int:
        """Packets that were dropped because their endpoint went between two lookups."""
        return await self._call(lambda table: table.race_drops())

    async def client_count(self, name: str) -> int:
        return await self._aside(lambda table: table.client_count(name))

    async def clients(self, name: str, most: int = 0, pairs: Collection[bytes] | None = None) -> Sequence[AffineClient]:
        """Entries of a map of clients: about so many, or all; of these, those of the pairs."""
        return await self._aside(lambda table: table.clients(name, most, pairs))

    async def _aside(self, work: Callable[[KernelTable], _Result]) -> _Result:
        """By a thread and a socket of its own: no sync waits for that."""

        def run() -> _Result:
            with self._told_failures(), closing(NetlinkConnection(self._opens())) as connection:
                return work(KernelTable(self.family, connection, _DEADLINE_S))

        return await asyncio.to_thread(run)

    async def changes(self) -> AsyncGenerator[str, None]:
        """A sentence for each transaction of others on our table."""
        opened = await self._call(lambda _: self._open_unclaimed())
        self._unclaimed.remove(opened)
        async with aclosing(self._own_sockets.changes(opened, self.family)) as sentences:
            async for sentence in sentences:
                yield sentence

    async def close(self) -> None:
        """Let go of the socket and the thread; the table stays."""
        await asyncio.get_running_loop().run_in_executor(self._executor, self._let_go)
        self._executor.shutdown(wait=False)

    def _let_go(self) -> None:
        """In our thread, after whatever it still had to do."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        while self._unclaimed:
            self._unclaimed.pop().close()

    def _open_unclaimed(self) -> socket.socket:
        """Whoever asked for it may be cancelled before it gets it."""
        opened = self._opens()
        self._unclaimed.append(opened)
        return opened

    async def _call(self, work: Callable[[KernelTable], _Result]) -> _Result:
        """Run in our thread. If the deadline passes, the work may still come to its end there, before any later one."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(2 * _DEADLINE_S):
                return await loop.run_in_executor(self._executor, self._work, work)
        except TimeoutError as error:
            raise OutcomeUnknown(
                "nf_tables timed out, probably locked by another process; kepd reads the table again"
            ) from error

    def _work(self, work: Callable[[KernelTable], _Result]) -> _Result:
        with self._told_failures():
            if self._connection is None:
                self._connection = NetlinkConnection(self._opens())
                self._own_sockets.add_port(self._connection.port_id)
            return work(KernelTable(self.family, self._connection, _DEADLINE_S))

    @contextmanager
    def _told_failures(self) -> Iterator[None]:
        try:
            yield
        except NetlinkSilent as error:
            raise OutcomeUnknown(f"table of {self.family}: {error}; kepd reads it again") from error
        except OSError as error:
            raise failure(self.family, error.errno or 0) from error

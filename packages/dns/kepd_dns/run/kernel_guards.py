# SPDX-License-Identifier: Apache-2.0
"""Puts the rules of one family into the kernel, and takes live addresses in and out, with either backend."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from ipaddress import ip_address
from typing import Protocol

from agent.model.services.nft_table import Family
from kepd_dns.ports import Programs, TimedTable
from kepd_dns.rules import iptables, nftables
from kepd_dns.rules.guards import LIFE_S, Asking
from kepd_dns.rules.iptables import JUMPS


class KernelGuards(Protocol):
    async def put(self, asking: Asking, live: Collection[str]) -> None:
        """Everything anew."""

    async def refresh(self, address: str) -> None:
        """It answers: for the next while questions go to it."""

    async def withdraw(self, address: str) -> None: ...

    async def is_there(self) -> bool:
        """Whether anything of it is."""

    async def is_intact(self) -> bool:
        """Whether what was put is still there, as far as a look can tell; asked after somebody changed something."""

    async def remove(self) -> None: ...

    async def input_drops(self) -> Sequence[str]: ...

    async def strangers(self) -> int:
        """Packets from clients outside dns.allowFrom, since everything was put anew."""

    def changes(self) -> AsyncGenerator[str, None]: ...


class NftGuards:
    def __init__(self, family: Family, table: TimedTable) -> None:
        self._family: Family = family
        self._table = table

    async def put(self, asking: Asking, live: Collection[str]) -> None:
        await self._table.load(nftables.table_text(asking, live))

    async def refresh(self, address: str) -> None:
        await self._table.refresh(nftables.LIVE, [ip_address(address).packed], LIFE_S)

    async def withdraw(self, address: str) -> None:
        await self._table.remove(nftables.LIVE, [ip_address(address).packed])

    async def is_there(self) -> bool:
        return await self._table.exists()

    async def is_intact(self) -> bool:
        """Any foreign write invalidates the table."""
        return False

    async def remove(self) -> None:
        await self._table.load(nftables.removal_text(self._family))

    async def input_drops(self) -> Sequence[str]:
        return await self._table.input_drops()

    async def strangers(self) -> int:
        return await self._table.counter("foreign")

    async def changes(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._table.changes()) as sentences:
            async for sentence in sentences:
                yield sentence


class IptablesGuards:
    """No element has a life there, so a change of what is live writes our chains anew."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._asking: Asking | None = None
        self._live: set[str] = set()
        self._listed: tuple[str, ...] = ()
        self._writing = asyncio.Lock()
        self._refused = 0
        """Packets of strangers that chains counted which are gone."""

    async def put(self, asking: Asking, live: Collection[str]) -> None:
        async with self._writing:
            self._refused = 0
            await self._put(asking, live)

    async def _put_live(self, asking: Asking, live: Collection[str]) -> None:
        async with self._writing:
            self._refused = await self.strangers()
            await self._put(asking, live)

    async def _put(self, asking: Asking, live: Collection[str]) -> None:
        self._asking, self._live = asking, set(live)
        await self._programs.run("-restore", "-w", "5", "--noflush", text=iptables.restore_text(asking, sorted(live)))
        looks = [
            self._programs.succeeds("-w", "5", "-t", table, "-C", chain, "-j", ours) for table, chain, ours in JUMPS
        ]
        missing = [jump for jump, is_there in zip(JUMPS, await asyncio.gather(*looks), strict=True) if not is_there]
        if missing:
            await self._programs.run("-restore", "-w", "5", "--noflush", text=iptables.jumps_text(missing))
        self._listed = await self._list()

    async def _list(self) -> tuple[str, ...]:
        """What our chains have."""
        return tuple(
            await asyncio.gather(
                *(
                    self._programs.found("-w", "5", "-t", table, "-S", one)
                    for table, chains in iptables.CHAINS.items()
                    for one in chains
                )
            )
        )

    async def is_intact(self) -> bool:
        """While we write ourselves there is nothing to compare with."""
        async with self._writing:
            return await self._is_intact()

    async def _is_intact(self) -> bool:
        """Lists alone: asked for a jump to a chain that goes away meanwhile, the programs fail."""
        if await self._list() != self._listed:
            return False
        looks = [self._programs.found("-w", "5", "-t", table, "-S", chain) for table, chain, _ in JUMPS]
        found = zip(JUMPS, await asyncio.gather(*looks), strict=True)
        return all(f"-A {chain} -j {ours}" in listed.splitlines() for (_, chain, ours), listed in found)

    async def refresh(self, address: str) -> None:
        if self._asking is not None and address not in self._live:
            await self._put_live(self._asking, {*self._live, address})

    async def withdraw(self, address: str) -> None:
        if self._asking is not None and address in self._live:
            await self._put_live(self._asking, self._live - {address})

    async def is_there(self) -> bool:
        return any(await self._list())

    async def remove(self) -> None:
        for table, chain, ours in JUMPS:
            if not await self._programs.succeeds("-w", "5", "-t", table, "-S", ours):
                continue
            while await self._programs.succeeds("-w", "5", "-t", table, "-C", chain, "-j", ours):
                await self._programs.run("", "-w", "5", "-t", table, "-D", chain, "-j", ours)
        for table, chains in iptables.CHAINS.items():
            for verb in ("-F", "-X"):
                for one in chains:
                    if await self._programs.succeeds("-w", "5", "-t", table, "-S", one):
                        await self._programs.run("", "-w", "5", "-t", table, verb, one)
        self._live = set()

    async def input_drops(self) -> Sequence[str]:
        """Our own chain accepts there."""
        return ()

    async def strangers(self) -> int:
        listed = await self._programs.found("-w", "5", "-t", "raw", "-v", "-S", iptables.STRANGERS)
        return self._refused + iptables.dropped(listed)

    async def changes(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._programs.changes()) as sentences:
            async for sentence in sentences:
                yield sentence

# SPDX-License-Identifier: Apache-2.0
"""The iptables programs of one family, of the variant that this node uses, and whether rules changed."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from agent.drivers.iptables.program import Program
from agent.drivers.iptables.sign import sign_of
from agent.drivers.iptables.variant import choose, legacy_names, look
from agent.drivers.netlink.connection import NetlinkSilent
from agent.model.services.iptables_rules import Variant
from agent.model.services.nft_table import Family

_NAMES = {"IPv4": "iptables", "IPv6": "ip6tables"}
_DEADLINE_S, _LOOK_S = 30.0, 0.25


class FamilyPrograms:
    """Tests hand in where the programs run, and how the kernel is asked for its sign."""

    def __init__(
        self,
        family: Family,
        *,
        prefix: Sequence[str] = (),
        variant: Variant | None = None,
        sign: Callable[[Family, Variant, Sequence[str]], bytes] = sign_of,
    ) -> None:
        self.family: Family = family
        self.variant = variant
        self._program, self._sign = Program(prefix, _DEADLINE_S), sign

    async def run(self, suffix: str, *argv: str, text: str = "") -> str:
        """Raises NftFailed."""
        return await self._program.run(f"{await self._name()}{suffix}", *argv, text=text)

    async def succeeds(self, *argv: str) -> bool:
        return await self._program.succeeds(await self._name(), *argv)

    async def found(self, *argv: str) -> str:
        return await self._program.found(await self._name(), *argv)

    async def _name(self) -> str:
        if self.variant is None:
            self.variant = choose(await look(self._program, lambda: legacy_names("IPv4") + legacy_names("IPv6")))
        return f"{_NAMES[self.family]}-{self.variant}"

    async def changes(self) -> AsyncGenerator[str, None]:
        """Tells of each change of rules, perhaps of ours: a number of the kernel's differs, and reading that is cheap.
        A listener would make the kernel write down each rule of each change, those of 10 000 Services too."""
        last = b""
        while True:
            now = b""
            with suppress(OSError, NetlinkSilent):
                now = self._sign(self.family, self.variant or "nft", ("raw", "filter"))
            if last and now != last:
                yield "a program changed rules of iptables"
            last = now
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Rules stay; nothing is held."""

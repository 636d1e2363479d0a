# SPDX-License-Identifier: Apache-2.0
"""The iptables rules of one family, in the network namespace of whoever starts us.

One reading of all tables, one restore for a change. A restore of one table is all or nothing; of several tables those
before the refused one stay. Works on tables by the programs alone, never by libiptc (design.md).
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path

import structlog

from agent.drivers.iptables.program import Program
from agent.drivers.iptables.sign import sign_of
from agent.drivers.iptables.text import parse_save, restore_pieces, restore_text
from agent.drivers.iptables.variant import choose, legacy_names, look
from agent.drivers.netlink.connection import NetlinkSilent
from agent.model.services.iptables_rules import CANARY, TABLES, Chains, Content, RulesChange, Table, Variant, rivals_in
from agent.model.services.nft_error import NftMissing
from agent.model.services.nft_table import Family

log = structlog.get_logger(plane="services")

_WAIT_S = 5
_DEADLINE_S = 30.0
# The slowest seen, with the nft variant and every rule in a chain of its own, twice over.
_S_PER_LINE = 0.02
_LONGEST_FILL_S = 300.0
_MOST_CHAINS = 1000
_NAMES = {"IPv4": "iptables", "IPv6": "ip6tables"}
_LOOPBACK = Path("/proc/sys/net/ipv4/conf/all/route_localnet")


def _set_loopback(text: str) -> None:
    if _LOOPBACK.read_text().strip() != text:
        _LOOPBACK.write_text(f"{text}\n")


class IptablesTables:
    """One family. Tests hand in where the programs run and what they need of the host."""

    def __init__(
        self,
        family: Family,
        *,
        prefix: Sequence[str] = (),
        variant: Variant | None = None,
        legacy_tables: Callable[[Family], str] = legacy_names,
        set_loopback: Callable[[str], None] = _set_loopback,
        sign: Callable[[Family, Variant, Sequence[Table]], bytes] = sign_of,
    ) -> None:
        self.family: Family = family
        self.variant = variant
        self._program = Program(prefix, _DEADLINE_S)
        self._legacy_tables = legacy_tables
        self._set_loopback = set_loopback
        self._sign = sign

    async def check(self) -> None:
        """Which variant there is; raises what is wrong in one line."""
        if self.variant is None:
            seen = await look(self._program, lambda: self._legacy_tables("IPv4") + self._legacy_tables("IPv6"))
            self.variant = choose(seen)
            both = seen.has_rules("legacy") and seen.has_rules("nft")
            log.info("iptables_variant_chosen", family=self.family, variant=self.variant, both_have_rules=both, v=0)
            if both:
                effect = "the rules of both apply to every packet; remove those of the program you do not use"
                log.warning("iptables_variants_mixed", family=self.family, effect=effect)
        await self._program.run(self._name("-restore"), "--version")

    def _name(self, suffix: str = "") -> str:
        return f"{_NAMES[self.family]}-{self.variant or 'nft'}{suffix}"

    async def is_in_use(self) -> bool:
        """Whether asking for this variant's tables creates nothing."""
        return self.variant != "legacy" or bool(self._readable())

    async def rivals(self) -> Sequence[str]:
        """Chains with rules of other programs for Services. Ours have such names, and a mark beside them."""
        found = await self.rivals_here()
        if self.variant == "legacy":
            # Rules of both variants apply to every packet. Seen from the other side, legacy.py looks.
            other = copy(self)
            other.variant = "nft"
            with suppress(NftMissing):
                found += await other.rivals_here()
        return found

    async def rivals_here(self) -> list[str]:
        return rivals_in(await self.read(), self._name())

    async def read(self) -> Content:
        """All that is there, others' chains included."""
        texts = [await self._program.run(self._name("-save"), "-t", table) for table in self._readable()]
        return await asyncio.to_thread(parse_save, "".join(texts))

    def _readable(self) -> Sequence[Table]:
        """To ask for a legacy table creates it, so one that is not in use is empty instead."""
        if self.variant != "legacy":
            return TABLES
        in_use = self._legacy_tables(self.family).split()
        return [table for table in TABLES if table in in_use]

    async def apply(self, change: RulesChange, ahead: Iterable[Chains] = ()) -> None:
        """One restore, which reads what is ahead while it is made."""
        argv = (self._name("-restore"), "-w", str(_WAIT_S), "--noflush", "--counters")
        if ahead:
            await self._program.feed(*argv, pieces=restore_pieces(change, ahead), more_s=_WAIT_S + _LONGEST_FILL_S)
            return
        text = restore_text(change)
        if text:
            await self._program.run(*argv, text=text, more_s=_WAIT_S + _S_PER_LINE * text.count("\n"))

    @property
    def most_chains(self) -> int:
        """The legacy variant replaces the whole table each time, so there every part costs as much as the whole."""
        return 0 if self.variant == "legacy" else _MOST_CHAINS

    @property
    def signs_all(self) -> bool:
        return self.variant != "legacy"

    def sign(self) -> bytes:
        with suppress(OSError, NetlinkSilent):
            return self._sign(self.family, self.variant or "nft", self._readable())
        return b""

    async def missing_canaries(self) -> Sequence[Table]:
        """Tables from which the canary is gone: somebody flushed them."""
        argv = (self._name(), "-w", str(_WAIT_S), "-t")
        readable = self._readable()
        return [
            table
            for table in TABLES
            if table not in readable or not await self._program.succeeds(*argv, table, "-S", CANARY)
        ]

    async def allow_loopback(self) -> None:
        """Node ports on 127.0.0.0/8; the guard against strangers is in the rules."""
        try:
            await asyncio.to_thread(self._set_loopback, "1")
        except OSError as error:
            effect = "node ports answer on all addresses but 127.0.0.0/8"
            log.warning("loopback_not_allowed", sysctl=str(_LOOPBACK), error=str(error), effect=effect)

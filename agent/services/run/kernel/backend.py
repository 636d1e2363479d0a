# SPDX-License-Identifier: Apache-2.0
"""Which backend programs Services, and what happens to the rules of the other one.

Of a switch, new rules go in, then old rules out, so that at every moment some rules lead each connection. Only rules
with our mark are taken away. Never: removes anything before the first sync of a family has worked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec
import structlog

from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.drivers.iptables.driver import IptablesTables
from agent.drivers.nft.driver import NftTable
from agent.drivers.nft.watch import OwnSockets
from agent.model.clock import Clock
from agent.model.services.nft_error import NftFailed, NftMissing
from agent.model.services.nft_table import Family
from agent.services.ruleset import Ruleset, RulesView, SyncReport
from agent.services.run.iptables_ruleset import IptablesRuleset, Signs
from agent.services.run.iptables_view import IptablesRulesView
from agent.services.run.kernel.leftovers import legacy_rivals, remove_chains, remove_legacy, remove_table
from agent.services.run.kernel.takeover import Takeover
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView

log = structlog.get_logger(plane="services")

RETRY_S = 30.0


class RulesBackend(msgspec.Struct, frozen=True):
    rulesets: Mapping[Family, Ruleset]
    views: Mapping[Family, RulesView]
    tables: Mapping[Family, NftTable]
    """Of nftables, to be closed: those in use, or those of which the old rules are taken away."""
    cleanup: "OldBackendCleanup"

    async def close(self) -> None:
        """Rules stay."""
        for table in self.tables.values():
            await table.close()


def make_backend(
    configuration: Configuration,
    families: tuple[Family, ...],
    clock: SystemClock,
    period_s: Callable[[], float],
    takeover: Takeover,
) -> RulesBackend:
    own_sockets = OwnSockets()
    tables: dict[Family, NftTable] = {family: WatchfulTable(family, own_sockets=own_sockets) for family in families}
    chains: dict[Family, IptablesTables] = {}

    async def remove(family: Family) -> str:
        removed = []
        if family in chains:
            removed.append(await remove_table(tables[family], family))
        if family not in chains or chains[family].variant == "legacy":
            removed.append(await remove_chains(IptablesTables(family, variant="nft")))
        if family not in chains or chains[family].variant != "legacy":
            removed.append(await remove_legacy(family))
        return " and ".join(filter(None, (*removed, await takeover.take_away(family, tables))))

    cleanup = OldBackendCleanup(remove, clock)
    if configuration.services.backend == "iptables":
        has_neighbour = bool(configuration.services.proxy_name)
        for family in families:
            chains[family] = WatchfulChains(family, tables[family], has_neighbour=has_neighbour)
        signs: Signs = {}
        chosen = {key: IptablesRuleset(one, clock=clock, period_s=period_s, signs=signs) for key, one in chains.items()}
        views = {family: IptablesRulesView(family, one) for family, one in chosen.items()}
        return RulesBackend(chosen, views, tables, cleanup)
    rulesets = {family: NftRuleset(table) for family, table in tables.items()}
    return RulesBackend(
        rulesets, {family: NftRulesView(family, one) for family, one in rulesets.items()}, tables, cleanup
    )


def may_share(configuration: Configuration, takeover: Takeover) -> bool:
    """Whether any rules of others may stand beside ours. Chains look for themselves, for some of them may not."""
    services = configuration.services
    return takeover.is_asked() or (bool(services.proxy_name) and services.backend == "nftables")


class WatchfulTable(NftTable):
    """Sees programs for Services that use legacy iptables, which nf_tables knows nothing of."""

    async def rivals(self) -> Sequence[str]:
        """Where the kernel says that legacy tables are in use; nothing is asked of them elsewhere."""
        return [*await super().rivals(), *await legacy_rivals(self.family)]


class WatchfulChains(IptablesTables):
    """Sees a kube-proxy that uses nftables, which iptables knows nothing of. `has_neighbour`: another proxy may stand
    beside, but not in the same chains, which each would take from the other."""

    def __init__(self, family: Family, table: NftTable, *, has_neighbour: bool = False) -> None:
        super().__init__(family)
        self._table = table
        self._has_neighbour = has_neighbour

    async def rivals(self) -> Sequence[str]:
        """Chains of its own variant are found by iptables itself."""
        if self._has_neighbour:
            return [f"{one}, the names that kepd also uses with iptables" for one in await self.rivals_here()]
        found = list(await super().rivals())
        if self.variant != "legacy":
            found += await legacy_rivals(self.family)
        with suppress(NftMissing):
            found += [one for one in await NftTable.rivals(self._table) if one.startswith("table ")]
        return found


class OldBackendCleanup:
    """A follower of the plane, and a task: takes away what the other backend left."""

    def __init__(self, remove: Callable[[Family], Awaitable[str]], clock: Clock) -> None:
        self._remove = remove
        self._clock = clock
        self._done: set[Family] = set()
        self._due: set[Family] = set()
        self._wake = asyncio.Event()

    def follow(self, family: Family, report: SyncReport) -> None:
        """After the first sync that brought the family's rules about."""
        if report.is_full and family not in self._done:
            self._due.add(family)
            self._wake.set()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            # Those that become due meanwhile wake us again; only what failed waits.
            failed = [family for family in sorted(self._due) if not await self._take_away(family)]
            if failed:
                await self._clock.sleep(RETRY_S)
                self._due.update(failed)
                self._wake.set()

    async def _take_away(self, family: Family) -> bool:
        self._due.discard(family)
        try:
            removed = await self._remove(family)
        except NftFailed as error:
            log.warning("former_rules_kept", family=family, error=str(error), retry_s=RETRY_S)
            return False
        self._done.add(family)
        if removed:
            log.info("former_rules_removed", family=family, removed=removed, v=0)
        return True

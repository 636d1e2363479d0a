# SPDX-License-Identifier: Apache-2.0
"""Rules for Services that lie in the kernel: ours, and kube-proxy's.

Ours are distinguished from kube-proxy's, which have the same names in iptables, by the mark beside them.
Never: decides when; a switch of the backend, a takeover and `kepd cleanup` do. Rules of others are never touched.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec
import structlog

from agent.drivers.iptables.driver import IptablesTables
from agent.drivers.iptables.legacy import LegacyTables
from agent.drivers.nft.driver import NftTable
from agent.model.services.iptables_rules import OWNER, Content, RulesChange, Table, is_ours
from agent.model.services.nft_error import NftFailed, NftMissing, NotPermitted
from agent.model.services.nft_table import PATTERN, TABLE, Family, TableSettings
from agent.services.iptables.instalments import instalments
from agent.services.iptables.mirror import removal
from agent.services.nftables.flowtable import TABLE as FAST
from agent.services.nftables.flowtable import removal_text as offload_removal
from agent.services.nftables.guard import TABLE as GUARD
from agent.services.nftables.guard import guard_removal
from agent.services.nftables.structure import removal_text

log = structlog.get_logger(plane="services")

KUBE_PROXY_TABLE = "kube-proxy"
IP = {"IPv4": "ip", "IPv6": "ip6"}
Whose = Callable[[Collection[str]], bool]
"""Of the chains of one iptables table."""
_Found = TypeVar("_Found")


class Leftover(msgspec.Struct, frozen=True):
    text: str
    remove: Callable[[], Awaitable[object]]


def are_ours(chains: Collection[str]) -> bool:
    """Our mark stands beside them."""
    return OWNER in chains


def are_kube_proxys(chains: Collection[str]) -> bool:
    """Its names, and no mark of ours."""
    return OWNER not in chains and any(map(is_ours, chains))


async def our_leftovers(family: Family, table: NftTable, *, has_heir: bool = False) -> list[Leftover]:
    """What `kepd cleanup --services` takes away. `has_heir`: a kube-proxy goes on with chains, which have its names."""
    found = []
    if await table.read() is not None:
        name = f"nftables: table {TABLE} of {IP[family]}"
        found.append(Leftover(name, lambda: remove_table(table, family)))
    for other, removal_of in ((GUARD, guard_removal), (FAST, offload_removal)):
        if await table.has_table(other):
            beside = removal_of(family)
            found.append(Leftover(f"nftables: table {other} of {IP[family]}", lambda text=beside: table.load(text)))  # type: ignore[misc]
    return found + await (_marks(family) if has_heir else _in_iptables(family, are_ours))


async def kube_proxys_leftovers(family: Family, table: NftTable) -> list[Leftover]:
    found = []
    if any(one.startswith(f"table {KUBE_PROXY_TABLE} ") for one in await table.rivals()):
        name = f"{IP[family]} {KUBE_PROXY_TABLE}"
        found.append(Leftover(f"nftables: table {name}", lambda: table.load(f"delete table {name}\n")))
    return found + await _in_iptables(family, are_kube_proxys)


async def _in_iptables(family: Family, whose: Whose) -> list[Leftover]:
    nft = IptablesTables(family, variant="nft")
    found = []
    tables: list[Table] = [name for name, chains in (await _readable(nft)).items() if whose(chains)]
    if tables:
        text = f"iptables-nft of {family}: chains for Services in {', '.join(tables)}"
        found.append(Leftover(text, lambda: remove_chains(nft, whose)))
    tables = [name for name, chains in (await _legacy_chains(family)).items() if whose(chains)]
    if tables:
        text = f"legacy tables of {family}: chains for Services in {', '.join(tables)}"
        found.append(Leftover(text, lambda: remove_legacy(family, whose)))
    return found


async def _marks(family: Family) -> list[Leftover]:
    """Only what tells our chains from kube-proxy's."""
    nft, legacy = IptablesTables(family, variant="nft"), LegacyTables(family)
    gone = {table: [OWNER] for table, chains in (await _readable(nft)).items() if are_ours(chains)}
    in_legacy = [table for table, chains in (await _legacy_chains(family)).items() if are_ours(chains)]

    def mark(variant: str, tables: Collection[str], remove: Callable[[], Awaitable[object]]) -> list[Leftover]:
        where = f"iptables-{variant} of {family}: the mark of kepd in {', '.join(tables)}"
        return [Leftover(f"{where}; the chains are kube-proxy's now", remove)] if tables else []

    return [
        *mark("nft", gone, lambda: nft.apply(RulesChange(gone=gone))),
        *mark("legacy", in_legacy, lambda: legacy.remove(are_ours, lambda chain: chain == OWNER)),
    ]


async def _readable(tables: IptablesTables) -> Content:
    try:
        return await tables.read() if await tables.is_in_use() else {}
    except NftFailed as error:
        log.debug("iptables_not_searched", variant=tables.variant, error=str(error))
        return {}


async def _legacy_chains(family: Family) -> Mapping[Table, Mapping[str, Sequence[str]]]:
    return await _if_readable(family, LegacyTables(family).read(), {})


async def legacy_rivals(family: Family) -> Sequence[str]:
    return await _if_readable(family, LegacyTables(family).rivals(), [])


async def _if_readable(family: Family, reading: Awaitable[_Found], otherwise: _Found) -> _Found:
    try:
        return await reading
    except (NftMissing, NotPermitted) as missing:
        log.warning("legacy_tables_unread", family=family, error=str(missing), effect="Services go on without it")
        return otherwise


async def remove_table(table: NftTable, family: Family) -> str:
    """Our nftables table, where there is one. What was removed."""
    if await table.read() is None:
        return ""
    for name in (TABLE, PATTERN):
        await table.load(removal_text(TableSettings(family=family), name))
    return "the table of nftables"


async def remove_chains(tables: IptablesTables, whose: Whose = are_ours) -> str:
    """Chains for Services of one variant. What was removed."""
    found: Content = {table: chains for table, chains in (await _readable(tables)).items() if whose(chains)}
    if not found:
        return ""
    for part in instalments(removal(found), tables.most_chains):
        await tables.apply(part)
    return f"the rules of iptables-{tables.variant}"


async def remove_legacy(family: Family, whose: Whose = are_ours) -> str:
    """The same of the legacy tables, whose programs need not be installed."""
    removed = await _if_readable(family, LegacyTables(family).remove(whose), [])
    return "the rules of iptables-legacy" if removed else ""

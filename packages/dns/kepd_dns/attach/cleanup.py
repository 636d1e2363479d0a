# SPDX-License-Identifier: Apache-2.0
"""Takes away what the plane for names left in the kernel, of either backend."""

from contextlib import suppress

from agent.config.document import Configuration
from agent.drivers.interfaces.families import host_families
from agent.drivers.interfaces.lo_addresses import LoAddresses
from agent.drivers.iptables.family_programs import FamilyPrograms
from agent.drivers.nft.named_table import NamedTable
from agent.model.services.nft_error import NftMissing
from agent.model.services.nft_table import Family
from kepd_dns.attach.settings import addresses
from kepd_dns.rules.nftables import TABLE
from kepd_dns.run.kernel_guards import IptablesGuards, KernelGuards, NftGuards
from kepd_dns.run.plane import clean_up


async def remove_names(configuration: Configuration, *, is_dry: bool) -> list[str]:
    families = host_families()
    tables = {family: NamedTable(family, TABLE) for family in families}
    nft: dict[Family, KernelGuards] = {family: NftGuards(family, one) for family, one in tables.items()}
    chains: dict[Family, KernelGuards] = {family: IptablesGuards(FamilyPrograms(family)) for family in families}
    removed = []
    with suppress(NftMissing):
        removed += await clean_up(chains, LoAddresses(), (), is_dry=is_dry)
    removed += await clean_up(nft, LoAddresses(), addresses(configuration, families), is_dry=is_dry)
    for one in tables.values():
        one.close()
    return removed

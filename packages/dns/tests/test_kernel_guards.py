# SPDX-License-Identifier: Apache-2.0
"""Rules of iptables that somebody takes away while kepd looks at them."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from agent.drivers.iptables.family_programs import FamilyPrograms
from agent.model.services.iptables_rules import Variant
from agent.model.services.nft_table import Family
from kepd_dns.rules.guards import Asking
from kepd_dns.run.kernel_guards import IptablesGuards

# Lists what it is asked for as often as there are files, then says what the program says of a chain that went away.
PROGRAM = """#!/bin/sh
case "$*" in *-restore*) cat > /dev/null; exit 0;; *' -C '*) exit 0;; esac
for one in "$0".look*; do rm "$one" 2>/dev/null && break; one=; done
[ "$one" ] || { echo "chain KEPD-DNS in table raw is incompatible, use 'nft' tool." >&2; exit 1; }
case "$*" in
    *'raw -S PREROUTING') echo '-A PREROUTING -j KEPD-DNS';;
    *'raw -S OUTPUT') echo '-A OUTPUT -j KEPD-DNS-OUT';;
    *'-S INPUT') echo '-A INPUT -j KEPD-DNS-ACCEPT';;
    *'-S OUTPUT') echo '-A OUTPUT -j KEPD-DNS-ACCEPT';;
    *) echo "$@";;
esac
"""
LOOKS = 4 + 4


def allow(program: Path, looks: int) -> None:
    for one in program.parent.glob("program.look*"):
        one.unlink()
    for number in range(looks):
        program.with_suffix(f".look{number}").touch()


async def test_rules_that_go_away_during_a_look_are_not_intact(tmp_path: Path) -> None:
    """DNS-31: a look that an end of the rules cuts in two says what is so, and does not fail."""
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    guards = IptablesGuards(FamilyPrograms("IPv4", prefix=[str(program)], variant="nft"))
    for looks in range(LOOKS + 1):
        allow(program, LOOKS)
        await guards.put(Asking(family="IPv4", addresses=("169.254.20.10",)), ["169.254.20.10"])
        allow(program, looks)
        assert await guards.is_intact() is (looks == LOOKS)


async def test_a_change_of_either_table_is_noticed() -> None:
    """DNS-27, DNS-31: legacy tables have a sign each, and rules of ours are in both."""
    signs = {"raw": b"1", "filter": b"1"}

    def sign(_family: Family, _variant: Variant, tables: Sequence[str]) -> bytes:
        return b"".join(signs[one] for one in tables)

    async with (
        aclosing(FamilyPrograms("IPv4", variant="legacy", sign=sign).changes()) as sentences,
        asyncio.timeout(30),
    ):
        for table in signs:
            heard = asyncio.ensure_future(anext(sentences))
            await asyncio.sleep(0)
            signs[table] += b"2"
            assert await heard == "a program changed rules of iptables"

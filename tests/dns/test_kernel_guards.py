# SPDX-License-Identifier: Apache-2.0
"""Rules of iptables that somebody takes away while kepd looks at them."""

from pathlib import Path

from agent.dns.rules.guards import Asking
from agent.dns.run.kernel_guards import IptablesGuards
from agent.drivers.iptables.family_programs import FamilyPrograms

# Lists what it is asked for as often as the file has lines, then says what the program says of a chain that went away.
PROGRAM = """#!/bin/sh
case "$*" in *-restore*) cat > /dev/null; exit 0;; *' -C '*) exit 0;; esac
[ -s "$0.times" ] || { echo "chain KEPD-DNS in table raw is incompatible, use 'nft' tool." >&2; exit 1; }
sed -i 1d "$0.times"
case "$*" in
    *'raw -S PREROUTING') echo '-A PREROUTING -j KEPD-DNS';;
    *'raw -S OUTPUT') echo '-A OUTPUT -j KEPD-DNS-OUT';;
    *'-S INPUT') echo '-A INPUT -j KEPD-DNS-ACCEPT';;
    *'-S OUTPUT') echo '-A OUTPUT -j KEPD-DNS-ACCEPT';;
    *) echo "$@";;
esac
"""
LOOKS = 4 + 4


async def test_rules_that_go_away_during_a_look_are_not_intact(tmp_path: Path) -> None:
    """DNS-31: a look that an end of the rules cuts in two says what is so, and does not fail."""
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    guards = IptablesGuards(FamilyPrograms("IPv4", prefix=[str(program)], variant="nft"))
    for looks in range(LOOKS + 1):
        times = tmp_path / "program.times"
        times.write_text("look\n" * LOOKS)
        await guards.put(Asking(family="IPv4", addresses=("169.254.20.10",)), ["169.254.20.10"])
        times.write_text("look\n" * looks)
        assert await guards.is_intact() is (looks == LOOKS)

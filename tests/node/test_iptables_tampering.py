# SPDX-License-Identifier: Apache-2.0
"""FS-3, IP-8: what another program makes of our iptables chains is undone, with the programs of both variants.

By chance, with the seed printed: `KEPD_TAMPER_S` says for how long. The time of the slowest repair is printed; it
should be less than a second.
"""

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.iptables.driver import IptablesTables
from agent.drivers.iptables.sign import sign_of
from agent.drivers.iptables.variant import legacy_names
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.services.iptables_rules import Variant
from agent.model.services.nft_table import Family
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.plane import ServicesPlane
from tests.lab.namespace import Namespace
from tests.services.making import make_service, make_slice

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

NAMES: dict[Family, Path] = {
    "IPv4": Path("/proc/thread-self/net/ip_tables_names"),
    "IPv6": Path("/proc/thread-self/net/ip6_tables_names"),
}
TAMPER_S = float(os.environ.get("KEPD_TAMPER_S", "5"))
WITHIN_S = 15.0


class Tampered:
    """A node with Services, and another program with root."""

    def __init__(self, family: Family, variant: Variant, node: Namespace, seed: int) -> None:
        self.node, self.family = node, family
        self.program = f"{'iptables' if family == 'IPv4' else 'ip6tables'}-{variant}"
        self.chance = random.Random(seed)
        self.events: list[Event] = []
        address, vip, pod = ("10.0.0.1", "10.96.0.{}", "10.1.{}.{}")
        if family == "IPv6":
            address, vip, pod = ("fd00::1", "fd00:96::{}", "fd00:1::{}:{}")
        settings = NodeSettings(node="node-a", addresses=(address,))
        self.intake = ServiceInputs(settings, tell=self.events.append, started_s=0.0)
        tables = IptablesTables(
            family,
            prefix=node.command(),
            variant=variant,
            legacy_tables=lambda of: node.call(lambda: legacy_names(of, NAMES)),
            set_loopback=lambda _text: None,
            sign=lambda *which: node.call(lambda: sign_of(*which)),
        )
        rules = {family: IptablesRuleset(tables, clock=SystemClock())}
        self.plane = ServicesPlane(self.intake, rules, clock=SystemClock(), tell=self.events.append)
        for number in range(1, 6):
            self.intake.put_service(make_service(f"s{number}", ip=vip.format(number)))
            addresses = [pod.format(number, one) for one in range(1, number)]
            self.intake.put_slice(make_slice(addresses, service=f"s{number}", family=family))
        self.intake.complete("services")
        self.intake.complete("slices")

    async def listing(self) -> list[str]:
        text = await asyncio.to_thread(self.node.run, f"{self.program}-save")
        return [line.partition(" [")[0] for line in text.splitlines() if not line.startswith("#")]

    async def is_settled(self) -> bool:
        sync = self.plane.families[self.family]
        return sync.is_synced and sync.pending_since_s is None

    async def tamper(self, expected: list[str]) -> str:
        """One harm that shows; says which."""
        while True:
            words = self.harm(expected)
            await asyncio.to_thread(self.node.run, self.program, *words)
            if await self.listing() != expected:
                return " ".join(words)

    def harm(self, listed: list[str]) -> tuple[str, ...]:
        first = listed.index("*nat")
        nat = listed[first : listed.index("COMMIT", first)]
        chains = [line.split()[1] for line in nat if line.startswith("-A ")]
        chain = self.chance.choice(chains)
        match self.chance.randrange(5):
            case 0:
                return ("-t", "nat", "-D", chain, str(self.chance.randint(1, chains.count(chain))))
            case 1:
                return ("-t", "nat", "-I", chain, "-j", "RETURN")
            case 2:
                return ("-t", "nat", "-A", chain, "-j", "ACCEPT")
            case 3:
                return ("-t", "nat", "-F", chain)
            case _:
                return ("-t", self.chance.choice(("nat", "filter")), "-F")


@pytest.fixture
def seed() -> int:
    found = random.randrange(1 << 32)
    print(f"seed {found}")
    return found


@pytest.fixture(params=[(family, variant) for family in ("IPv4", "IPv6") for variant in ("nft", "legacy")])
async def tampered(request: pytest.FixtureRequest, seed: int) -> AsyncIterator[Tampered]:
    with Namespace() as node:
        made = Tampered(*request.param, node, seed)
        running = asyncio.ensure_future(made.plane.run(Board(time.time).add("services", State.STARTING)))
        async with asyncio.timeout(WITHIN_S):
            while not await made.is_settled():
                await asyncio.sleep(0.01)
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def ours(listed: list[str]) -> list[str]:
    """What others wrote into chains of their own is theirs, and orders nothing of ours."""
    return sorted(line for line in listed if "KUBE-" in line or "KEPD-" in line)


async def test_whatever_is_changed_is_as_it_was(tampered: Tampered) -> None:
    expected = await tampered.listing()
    assert len(ours(expected)) > 40
    ends_s, count, slowest_s = time.monotonic() + TAMPER_S, 0, 0.0
    while time.monotonic() < ends_s:
        tampered.events.clear()
        harm = await tampered.tamper(expected)
        began_s = time.monotonic()
        while ours(found := await tampered.listing()) != ours(expected) or not await tampered.is_settled():
            lost, more = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
            assert time.monotonic() - began_s < WITHIN_S, (harm, lost[:3], more[:3])
            await asyncio.sleep(0.02)
        expected = await tampered.listing()
        assert {one.reason for one in tampered.events} <= {"RulesRepaired"}, harm
        count += 1
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    print(f"{count} repairs, the slowest {slowest_s:.2f} s")

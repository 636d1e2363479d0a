# SPDX-License-Identifier: Apache-2.0
"""FS-3, NF-64: what another program makes of our table is undone at once, whatever it is.

The kernel, nft and the plane are real. By chance, with the seed printed: `KEPD_TAMPER_S` says for how long. The time of
the slowest repair is printed; it should be less than a second.
"""

import asyncio
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.services.nft_table import Family
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.lab.namespace import Namespace
from tests.services.making import make_service, make_slice

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

TAMPER_S = float(os.environ.get("KEPD_TAMPER_S", "20"))
WITHIN_S = 15.0
IP = {"IPv4": "ip", "IPv6": "ip6"}
VOLATILE = re.compile(r" counter packets \d+ bytes \d+")
FLUSHED = ("eps", "hairpin", "services", "nodeports", "svc_cluster", "np_cluster")


class Tampered:
    """A node with Services of several kinds, and another program with root."""

    def __init__(self, family: Family, node: Namespace, seed: int) -> None:
        self.family = family
        self.node = node
        self.chance = random.Random(seed)
        self.events: list[Event] = []
        own = "10.0.0.1" if family == "IPv4" else "fd00::1"
        pods = "10.1.0.0/16" if family == "IPv4" else "fd00:1::/64"
        settings = NodeSettings(node="node-a", addresses=(own,), cluster_ranges=(pods,))
        self.intake = ServiceInputs(settings, tell=self.events.append, started_s=0.0)
        self.table = NftTable(family, command=node.command("nft"), opens=lambda: node.call(open_socket))
        rules = {family: NftRuleset(self.table)}
        self.plane = ServicesPlane(self.intake, rules, clock=SystemClock(), tell=self.events.append)
        self.put("plain", 1, 3)
        self.put("large", 2, 20)
        self.put("sticky", 3, 2, sessionAffinity="ClientIP")
        self.put("empty", 4, 0)
        self.put("outside", 5, 2, type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])
        self.intake.complete("services")
        self.intake.complete("slices")

    def put(self, name: str, number: int, endpoints: int, **spec: Any) -> None:
        vip, pod = ("10.96.0.{}", "10.1.{}.{}") if self.family == "IPv4" else ("fd00:96::{}", "fd00:1::{}:{}")
        self.intake.put_service(make_service(name, ip=vip.format(number), **spec))
        addresses = [pod.format(number, one) for one in range(1, endpoints + 1)]
        self.intake.put_slice(make_slice(addresses, service=name, family=self.family))

    async def nft(self, *words: str) -> str:
        """As the other program; "" if the kernel refused it."""
        try:
            return await asyncio.to_thread(self.node.run, "nft", *words)
        except RuntimeError:
            return ""

    async def listing(self) -> list[str]:
        """Everything in the table, in an order of its own."""
        text = await self.nft("-j", "list", "table", IP[self.family], "kepd")
        return sorted(_lines(json.loads(text))) if text else []

    async def is_settled(self) -> bool:
        sync = self.plane.families[self.family]
        return sync.is_synced and sync.pending_since_s is None

    async def tamper(self, expected: list[str]) -> str:
        """One harm of our table that shows; says which."""
        while True:
            words = self.harm(json.loads(await self.nft("-j", "list", "table", IP[self.family], "kepd")))
            await self.nft(*words)
            if await self.listing() != expected or words[0] == "flush":
                return " ".join(words)

    def harm(self, listed: dict[str, Any]) -> tuple[str, ...]:
        chance, where = self.chance, (IP[self.family], "kepd")
        rules = [(one["rule"]["chain"], str(one["rule"]["handle"])) for one in listed["nftables"] if "rule" in one]
        chains = [one["chain"] for one in listed["nftables"] if "chain" in one]
        chain, handle = chance.choice(rules)
        hooked = chance.choice([one for one in chains if "hook" in one])
        match chance.randrange(12):
            case 0:
                return ("delete", "rule", *where, chain, "handle", handle)
            case 1:
                return ("replace", "rule", *where, chain, "handle", handle, "counter", "drop")
            case 2:
                return ("insert", "rule", *where, chain, chance.choice(("drop", "return", "accept")))
            case 3:
                return ("add", "rule", *where, chain, "counter")
            case 4:
                return ("flush", "chain", *where, chain)
            case 5:
                policy = "{ policy drop ; }"
                return ("add", "chain", *where, hooked["name"], policy)
            case 6:
                hook = "{ type filter hook forward priority 7 ; policy drop ; }"
                return ("add", "chain", *where, f"stray{chance.randrange(99)}", hook)
            case 7:
                return ("rename", "chain", *where, hooked["name"], f"renamed{chance.randrange(99)}")
            case 8:
                return (
                    "flush",
                    chance.choice(("map", "set")),
                    *where,
                    chance.choice(FLUSHED),
                )
            case 9:
                return ("delete", "table", *where)
            case 10:
                return ("add", "table", *where, "{ flags dormant; }")
            case _:
                return ("flush", "ruleset")


def _lines(listed: dict[str, Any]) -> Iterator[str]:
    """Of rules their order within a chain; of sets their elements, without what they have counted."""
    places: dict[str, int] = {}
    for item in listed["nftables"]:
        (kind, one), *_ = item.items()
        if kind == "metainfo" or one.get("name") == "clients" or kind == "counter":
            continue
        one.pop("handle", None)
        elements = one.pop("elem", [])
        if kind == "rule":
            places[one["chain"]] = places.get(one["chain"], 0) + 1
            one["place"] = places[one["chain"]]
        yield VOLATILE.sub("", json.dumps(item, sort_keys=True))
        for element in elements:
            yield f"{one['name']} {json.dumps(_uncounted(element), sort_keys=True)}"


def _uncounted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _uncounted(inner) for key, inner in value.items() if key != "counter"}
    return [_uncounted(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def seed() -> int:
    found = random.randrange(1 << 32)
    print(f"seed {found}")
    return found


@pytest.fixture(params=["IPv4", "IPv6"])
async def tampered(request: pytest.FixtureRequest, seed: int) -> AsyncIterator[Tampered]:
    with Namespace() as node:
        made = Tampered(request.param, node, seed)
        running = asyncio.ensure_future(made.plane.run(Board(time.time).add("services", State.STARTING)))
        async with asyncio.timeout(30):
            while not await made.is_settled():
                await asyncio.sleep(0.01)
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await made.table.close()


async def test_whatever_is_changed_is_as_it_was(tampered: Tampered) -> None:
    """FS-3, NF-64: and the event is told for it."""
    expected = await tampered.listing()
    assert len(expected) > 300
    ends_s, count, slowest_s = time.monotonic() + TAMPER_S, 0, 0.0
    while time.monotonic() < ends_s:
        tampered.events.clear()
        harm = await tampered.tamper(expected)
        began_s = time.monotonic()
        while (found := await tampered.listing()) != expected or not await tampered.is_settled():
            lost, more = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
            assert time.monotonic() - began_s < WITHIN_S, (harm, lost[:3], more[:3])
            await asyncio.sleep(0.05)
        assert {one.reason for one in tampered.events} <= {"RulesRepaired"}, harm
        assert tampered.events or harm.startswith("flush"), harm
        count += 1
        slowest_s = max(slowest_s, time.monotonic() - began_s)
    print(f"{count} repairs, the slowest {slowest_s:.2f} s")

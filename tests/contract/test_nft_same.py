# SPDX-License-Identifier: Apache-2.0
"""The fake kernel and the real one, given the same transactions, say and hold the same. And the real one at size."""

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from ipaddress import ip_address
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.driver import NftTable
from agent.drivers.nft.watch import OwnSockets
from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import (
    AffineClient,
    Batch,
    ChoiceChain,
    Data,
    Detection,
    Family,
    TableSettings,
    TableState,
)
from agent.services.nftables.structure import replacement_text
from tests.fakes.nft import FakeNft
from tests.lab.namespace import Namespace

pytestmark = pytest.mark.node

TRANSACTIONS = 150
WITHIN_S = 40.0
FAMILIES: tuple[Family, ...] = ("IPv4", "IPv6")
CHAINS = ["c_1", "c_2", "c_17", "c_18", "rj", "no_such_chain"]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def kernel(family: Family) -> AsyncIterator[NftTable]:
    with Namespace() as node:
        driver = NftTable(family, command=node.command("nft"), opens=lambda: node.call(open_socket))
        yield driver
        await driver.close()


def shape(state: TableState | None) -> Any:
    """All but the rules themselves, which the fake has as texts."""
    assert state is not None
    return replace(state, bodies={name: (len(one.rules), one.hook) for name, one in state.bodies.items()})


class Chance:
    """Random transactions over so few keys that they meet each other often."""

    def __init__(self, family: Family, seed: int) -> None:
        self._random = random.Random(seed)
        self._size = 4 if family == "IPv4" else 16
        self._base = int(ip_address("10.0.0.0" if family == "IPv4" else "fd00::"))
        self._top = 2 ** (8 * self._size) - 1 - self._base
        # Of ranges that overlap the kernel's tree takes some in, which its own listing then cannot tell apart: the
        # fake refuses them all, and the plane collapses ranges first (NF-35). These only touch each other.
        ends = [(-self._base, 0), (1, 1), (2, 3), (4, 9), (10, self._top)]
        self._ranges = [self.at(first) + self.at(last) for first, last in ends]

    def at(self, number: int) -> bytes:
        return (self._base + number).to_bytes(self._size, "big")

    def address(self) -> bytes:
        return self.at(self._random.choice([0, 1, 2, 3, 4, 5, self._top - 1, self._top, -self._base]))

    def frontend(self) -> bytes:
        return self.address() + self._random.choice([b"\x06\0\0\0", b"\x11\0\0\0"]) + b"\0\x50\0\0"

    def element(self, name: str) -> tuple[bytes, Data]:
        match name:
            case "services":
                return self.frontend(), self._random.choice(["", *CHAINS])
            case "eps":
                slot = struct.pack("=I", self._random.randrange(3))
                return self.frontend() + slot, self.address() + b"\x1f\x90\0\0"
            case "cluster_ips":
                return self.address(), None
            case "fw_allow":
                frontend = self.frontend()
                first, last = sorted([self.address(), self.address()])
                return frontend + first + frontend + last, None
            case _:
                return self._random.choice(self._ranges), None

    def elements(self) -> dict[str, list[tuple[bytes, Data]]]:
        names = self._random.sample(
            ["services", "eps", "cluster_ips", "fw_allow", "pod_cidrs"], self._random.randrange(3)
        )
        return {name: [self.element(name) for _ in range(self._random.randint(1, 2))] for name in names}

    def batch(self, known: dict[str, dict[bytes, Data]]) -> Batch:
        """Deletions are mostly of what is there."""
        deletes: dict[str, list[bytes]] = {}
        for name, pairs in self.elements().items():
            there = sorted(known[name])
            picked = self._random.sample(there, min(len(there), 2)) if there and self._random.random() < 0.8 else []
            deletes[name] = picked or [key for key, _ in pairs]
        chains = [ChoiceChain(name, "eps", 17) for name in ("c_17", "c_18") if self._random.random() < 0.2]
        gone = [name for name in ("c_17", "c_18") if self._random.random() < 0.1]
        return Batch(chains, deletes, self.elements(), gone)


async def outcome(table: Any, batch: Batch) -> tuple[int, str, bytes, str] | None:
    try:
        await table.apply(batch)
    except RulesRefused as refused:
        return refused.errno, refused.map, refused.key, refused.chain
    return None


@pytest.mark.parametrize("seed", range(3))
async def test_the_fake_kernel_refuses_and_holds_what_the_real_one_does(
    family: Family, kernel: NftTable, seed: int
) -> None:
    """STY-06, NF-8, NF-35."""
    fake = FakeNft(family)
    chance = Chance(family, seed)
    text = replacement_text(TableSettings(family=family, detection=Detection("cidrs")))
    for table in (fake, kernel):
        await table.load(text)
    accepted = 0
    for turn in range(TRANSACTIONS):
        state = await fake.read()
        assert state is not None
        batch = chance.batch(state.content)
        found = await outcome(kernel, batch)
        accepted += found is None

        assert (turn, batch, await outcome(fake, batch)) == (turn, batch, found)
        assert (turn, batch, shape(await fake.read())) == (turn, batch, shape(await kernel.read()))
    assert 20 < accepted < TRANSACTIONS - 20


async def test_a_hundred_thousand_endpoints_are_written_and_read(family: Family, kernel: NftTable) -> None:
    """NF-3, NF-8, STY-34: prints how long it takes; asserts that all of it arrives."""
    await kernel.load(replacement_text(TableSettings(family=family, detection=Detection("cidrs"))))
    prefix = b"" if family == "IPv4" else b"\xfd" + bytes(11)
    frontends = [prefix + struct.pack(">BBH", 10, 96, n) + b"\x06\0\0\0\0\x50\0\0" for n in range(10_000)]
    endpoints: list[tuple[bytes, Data]] = [
        (frontend + struct.pack("=I", slot), prefix + struct.pack(">BBH", 10, slot, n) + b"\x1f\x90\0\0")
        for n, frontend in enumerate(frontends)
        for slot in range(10)
    ]
    batch = Batch(adds={"eps": endpoints, "services": [(frontend, "c_10") for frontend in frontends]})
    began = time.monotonic()
    await kernel.apply(batch)
    applied = time.monotonic()
    state = await kernel.read()
    print(f"{family}: applied in {applied - began:.2f} s, read in {time.monotonic() - applied:.2f} s")

    assert state is not None
    assert state.content["eps"] == dict(endpoints)
    assert state.content["services"] == dict.fromkeys(frontends, "c_10")


async def test_nft_can_list_affinity_in_text_and_json(family: Family) -> None:
    """NF-41: nft 1.0.6 aborts on many a rule that it could not have written; others' tools must go on working."""
    with Namespace() as node:
        driver = NftTable(family, command=node.command("nft"), opens=lambda: node.call(open_socket))
        await driver.load(replacement_text(TableSettings(family=family, detection=Detection("cidrs"))))
        maps = ("eps", "eps_local", "np_eps", "np_eps_local")
        await driver.apply(
            Batch([ChoiceChain(f"{name}_{count}_9", name, count, 9) for name in maps for count in (1, 40)])
        )
        await driver.close()
        text = node.run("nft", "-nn", "-a", "list", "ruleset")
        node.run("nft", "-j", "list", "ruleset")
        node.run("nft", "-f", "-", text="table inet another { chain c { type filter hook input priority 0; }; }")

    assert text.count("update @clients") == 2 * 8


async def test_nft_can_list_maps_of_single_ports_in_text_and_json(family: Family) -> None:
    """NF-41, SVN-101: a client in it included."""
    name, prefixes = "cl_0badcafe_64", {"eps": "c", "eps_local": "l", "np_eps": "nc", "np_eps_local": "nl"}
    width = 4 if family == "IPv4" else 16
    one = AffineClient(bytes(width) + bytes.fromhex("0badcafe"), bytes(width + 8), 60_000)
    with Namespace() as node:
        driver = NftTable(family, command=node.command("nft"), opens=lambda: node.call(open_socket))
        await driver.load(replacement_text(TableSettings(family=family, detection=Detection("cidrs"))))
        counts = [(name, prefix, count) for name, prefix in prefixes.items() for count in (1, 40)]
        chains = [ChoiceChain(f"{prefix}_{count}_9_0badcafe_64", eps, count, 9) for eps, prefix, count in counts]
        await driver.apply(Batch(chains))
        await driver.apply(Batch(adds={name: [one.living(one.life_ms)]}))
        await driver.close()
        text = node.run("nft", "-nn", "-a", "list", "ruleset")
        node.run("nft", "-j", "list", "ruleset")

    assert text.count(f"update @{name}") == 2 * 8
    assert f"map {name} {{" in text
    assert "size 64" in text


async def test_others_are_noticed_while_we_do_not_listen(family: Family) -> None:
    """NF-64: by the number of the generation, though not by name."""
    own_sockets = OwnSockets()
    with Namespace() as node:
        driver = NftTable(
            family, command=node.command("nft"), opens=lambda: node.call(open_socket), own_sockets=own_sockets
        )
        text = replacement_text(TableSettings(family=family))
        await driver.load(text)
        generation = iter([7, 9])
        async with aclosing(driver.changes()) as changes, asyncio.timeout(WITHIN_S):
            told = asyncio.ensure_future(anext(changes))
            await driver.apply(Batch(adds={"cluster_ips": [(bytes(4 if family == "IPv4" else 16), None)]}))
            await asyncio.sleep(0.05)
            with own_sockets.transaction(100_000, lambda: next(generation)):
                node.run("nft", "flush", "ruleset")
            sentence = await told
        await driver.close()

    assert "messages of the kernel were lost" in sentence


async def test_a_large_transaction_of_one_family_is_not_heard_by_the_other() -> None:
    """Its notifications would fill the kernel's memory."""
    own_sockets = OwnSockets()
    with Namespace() as node:
        tables = {
            family: NftTable(
                family, command=node.command("nft"), opens=lambda: node.call(open_socket), own_sockets=own_sockets
            )
            for family in FAMILIES
        }
        for family, table in tables.items():
            await table.load(replacement_text(TableSettings(family=family)))
        async with aclosing(tables["IPv6"].changes()) as changes, asyncio.timeout(WITHIN_S):
            told = asyncio.ensure_future(anext(changes))
            members = [(bytes([10, 0, n >> 8, n & 255]), None) for n in range(20_000)]
            await tables["IPv4"].apply(Batch(adds={"cluster_ips": members}))
            await asyncio.sleep(0.1)
            quiet = not told.done()
            node.run("nft", "flush", "ruleset")
            sentence = await told
        for table in tables.values():
            await table.close()

    assert quiet
    assert "table deleted" in sentence

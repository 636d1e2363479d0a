# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake table and for the kernel's: whatever the services plane may rely on holds for both."""

import asyncio
import errno
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import pytest
from msgspec.structs import replace

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft import kernel_table
from agent.drivers.nft.driver import NftTable
from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.model.services.nft_table import (
    LAYOUT,
    MAPS,
    AffineClient,
    Batch,
    ChoiceChain,
    Detection,
    Family,
    TableSettings,
    own_map,
)
from agent.services.nftables.structure import (
    bodies_of,
    constant_chains,
    layout_text,
    pattern_text,
    removal_text,
    replacement_text,
    structure_damage,
    structure_text,
)
from tests.fakes.nft import FakeKernel, FakeNft
from tests.lab.namespace import Namespace

TCP = b"\x06\0\0\0"
WITHIN_S = 40.0


@dataclass
class Subject:
    """A kernel under test: makes drivers, and acts as another process."""

    family: Family
    make: Callable[[Family], Any]
    flush: Callable[[], object]
    count: Callable[[str, bytes, int, int], object]
    """Let an element that leads to `rj` have counted so many packets and bytes."""
    settings: TableSettings
    drivers: list[Any]

    def driver(self, family: Family | None = None) -> Any:
        made = self.make(family or self.family)
        self.drivers.append(made)
        return made

    def address(self, number: int, net: int = 0) -> bytes:
        return ip_address(
            f"10.{net}.{number >> 8}.{number & 255}" if self.family == "IPv4" else f"fd00:{net}::{number:x}"
        ).packed

    def frontend(self, number: int, port: int = 80) -> bytes:
        return self.address(number) + TCP + struct.pack(">HH", port, 0)

    def endpoint(self, number: int, port: int = 8080) -> bytes:
        return self.address(number, 1) + struct.pack(">HH", port, 0)


def slot(number: int) -> bytes:
    return struct.pack("=I", number)


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(params=["fake", pytest.param("kernel", marks=pytest.mark.node)])
async def subject(request: pytest.FixtureRequest, family: Family) -> AsyncIterator[Subject]:
    settings = TableSettings(family=family, detection=Detection("cidrs"))
    if request.param == "fake":
        kernel = FakeKernel()

        def count(name: str, key: bytes, packets: int, octets: int) -> None:
            kernel.traffic[name, key] = packets, octets

        yield Subject(family, lambda of: FakeNft(of, kernel), kernel.flush_by_others, count, settings, [])
        return
    with Namespace() as node:
        drivers: list[NftTable] = []

        def make(of: Family) -> NftTable:
            return NftTable(of, command=node.command("nft"), opens=lambda: node.call(open_socket))

        def recount(name: str, key: bytes, packets: int, octets: int) -> None:
            size = 4 if family == "IPv4" else 16
            shown = f"{ip_address(key[:size])} . tcp . {int.from_bytes(key[size + 4 : size + 6], 'big')}"
            where = f"element {'ip' if family == 'IPv4' else 'ip6'} kepd {name}"
            node.run("nft", f"delete {where} {{ {shown} }}; "
                     f"add {where} {{ {shown} counter packets {packets} bytes {octets} : goto rj }}")  # fmt: skip

        made = Subject(family, make, lambda: node.run("nft", "flush", "ruleset"), recount, settings, drivers)
        yield made
        for driver in drivers:
            await driver.close()


@pytest.fixture
async def table(subject: Subject) -> Any:
    driver = subject.driver()
    await driver.load(replacement_text(subject.settings))
    return driver


def variations(family: Family) -> list[TableSettings]:
    flags = ("masquerades_all", "has_node_ports_everywhere", "rejects_with_reset", "drops_invalid", "counts_endpoints")
    plain = TableSettings(family=family)
    detections = (Detection(), Detection("cidrs"), Detection("interface", "cni0"), Detection("interface", "veth*"))
    one_each = [replace(plain, **{flag: not getattr(plain, flag)}) for flag in flags]
    all_of = [replace(plain, detection=one, **dict.fromkeys(flags, True)) for one in detections]
    return [plain, *one_each, *(replace(plain, detection=one) for one in detections), *all_of]


async def test_every_variation_loads_over_the_one_before(subject: Subject) -> None:
    """NF-9, NF-10: and is recognised by its marker, which tells other maps."""
    driver = subject.driver()
    for before, settings in itertools.pairwise([None, *variations(subject.family)]):
        await driver.load(replacement_text(settings))
        state = await driver.read()

        assert state is not None
        assert structure_damage(settings, state) == ""
        if before is not None and before.counts_endpoints != settings.counts_endpoints:
            assert structure_damage(before, state) != ""


async def test_other_settings_are_written_chain_by_chain(subject: Subject) -> None:
    """NF-9: also chains with a hook come and go, and the table stays."""
    driver = subject.driver()
    of_same_maps = [one for one in variations(subject.family) if not one.counts_endpoints]
    await driver.load(structure_text(of_same_maps[-1]))
    for settings in of_same_maps:
        bodies = bodies_of(settings, await driver.pattern(pattern_text(settings)))
        state = await driver.read()
        assert structure_damage(settings, state) == ""
        await driver.apply(Batch(bodies={name: one for name, one in bodies.items() if state.bodies.get(name) != one}))
        gone = sorted(state.chains - constant_chains(settings))
        emptied = {name: replace(state.bodies[name], rules=()) for name in gone}
        await driver.apply(Batch(bodies=emptied, gone_chains=gone))
        state = await driver.read()

        assert {name: one for name, one in state.bodies.items() if name != LAYOUT} == bodies


async def test_no_table_is_none(subject: Subject) -> None:
    driver = subject.driver()
    before = await driver.read()
    await driver.load(removal_text(subject.settings))
    await driver.load(replacement_text(subject.settings))
    await driver.load(removal_text(subject.settings))

    assert before is None
    assert await driver.read() is None


async def test_a_fresh_table_has_all_maps_and_no_elements(subject: Subject, table: Any) -> None:
    state = await table.read()

    assert state.layout_text == layout_text(subject.settings)
    assert state.content == {name: {} for name in MAPS}


async def test_frontends_of_a_replacement_drop_at_first(subject: Subject) -> None:
    """NF-10."""
    frontend, node_port = subject.frontend(1), TCP + struct.pack(">HH", 30000, 0)
    driver = subject.driver()
    await driver.load(replacement_text(subject.settings, {"services": {frontend: "c_1"}, "nodeports": {node_port: ""}}))
    state = await driver.read()

    assert state.content["services"] == {frontend: ""}
    assert state.content["nodeports"] == {node_port: ""}


def everything(subject: Subject) -> Batch:
    """An element or two of each kind."""
    frontend, node_port, number = subject.frontend(1), TCP + struct.pack(">HH", 30000, 0), slot(7)
    net = subject.address(0, 9) + subject.address(255, 9)
    ends = bytes(len(subject.address(0))) + subject.address(3, 8)
    top = subject.address(0, 200), b"\xff" * len(subject.address(0))
    return Batch(
        chains=[
            ChoiceChain("c_17", "eps", 17),
            ChoiceChain("c_3_60", "eps", 3, 60),
            ChoiceChain("nl_2_9", "np_eps_local", 2, 9),
            ChoiceChain("mc_251", "eps", 251, hashing="flow"),
            ChoiceChain("snl_1021", "np_eps_local", 1021, hashing="source"),
        ],
        adds={
            "services": [(frontend, "c_17"), (subject.frontend(2), ""), (subject.frontend(3), "rj")],
            "nodeports": [(node_port, "n_cluster")],
            "svc_cluster": [(frontend, "c_3_60")],
            "svc_local": [(frontend, "l_1"), (subject.frontend(2), "mc_251")],
            "np_cluster": [(node_port, "nc_16"), (TCP + struct.pack(">HH", 30001, 0), "snl_1021")],
            "np_local": [(node_port, "nl_2_9")],
            "eps": [(frontend + slot(n), subject.endpoint(n)) for n in range(3)],
            "eps_local": [(frontend + slot(0), subject.endpoint(0))],
            "np_eps": [(node_port + slot(0), subject.endpoint(0))],
            "np_eps_local": [(node_port + slot(70_000), subject.endpoint(0, 65_535))],
            "cluster_ips": [(subject.address(1), None)],
            "passed": [(frontend, None)],
            "np_addrs": [(subject.address(1, 2), None)],
            "hairpin": [(subject.address(1, 1) * 2 + TCP + struct.pack(">HH", 8080, 0), None)],
            "aff_port": [(frontend, number)],
            "np_aff_port": [(node_port, number)],
            "aff_cluster": [(subject.endpoint(n) + number, None) for n in range(3)],
            "aff_local": [(subject.endpoint(0) + number, None)],
            "pod_cidrs": [(net, None), (ends, None), (b"".join(top), None)],
            "svc_cidrs": [(bytes(len(subject.address(0))) + top[1], None)],
            "fw_allow": [(frontend + subject.address(0, 9) + frontend + subject.address(255, 9), None)],
            "np_allow": [(node_port + subject.address(0, 9) + node_port + subject.address(255, 9), None)],
        },
    )


async def test_what_is_applied_is_read(subject: Subject, table: Any) -> None:
    """NF-2: all kinds of maps; ranges from the first address and to the last one."""
    batch = everything(subject)
    await table.apply(batch)
    state = await table.read()

    assert state.content == {name: dict(pairs) for name, pairs in batch.adds.items()}
    assert {"c_17", "c_3_60", "nl_2_9"} <= state.chains
    assert structure_damage(subject.settings, state) == ""


async def test_a_new_process_reads_the_same(subject: Subject, table: Any) -> None:
    """NF-9: a restart writes only differences."""
    await table.apply(everything(subject))

    assert await subject.driver().read() == await table.read()


async def test_everything_can_be_taken_away_again(subject: Subject, table: Any) -> None:
    empty = await table.read()
    batch = everything(subject)
    await table.apply(batch)
    gone = {name: [key for key, _ in pairs] for name, pairs in batch.adds.items()}
    await table.apply(Batch(deletes=gone, gone_chains=[chain.name for chain in batch.chains]))

    assert await table.read() == empty


async def test_a_value_is_replaced_within_one_batch(subject: Subject, table: Any) -> None:
    """NF-6, NF-21."""
    key = subject.frontend(1) + slot(0)
    await table.apply(Batch(adds={"eps": [(key, subject.endpoint(1))]}))
    await table.apply(Batch(deletes={"eps": [key]}, adds={"eps": [(key, subject.endpoint(2))]}))
    state = await table.read()

    assert state.content["eps"] == {key: subject.endpoint(2)}


async def test_an_empty_batch_changes_nothing(table: Any) -> None:
    await table.apply(Batch())


def refusals(subject: Subject) -> dict[str, tuple[Batch, int, str, bytes, str]]:
    """What the kernel refuses of a table with `everything` in it: errno, map, key, chain."""
    frontend, other = subject.frontend(1), subject.frontend(9)
    taken = frontend + slot(1)
    first, address = (other + slot(0), subject.endpoint(1)), subject.address(9)
    inside = subject.address(3, 9) + subject.address(9, 9)
    across = subject.address(200, 9) + subject.address(300, 9)
    allowed = frontend + subject.address(3, 9) + frontend + subject.address(5, 9)
    return {
        "another value": (Batch(adds={"eps": [first, (taken, subject.endpoint(9))]}), errno.EEXIST, "eps", taken, ""),
        "another verdict": (Batch(adds={"services": [(frontend, "rj")]}), errno.EEXIST, "services", frontend, ""),
        "another number": (Batch(adds={"aff_port": [(frontend, slot(8))]}), errno.EEXIST, "aff_port", frontend, ""),
        "not there": (Batch(deletes={"eps": [taken, other + slot(0)]}), errno.ENOENT, "eps", other + slot(0), ""),
        "no member": (Batch(deletes={"np_addrs": [address]}), errno.ENOENT, "np_addrs", address, ""),
        "range not there": (Batch(deletes={"pod_cidrs": [inside]}), errno.ENOENT, "pod_cidrs", inside, ""),
        "no such chain": (Batch(adds={"services": [(other, "c_18")]}), errno.ENOENT, "services", other, ""),
        "range inside": (Batch(adds={"pod_cidrs": [(inside, None)]}), errno.EEXIST, "pod_cidrs", inside, ""),
        "range across": (Batch(adds={"pod_cidrs": [(across, None)]}), errno.EEXIST, "pod_cidrs", across, ""),
        "source inside": (Batch(adds={"fw_allow": [(allowed, None)]}), errno.EEXIST, "fw_allow", allowed, ""),
        "chain in use": (Batch(gone_chains=["c_17"]), errno.EBUSY, "", b"", "c_17"),
        "chain of the structure in use": (Batch(gone_chains=["rj"]), errno.EBUSY, "", b"", "rj"),
        "chain not there": (Batch(gone_chains=["c_18"]), errno.ENOENT, "", b"", "c_18"),
        "short key": (Batch(adds={"eps": [(b"short", subject.endpoint(1))]}), errno.EINVAL, "eps", b"short", ""),
        "short data": (Batch(adds={"eps": [(other + slot(0), b"short")]}), errno.EINVAL, "eps", other + slot(0), ""),
        "data for a verdict": (Batch(adds={"services": [(other, b"data")]}), errno.EINVAL, "services", other, ""),
    }  # fmt: skip


async def test_one_error_undoes_all_and_names_the_culprit(subject: Subject, table: Any) -> None:
    """NF-8, NF-35, SY-6."""
    await table.apply(everything(subject))
    before = await table.read()
    harmless = [(subject.address(77), None)]
    for name, (batch, code, map_name, key, chain) in refusals(subject).items():
        adds = {"np_addrs": harmless, **batch.adds}
        with pytest.raises(RulesRefused) as caught:
            await table.apply(replace(batch, adds=adds))
        refused = caught.value
        found = refused.errno, refused.map, refused.key, refused.chain

        assert (name, found) == (name, (code, map_name, key, chain))
        assert "nothing was changed" in str(refused)
    assert await table.read() == before


async def test_the_same_element_again_is_no_error(subject: Subject, table: Any) -> None:
    """NF-8."""
    batch = replace(everything(subject), chains=[])
    await table.apply(everything(subject))
    before = await table.read()
    await table.apply(batch)

    assert await table.read() == before


async def test_a_chain_goes_together_with_the_last_element_that_leads_to_it(subject: Subject, table: Any) -> None:
    """NF-5, NF-21."""
    key = subject.frontend(1)
    await table.apply(Batch(chains=[ChoiceChain("c_99", "eps", 99)], adds={"services": [(key, "c_99")]}))
    await table.apply(Batch(deletes={"services": [key]}, gone_chains=["c_99"]))
    state = await table.read()

    assert "c_99" not in state.chains


async def test_a_text_that_nft_does_not_understand_is_refused(subject: Subject, table: Any) -> None:
    before = await table.read()
    with pytest.raises(RulesRefused, match="nft refused"):
        await table.load(replacement_text(subject.settings) + "no such statement\n")

    assert await table.read() == before


async def test_without_a_table_nothing_can_be_written(subject: Subject) -> None:
    driver = subject.driver()
    with pytest.raises(RulesRefused) as caught:
        await driver.apply(Batch(adds={"cluster_ips": [(subject.address(1), None)]}))

    assert (caught.value.errno, caught.value.map) == (errno.ENOENT, "cluster_ips")


async def test_frontends_are_counted_from_zero(subject: Subject, table: Any) -> None:
    """NF-37."""
    await table.apply(Batch(adds={"services": [(subject.frontend(1), "rj")]}))

    assert await table.counters("services") == {subject.frontend(1): (0, 0)}


@pytest.mark.parametrize("others", [0, 100], ids=["singly", "in one dump"])
async def test_a_frontend_goes_on_counting_when_its_verdict_is_another(
    subject: Subject, table: Any, others: int
) -> None:
    """NF-37: also across a restart, since it is the kernel that keeps the sum."""
    keys = [subject.frontend(number) for number in range(1, others + 3)]
    await table.apply(Batch(adds={"services": [(key, "rj") for key in keys]}))
    subject.count("services", keys[0], 7, 420)
    await table.apply(Batch(deletes={"services": keys}, adds={"services": [(key, "") for key in keys[:-1]]}))
    counted = await table.counters("services")

    assert counted == {key: (7, 420) if key == keys[0] else (0, 0) for key in keys[:-1]}

    await table.apply(Batch(deletes={"services": keys[:1]}))
    await table.apply(Batch(adds={"services": [(keys[0], "rj")]}))
    assert (await table.counters("services"))[keys[0]] == (0, 0)


async def test_a_foreign_flush_is_told_and_our_own_changes_are_not(subject: Subject, table: Any) -> None:
    """NF-64."""
    async with aclosing(table.changes()) as changes, asyncio.timeout(WITHIN_S):
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.05)
        await table.load(replacement_text(subject.settings))
        await table.apply(everything(subject))
        await table.apply(Batch(adds={"np_addrs": [(subject.address(n, 5), None) for n in range(1000)]}))
        await asyncio.sleep(0.2)
        told_early = first.done()
        await asyncio.get_running_loop().run_in_executor(None, subject.flush)
        sentence = await first

    assert not told_early
    assert "nft (pid " in sentence
    assert "table deleted" in sentence
    assert await table.read() is None


async def test_a_node_that_can_have_the_table_passes_the_check(subject: Subject) -> None:
    await subject.driver().check()


async def test_packets_lost_in_a_race_are_counted_from_zero(subject: Subject, table: Any) -> None:
    assert await table.race_drops() == 0


async def test_counters_of_a_table_that_is_gone_are_an_error(subject: Subject) -> None:
    with pytest.raises(NftFailed):
        await subject.driver().counters("services")


def client(subject: Subject, number: int, life_ms: int = 600_000, endpoint: int = 0) -> AffineClient:
    return AffineClient(subject.address(number, 7) + slot(7), bytes(4) + subject.endpoint(endpoint), life_ms)


def clients_added(name: str, *clients: AffineClient) -> Batch:
    return Batch(adds={name: [one.living(one.life_ms) for one in clients]})


async def test_clients_are_told_with_the_time_they_have_left(subject: Subject, table: Any) -> None:
    """SVN-101: all of them, some, or those of an endpoint and port."""
    some = [client(subject, number, 1000 * number + 60_000, number % 2) for number in range(900)]
    await table.apply(clients_added("clients", *some))
    every, first = await table.clients("clients"), await table.clients("clients", 100)
    gone = await table.clients("clients", 0, {subject.endpoint(1) + slot(7)})

    assert await table.client_count("clients") == 900
    assert {one.key: one.data for one in every} == {one.key: one.data for one in some}
    assert all(abs(one.life_ms - dict(zip([s.key for s in some], some, strict=True))[one.key].life_ms) < 30_000
               for one in every)  # fmt: skip
    assert 100 <= len(first) <= 900
    assert {one.key for one in gone} == {one.key for one in some[1::2]}


async def test_a_clients_life_is_cut_by_writing_it_anew(subject: Subject, table: Any) -> None:
    """SVN-101."""
    one = client(subject, 1)
    await table.apply(clients_added("clients", one))
    await table.apply(Batch(deletes={"clients": [one.key]}, adds={"clients": [one.living(60_000)]}))
    (found,) = await table.clients("clients")

    assert (found.key, found.data) == (one.key, one.data)
    assert 30_000 < found.life_ms <= 60_000


async def test_a_client_that_is_gone_already_is_named(subject: Subject, table: Any) -> None:
    """SVN-102."""
    here, gone = client(subject, 1), client(subject, 2)
    await table.apply(clients_added("clients", here))
    with pytest.raises(RulesRefused) as caught:
        await table.apply(Batch(deletes={"clients": [here.key, gone.key]}))

    assert (caught.value.errno, caught.value.map, caught.value.key) == (errno.ENOENT, "clients", gone.key)


async def test_a_map_of_its_own_comes_with_its_first_chain_and_goes_after_the_last(
    subject: Subject, table: Any
) -> None:
    """SVN-101: one that is there stays as it is."""
    name = own_map(slot(7), 64)
    chains = [ChoiceChain(f"c_{count}_600_{slot(7).hex()}_64", "eps", count, 600) for count in (2, 3)]
    one = client(subject, 1)
    await table.apply(Batch(chains=chains[:1]))
    await table.apply(clients_added(name, one))
    await table.apply(Batch(chains=chains))
    kept = await table.clients(name)
    for chains_left in (chains, chains[1:]):
        with pytest.raises(RulesRefused):
            await table.apply(Batch(gone_maps=[name]))
        await table.apply(Batch(gone_chains=[chains_left[0].name]))
    await table.apply(Batch(gone_maps=[name]))

    assert [found.key for found in kept] == [one.key]
    with pytest.raises(NftFailed):
        await table.clients(name)


async def test_a_map_of_its_own_holds_so_many_clients(subject: Subject, table: Any) -> None:
    """SVN-101: a full one takes none from others."""
    name = own_map(slot(7), 64)
    await table.apply(Batch(chains=[ChoiceChain(f"c_2_600_{slot(7).hex()}_64", "eps", 2, 600)]))
    await table.apply(clients_added(name, *(client(subject, number) for number in range(64))))
    with pytest.raises(RulesRefused):
        await table.apply(clients_added(name, client(subject, 64)))
    await table.apply(clients_added("clients", *(client(subject, number) for number in range(65))))

    assert await table.client_count("clients") == 65


async def test_clients_are_counted_by_kernels_that_do_not_say_it(
    subject: Subject, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SVN-101: before 6.16."""
    await table.apply(clients_added("clients", *(client(subject, number) for number in range(700))))
    monkeypatch.setattr(kernel_table, "_SET_COUNT", 255)

    assert await table.client_count("clients") == 700

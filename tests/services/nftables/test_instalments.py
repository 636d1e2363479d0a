# SPDX-License-Identifier: Apache-2.0
"""A first programming in several transactions: every element once, in an order that shows nothing half done."""

import struct
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from agent.drivers.nft.fake import FakeNft
from agent.model.nft_table import MAPS, Batch, ChoiceChain, TableSettings
from agent.services.nftables.instalments import instalments
from agent.services.nftables.structure import replacement_text

FRONTENDS = {"services", "nodeports"}


def key(number: int) -> bytes:
    return struct.pack(">I", number)


def batch(sizes: dict[str, int], dropping: dict[str, int]) -> Batch:
    """So many elements of each map; some frontends are there already, and drop."""
    adds = {name: [(key(n), "") for n in range(size)] for name, size in sizes.items() if size}
    deletes = {name: [key(n) for n in range(size)] for name, size in dropping.items() if size}
    return Batch([ChoiceChain("c_17", "eps", 17)], deletes, adds)


SIZES = st.fixed_dictionaries({}, optional={name: st.integers(0, 30) for name in MAPS})
DROPPING = st.fixed_dictionaries({}, optional={name: st.integers(0, 30) for name in sorted(FRONTENDS)})


@given(SIZES, DROPPING, st.integers(1, 40))
def test_nothing_is_lost_or_written_twice(sizes: dict[str, int], dropping: dict[str, int], most: int) -> None:
    whole = batch(sizes, dropping)
    parts = list(instalments(whole, most))
    adds = Counter((name, pair) for part in parts for name, pairs in part.adds.items() for pair in pairs)
    deletes = Counter((name, one) for part in parts for name, keys in part.deletes.items() for one in keys)

    assert adds == Counter((name, pair) for name, pairs in whole.adds.items() for pair in pairs)
    assert deletes == Counter((name, one) for name, keys in whole.deletes.items() for one in keys)
    assert [chain for part in parts for chain in part.chains] == list(whole.chains)
    assert all(sum(map(len, part.adds.values())) <= most for part in parts) or len(parts) == 1


@given(SIZES, DROPPING, st.integers(1, 40))
def test_frontends_come_after_what_they_lead_to(sizes: dict[str, int], dropping: dict[str, int], most: int) -> None:
    """NF-20, TY-16: and what refuses the rest of a service address comes last."""
    order = {name: 1 if name in FRONTENDS else 0 for name in MAPS} | dict.fromkeys(
        ("cluster_ips", "svc_cidrs", "np_addrs"), 2
    )
    parts = list(instalments(batch(sizes, dropping), most))
    steps = [{order[name] for name in part.adds} for part in parts if part.adds]
    for part in parts:
        for name, keys in part.deletes.items():
            added = {one for one, _ in part.adds.get(name, ())}

            assert len(parts) == 1 or set(keys) <= added or not part.adds
    assert len(parts) == 1 or steps == sorted(steps, key=max)
    assert len(parts) == 1 or all(len(step) == 1 for step in steps)


def test_a_change_of_what_is_in_use_stays_whole() -> None:
    """NF-6, NF-23."""
    many = [(key(n), None) for n in range(100)]
    moved = Batch(deletes={"eps": [key(1)]}, adds={"cluster_ips": many})
    leaving = Batch(adds={"cluster_ips": many}, gone_chains=["c_17"])

    assert list(instalments(moved, 10)) == [moved]
    assert list(instalments(leaving, 10)) == [leaving]


async def test_the_parts_make_the_same_table_as_the_whole() -> None:
    settings = TableSettings(family="IPv4")
    frontends = [bytes([10, 96, 0, n]) + b"\x06\0\0\0" + b"\0\x50\0\0" for n in range(20)]
    endpoints = [(one + struct.pack("=I", 0), bytes([10, 1, 0, 1]) + b"\0\x50\0\0") for one in frontends]
    whole = Batch(
        [ChoiceChain("c_17", "eps", 17)],
        {"services": frontends},
        {"services": [(one, "c_17") for one in frontends], "eps": endpoints, "cluster_ips": [(frontends[0][:4], None)]},
    )
    one, other = FakeNft("IPv4"), FakeNft("IPv4")
    for table in (one, other):
        await table.load(replacement_text(settings, {"services": dict.fromkeys(frontends, "")}))
    await one.apply(whole)
    for part in instalments(whole, 7):
        await other.apply(part)

    assert await other.read() == await one.read()
    assert len(other.batches) == 7

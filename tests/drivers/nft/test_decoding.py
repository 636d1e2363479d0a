# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells, as values: dumps of elements, and notifications about others."""

import struct
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drivers.netlink.attributes import Answer, attribute, message, nested, number, text
from agent.drivers.nft.commit_decoder import CommitDecoder
from agent.drivers.nft.dump import chain_facts, counted_elements, elements, table_facts
from agent.drivers.nft.elements import additions, data_size, key_size
from agent.drivers.nft.messages import Message
from agent.model.services.nft_table import MAPS, Data, Family, MapKind

FAMILIES: st.SearchStrategy[Family] = st.sampled_from(["IPv4", "IPv6"])
WITHOUT_RANGES = sorted(name for name, layout in MAPS.items() if layout.kind is not MapKind.INTERVAL)
OURS, OTHERS = 77, 4711


def answer(name: str, *blocks: bytes) -> Answer:
    """A dump's message with these elements."""
    whole = text(1, "kepd") + text(2, name) + nested(3, *blocks)
    return b"before" + whole, 6, 6 + len(whole)


@st.composite
def contents(draw: st.DrawFn) -> tuple[str, Family, dict[bytes, Data]]:
    family = draw(FAMILIES)
    layout = MAPS[draw(st.sampled_from(WITHOUT_RANGES))]
    size, width = key_size(layout, family), data_size(layout, family)
    values: st.SearchStrategy[Data] = st.binary(min_size=width, max_size=width) if width else st.none()
    if layout.kind is MapKind.VERDICT:
        values = st.sampled_from(["", "rj", "c_1", "c_17", "nl_2_10800"])
    return layout.name, family, draw(st.dictionaries(st.binary(min_size=size, max_size=size), values, max_size=20))


@given(contents())
def test_every_content_survives_encoding_and_decoding(case: tuple[str, Family, dict[bytes, Data]]) -> None:
    """NF-8: the mirror of the kernel's state is exact."""
    name, family, content = case
    blocks = additions(MAPS[name], family, list(content.items()))
    half = len(blocks) // 2

    assert elements(MAPS[name], family, [answer(name, *blocks[:half]), answer(name, *blocks[half:])]) == content


@given(contents())
def test_elements_of_different_shape_are_decoded_one_by_one(case: tuple[str, Family, dict[bytes, Data]]) -> None:
    """The kernel adds flags, counters and others' comments to some of them."""
    name, family, content = case
    blocks = additions(MAPS[name], family, list(content.items()))
    odd = [nested(1, block[4:], number(3, index)) if index % 2 else block for index, block in enumerate(blocks)]

    assert elements(MAPS[name], family, [answer(name, *odd)]) == content


def test_an_element_that_is_told_twice_makes_the_whole_dump_worthless() -> None:
    """NF-8: a hash table that grows during a dump shows some elements twice, and others not at all."""
    key = bytes([10, 96, 0, 1])
    member = additions(MAPS["cluster_ips"], "IPv4", [(key, None)])[0]
    verdict = additions(MAPS["services"], "IPv4", [(key + bytes(8), "rj")])[0]
    counted = nested(1, verdict[4:], counter(1, 60))

    assert elements(MAPS["cluster_ips"], "IPv4", [answer("cluster_ips", member), answer("cluster_ips", member)]) is None
    assert elements(MAPS["services"], "IPv4", [answer("services", verdict, verdict)]) is None
    assert counted_elements([answer("services", counted, counted)]) is None


def counter(packets: int, size: int) -> bytes:
    data = nested(2, attribute(1, struct.pack(">Q", size)), attribute(2, struct.pack(">Q", packets)))
    return nested(7, text(1, "counter"), data)


def test_counters_are_packets_and_bytes() -> None:
    """NF-37: and do not disturb the reading of what they count."""
    key = bytes([10, 96, 0, 1]) + b"\x06\0\0\0" + b"\0\x50\0\0"
    block = additions(MAPS["services"], "IPv4", [(key, "c_1")])[0]
    counted = answer("services", nested(1, block[4:], counter(3, 180)))

    assert counted_elements([counted]) == {key: (3, 180)}
    assert elements(MAPS["services"], "IPv4", [counted]) == {key: "c_1"}


ADDRESSES = st.integers(0, 2**32 - 1)


@given(st.sets(ADDRESSES, max_size=12))
def test_ranges_are_read_from_their_ends_in_any_order(cuts: set[int]) -> None:
    """Also adjacent ones, and one that reaches to the last address."""
    points = sorted(cuts | {2**32}) if len(cuts) % 2 else sorted(cuts)
    ranges = [
        IPv4Address(first).packed + IPv4Address(after - 1).packed
        for first, after in zip(points[::2], points[1::2], strict=True)
    ]
    layout = MAPS["pod_cidrs"]
    blocks = additions(layout, "IPv4", [(one, None) for one in reversed(ranges)])

    assert elements(layout, "IPv4", [answer("pod_cidrs", *blocks)]) == dict.fromkeys(ranges)


def test_adjacent_ranges_stay_apart() -> None:
    """The end of one is where the next begins; nft puts an end before the first."""
    layout = MAPS["pod_cidrs"]
    low, high = bytes([10, 0, 0, 0, 10, 0, 0, 255]), bytes([10, 0, 1, 0, 10, 0, 1, 255])
    before = nested(1, nested(1, attribute(1, bytes(4))), number(3, 1))
    blocks = additions(layout, "IPv4", [(high, None), (low, None)])

    assert elements(layout, "IPv4", [answer("pod_cidrs", before, *blocks)]) == {low: None, high: None}


def test_a_chain_is_known_by_its_comment_and_a_table_by_its_owner() -> None:
    """NF-9."""
    comment = b"\1\2ab" + b"\0\5text\0"
    chain = text(1, "kepd") + text(3, "layout_1") + attribute(12, comment)
    table = text(1, "kepd") + number(7, 4711)

    assert (chain_facts((chain, 0, len(chain))).name, chain_facts((chain, 0, len(chain))).comment) == (
        "layout_1",
        "text",
    )
    assert (table_facts((table, 0, len(table))).name, table_facts((table, 0, len(table))).owner) == ("kepd", 4711)


def told(kind: int, port: int, payload: bytes, family: str = "IPv4") -> bytes:
    """A notification."""
    made = message(kind, 0, 1, family, payload)
    return made[:12] + struct.pack("=I", port) + made[16:]


def generation(port: int) -> bytes:
    return told(Message.NEW_GENERATION, port, number(1, 9) + number(2, 1234) + text(3, "nft"), "")


GONE = text(1, "kepd") + text(2, "eps")


def hear(*datagrams: bytes) -> list[str]:
    decoder = CommitDecoder("IPv4", lambda port: port == OURS)
    return [str(commit) for datagram in datagrams for commit in decoder.hear(datagram)]


def test_a_commit_of_others_is_one_sentence() -> None:
    """NF-64."""
    deleted = told(Message.DELETE_ELEMENTS, OTHERS, GONE)
    rule = told(Message.NEW_RULE, OTHERS, text(1, "kepd") + text(2, "dispatch"))
    expected = "nft (pid 1234) changed kepd's table: element deleted, 2 times, rule added"

    assert hear(deleted, deleted + rule, generation(OTHERS)) == [expected]


def test_other_tables_other_families_and_we_ourselves_are_not_told() -> None:
    other = told(Message.DELETE_ELEMENTS, OTHERS, text(1, "kepd2") + text(2, "eps"))
    other_family = told(Message.DELETE_ELEMENTS, OTHERS, GONE, "IPv6")
    own = told(Message.DELETE_ELEMENTS, OURS, GONE)

    assert hear(other, other_family, generation(OTHERS), own, generation(OURS), generation(OTHERS)) == []


@pytest.mark.parametrize(("name", "is_told"), [("clients", False), ("cl_0a0b0c0d_4096", False), ("cluster_ips", True)])
def test_clients_come_and_go_without_a_word(name: str, is_told: bool) -> None:
    """FS-14: packets write them, and nothing says what they should be."""
    written = told(Message.NEW_ELEMENTS, OTHERS, text(1, "kepd") + text(2, name))

    assert bool(hear(written, generation(OTHERS))) == is_told


@given(st.binary(max_size=200))
def test_garbage_is_heard_without_harm(datagram: bytes) -> None:
    assert all(isinstance(sentence, str) for sentence in hear(datagram))

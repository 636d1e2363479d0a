# SPDX-License-Identifier: Apache-2.0
"""The bytes that go to the kernel: compared with what nft 1.0.6 and the kernel were seen to exchange."""

import errno
import struct

import pytest

from agent.drivers.netlink.attributes import HEADER, attributes, message
from agent.drivers.nft.elements import additions, deletions
from agent.drivers.nft.expressions import choice_rules
from agent.drivers.nft.transaction import transaction
from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import MAPS, Batch, ChoiceChain

FRONTEND = bytes([10, 96, 0, 1]) + b"\x06\0\0\0" + b"\x01\xbb\0\0"
SLOT = struct.pack("=I", 2)
ENDPOINT = bytes([10, 1, 0, 7]) + b"\x1f\x90\0\0"


def element(layout: str, key: bytes, data: object = None) -> str:
    return additions(MAPS[layout], "IPv4", [(key, data)])[0].hex()  # type: ignore[list-item]


def test_an_endpoint_is_key_and_value() -> None:
    """NF-2: every component takes four bytes, the slot in the order of the host."""
    expected = (
        "2c000180" "18000180" "14000100" "0a600001" "06000000" "01bb0000" "02000000"
        "10000280" "0c000100" "0a010007" "1f900000"
    )  # fmt: skip

    assert element("eps", FRONTEND + SLOT, ENDPOINT) == expected


def test_a_verdict_names_its_chain_or_drops() -> None:
    """NF-2: -4 is goto; a drop has no chain."""
    head = "14000180100001000a6000010600000001bb0000"
    goto = "180002801400028008000100fffffffc0800020063 5f 31 00".replace(" ", "")
    drop = "100002800c0002800800010000000000"

    assert element("services", FRONTEND, "c_1") == "30000180" + head + goto
    assert element("services", FRONTEND, "") == "28000180" + head + drop


def test_a_member_is_a_key_alone() -> None:
    assert element("cluster_ips", FRONTEND[:4]) == "100001800c000180080001000a600001"
    assert deletions(MAPS["eps"], "IPv4", [FRONTEND + SLOT])[0].hex().startswith("1c0001801800018014000100")


@pytest.mark.parametrize(
    ("first", "last", "ends"),
    [
        ("0a000000", "0affffff", ["0a000000", "0b000000"]),
        ("00000000", "7fffffff", ["00000000", "80000000"]),
        ("80000000", "ffffffff", ["80000000"]),
        ("00000000", "ffffffff", ["00000000"]),
        ("ffffffff", "ffffffff", ["ffffffff"]),
        ("0a0000ff", "0a0000ff", ["0a0000ff", "0a000100"]),
    ],
)
def test_a_range_in_a_tree_ends_before_the_next_address(first: str, last: str, ends: list[str]) -> None:
    """A range that reaches to the last address has no end."""
    block = additions(MAPS["pod_cidrs"], "IPv4", [(bytes.fromhex(first + last), None)])[0]
    parts = [dict_of(block, at, stop) for _, at, stop in attributes(block, 0, len(block))]

    assert [part[1][4:].hex() for part in parts] == ends
    assert [part.get(3, b"") for part in parts] == [b"", b"\0\0\0\1"][: len(ends)]


def test_a_range_of_a_concatenation_is_one_element_with_two_keys() -> None:
    first, last = FRONTEND + bytes([10, 0, 0, 0]), FRONTEND + bytes([10, 0, 0, 255])
    block = additions(MAPS["fw_allow"], "IPv4", [(first + last, None)])[0]
    part = dict_of(block, 4, len(block))

    assert (part[1][4:], part[10][4:]) == (first, last)


def dict_of(block: bytes, begin: int, end: int) -> dict[int, bytes]:
    return {kind: block[at:stop] for kind, at, stop in attributes(block, begin, end)}


@pytest.mark.parametrize("key", [b"", FRONTEND, FRONTEND + SLOT + b"\0"])
def test_a_key_of_another_size_is_refused_before_it_garbles_others(key: bytes) -> None:
    with pytest.raises(RulesRefused) as caught:
        additions(MAPS["eps"], "IPv4", [(FRONTEND + SLOT, ENDPOINT), (key, ENDPOINT)])

    assert (caught.value.errno, caught.value.key) == (errno.EINVAL, key)


def expressions(rule: bytes) -> list[str]:
    """The names of a rule's expressions."""
    return [
        dict_of(rule, at, stop)[1].rstrip(b"\0").decode()
        for _, at, stop in attributes(rule, 0, len(rule))
    ]  # fmt: skip


def test_a_choice_is_the_drawn_slot_else_the_first_else_a_drop() -> None:
    """NF-4, NF-20."""
    rules = [expressions(rule) for rule in choice_rules(ChoiceChain("c_17", "eps", 17), "IPv4")]
    draw = ["payload", "meta", "payload", "numgen", "lookup", "nat"]

    assert rules == [draw, draw, ["objref", "immediate"]]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("endpoints", ["eps", "eps_local", "np_eps", "np_eps_local"])
def test_affinity_comes_before_the_choice(family: str, endpoints: str) -> None:
    """TY-7: follow what is remembered while it is a member of the list; else draw and remember."""
    known, new, *rest = choice_rules(ChoiceChain("c", endpoints, 2, 60), family)
    timeout = struct.pack(">Q", 60_000)

    assert [name for name in expressions(known) if name not in ("payload", "meta")] == [
        "lookup", "lookup", "lookup", "lookup", "dynset", "nat",
    ]  # fmt: skip
    assert [name for name in expressions(new) if name not in ("payload", "meta")] == [
        "lookup", "numgen", "lookup", "dynset", "dynset", "nat",
    ]  # fmt: skip
    assert (known.count(timeout), new.count(timeout)) == (1, 2)
    assert (b"aff_local\0" in known) == endpoints.endswith("_local")
    assert (b"np_aff_port\0" in known) == endpoints.startswith("np_")
    assert len(rest) == 3


def headers(data: bytes) -> list[tuple[int, int, int]]:
    """Type, flags and sequence of each message."""
    found = []
    at = 0
    while at < len(data):
        length, kind, flags, sequence, _ = HEADER.unpack_from(data, at)
        found.append((kind, flags, sequence))
        at += length
    return found


def test_a_batch_is_chains_then_deletions_then_additions_then_chains_that_go() -> None:
    """NF-21, NF-3: the last message asks for the acknowledgement."""
    batch = Batch(
        chains=[ChoiceChain("c_17", "eps", 17)],
        deletes={"eps": [FRONTEND + SLOT]},
        adds={"services": [(FRONTEND, "c_17")]},
        gone_chains=["c_18"],
    )
    planned = transaction(batch, "IPv4", 100)

    assert headers(planned.data) == [
        (0x10, 0x1, 100),
        (0xA03, 0x401, 101),
        (0xA08, 0x1, 102),
        *((0xA06, 0xC01, 103 + n) for n in range(3)),
        (0xA0E, 0x1, 106),
        (0xA0C, 0x401, 107),
        (0xA05, 0x5, 108),
        (0x11, 0x1, 109),
    ]
    assert planned.last == 108


def test_many_elements_are_split_where_sixteen_bits_end() -> None:
    """NF-3."""
    pairs = [(FRONTEND + struct.pack("=I", slot), ENDPOINT) for slot in range(3000)]
    planned = transaction(Batch(adds={"eps": pairs}), "IPv4", 1)

    assert len(headers(planned.data)) == 2 + 3
    assert all(length <= 0xFFFF for length in lengths(planned.data))


def lengths(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(HEADER.unpack_from(data, at)[0])
        at += found[-1]
    return found


def test_the_culprit_is_found_by_message_and_offset() -> None:
    """SY-6."""
    pairs = [(FRONTEND + struct.pack("=I", slot), ENDPOINT) for slot in range(3000)]
    planned = transaction(Batch(deletes={"services": [FRONTEND]}, adds={"eps": pairs}), "IPv4", 1)
    part = planned.parts[2]
    refused = planned.refusal(errno.EEXIST, 4, part.offset + 44 * 5)

    assert (refused.map, refused.key) == ("eps", part.keys[5])
    assert planned.refusal(errno.EEXIST, 4, 0).key == b""
    assert planned.refusal(errno.ENOENT, 2, 0).key == FRONTEND
    assert planned.refusal(errno.EPERM, 1, 0).map == ""


def test_a_message_is_padded_and_says_its_family() -> None:
    assert message(0xA0F, 1, 7, "IPv6", b"").hex() == "140000000f0a010007000000000000000a000000"
    assert message(0x10, 1, 7, "", b"", 10).hex() == "1400000010000100070000000000000000 00000a".replace(" ", "")

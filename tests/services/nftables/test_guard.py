# SPDX-License-Identifier: Apache-2.0
"""SVN-21 to SVN-24: what a boot loads before there is a kepd; real packets are in node/test_boot_guard.py."""

from agent.services.nftables.guard import (
    MOST_ADDRESSES,
    Way,
    guard_removal,
    guard_text,
    guarded,
    guarded_in,
    outside,
)
from agent.services.objects.addresses import address_of, read_range, whole
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.selection import Place
from tests.services.making import make_service

RANGES = tuple(one for one in [read_range("10.96.0.0/16")] if one is not None)


def test_networks_and_what_is_outside_of_them_for_a_while() -> None:
    desired = Desired("IPv4", NodeFacts(Place("here")))
    desired.fold.put_service(make_service("web", externalIPs=["203.0.113.9"]))
    desired.fold.put_service(make_service("odd", ip="172.20.0.1"))
    desired.update()
    ways = [way for plan in desired.plans() for way in outside(plan, RANGES)]

    elements, left_out = guarded(RANGES, ways)
    text = guard_text("IPv4", elements, 300)

    texts = ["10.96.0.0/16", "172.20.0.1 . tcp . 80", "203.0.113.9 . tcp . 80"]
    assert ([str(one) for one in elements], left_out) == (texts, 0)
    assert guarded_in(text) == elements
    assert text.startswith(guard_removal("IPv4"))
    assert [line.strip(" ,") for line in text.splitlines() if "timeout 300s" in line] == [
        f"{one} timeout 300s" for one in elements
    ]
    assert text.count("ct state new ip daddr @guarded counter drop") == 2


def test_nothing_to_guard_is_no_table() -> None:
    assert guard_text("IPv6", (), 300) == guard_removal("IPv6")
    assert outside(None, RANGES) == ()


def test_of_too_many_addresses_some_are_left_out_and_counted() -> None:
    first = 0xC6120000
    many = [
        Way(whole(address_of((first + number).to_bytes(4, "big"))), "TCP", 80) for number in range(MOST_ADDRESSES + 7)
    ]

    elements, left_out = guarded(RANGES, many)

    assert (len(elements), left_out) == (MOST_ADDRESSES + 1, 7)

# SPDX-License-Identifier: Apache-2.0
"""Whom to ask: zones, servers as people write them, order by what is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kepd_dns.handover.state import Settings
from kepd_dns.upstreams.addresses import Server, read_resolv_conf, read_server
from kepd_dns.upstreams.health import EXPLORE, OUT_AFTER, Healths
from kepd_dns.wire.answer import FilteredAnswer
from kepd_dns.wire.names import to_wire
from kepd_dns.zones.choice import is_beyond_schema, reverse_zones, zones_of
from kepd_dns.zones.rebinding import names_protected
from packages.dns.tests.messages import answer, ask, kept

ONE, TWO, THREE = (Server(f"10.0.0.{one}") for one in (1, 2, 3))


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("10.0.0.1", Server("10.0.0.1")),
        ("10.0.0.1:5353", Server("10.0.0.1", 5353)),
        ("fd00::0:1", Server("fd00::1")),
        ("[fd00::1]:99", Server("fd00::1", 99)),
        ("fe80::1%eth0", Server("fe80::1%eth0")),
        ("dns.example", None),
        ("10.0.0.1:0", None),
        ("10.0.0.1:x", None),
    ],
)
def test_a_server_is_an_address_perhaps_with_a_port(text: str, server: Server | None) -> None:
    assert read_server(text) == server


def test_servers_of_the_node_come_from_its_file() -> None:
    """DNS-43."""
    text = "# x\nnameserver 10.0.0.1\nsearch a b\nnameserver fd00::1 # y\nnameserver nonsense\nnameserver 10.0.0.1\n"

    assert read_resolv_conf(text) == (Server("10.0.0.1"), Server("fd00::1"))


def test_the_longest_suffix_decides() -> None:
    """DNS-40, DNS-41: stub domains below the cluster zone are theirs, its reverse zones are the cluster's."""
    settings = Settings(
        has_cluster=True,
        stub_domains={"corp.example": ("10.9.9.9",), "legacy.svc.cluster.local": ("10.9.9.8:5353",)},
        reverse_networks=("10.96.0.0/12", "fd00:96::/112"),
    )
    zones, faults = zones_of(settings)
    names = {
        "a.b.svc.cluster.local": "cluster",
        "xcluster.local": "other",
        "a.corp.example": "stub",
        "x.legacy.svc.cluster.local": "stub",
        "example": "other",
        "1.0.96.10.in-addr.arpa": "cluster",
        "1.0.112.10.in-addr.arpa": "other",
    }

    assert {name: zones.of(to_wire(name)).kind for name in names} == names
    assert not faults
    assert zones.of(to_wire("x.legacy.svc.cluster.local")).servers == (Server("10.9.9.8", 5353),)


def test_networks_become_zones_at_whole_labels() -> None:
    assert reverse_zones("10.96.0.0/15") == ["96.10.in-addr.arpa", "97.10.in-addr.arpa"]
    assert reverse_zones("fd00::/16") == ["0.0.d.f.ip6.arpa"]


def test_the_fastest_server_is_asked_first_and_now_and_then_another() -> None:
    """DNS-44."""
    healths = Healths()
    for server, took_s in ((ONE, 0.02), (TWO, 0.01), (THREE, 0.03)):
        healths.of(server).answered(took_s)

    assert healths.order((ONE, TWO, THREE), 0.0, 0.5) == [TWO, ONE, THREE]
    assert healths.order((ONE, TWO, THREE), 0.0, 0.09)[0] == THREE


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(0, 4)), max_size=4), st.floats(0, 1))
def test_the_nearest_server_is_the_first_of_their_order(servers: list[tuple[float, int]], dice: float) -> None:
    """DNS-44: where nothing is to be decided, it is found without an order."""
    healths, listed = Healths(), tuple(Server(f"10.0.0.{number}") for number in range(len(servers)))
    for server, (took_s, failures) in zip(listed, servers, strict=True):
        healths.of(server).answered(took_s)
        for _ in range(failures):
            healths.of(server).failed(0.0)

    found = healths.nearest(listed, dice)

    if found is not None:
        assert found.server == healths.order(listed, 0.5, dice)[0]
    else:
        assert dice < EXPLORE or not servers or any(failures >= OUT_AFTER for _, failures in servers)


def test_answers_that_come_together_are_one_sample() -> None:
    """DNS-44: a batch of them does not outweigh what came before, and any answer ends a silence."""
    health = Healths().of(ONE)
    for took_s in (0.02, 0.1, 0.1, 0.1):
        health.answered(took_s)
    health.failed(0.0)
    health.answered(0.1)

    assert list(health.samples) == [0.02, 0.1, 0.1]
    assert health.failures == 0


def test_a_second_server_is_asked_when_the_first_is_slower_than_it_uses_to_be() -> None:
    """DNS-44."""
    health = Healths().of(ONE)
    first_s = health.hedge_s
    for _ in range(5):
        health.answered(0.1)

    assert (first_s, health.hedge_s) == (0.05, 0.4)


def test_a_server_that_keeps_silent_is_left_out_longer_and_longer() -> None:
    """DNS-44: then one question shows whether it is back."""
    healths = Healths()
    health = healths.of(ONE)
    outs = []
    for _ in range(9):
        health.failed(0.0)
        outs.append(health.out_s)
    left_out = healths.order((ONE, TWO), 1.0, 0.5)
    tried = [healths.order((ONE, TWO), 31.0, 0.5) for _ in range(2)]
    health.answered(0.01)

    assert outs == [0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert left_out == [TWO]
    assert [ONE in one for one in tried] == [True, False]
    assert ONE in healths.order((ONE, TWO), 31.0, 0.5)


def test_where_all_are_out_each_has_its_turn() -> None:
    """DNS-44."""
    healths = Healths()
    for server in (ONE, TWO):
        for _ in range(3):
            healths.of(server).failed(0.0)

    firsts = {healths.order((ONE, TWO), 0.5, 0.5)[0] for _ in range(2)}

    assert firsts == {ONE, TWO}


def test_addresses_of_the_cluster_are_found_in_answers_of_others() -> None:
    """DNS-96."""

    def of(address: str) -> FilteredAnswer:
        asked = ask("a.evil")
        return kept(asked, answer(asked, ["a.evil. 5 IN CNAME b.evil.", f"b.evil. 5 IN A {address}"]))

    assert [names_protected(of(one), ("10.96.0.0/12",)) for one in ("10.100.0.1", "192.0.2.1")] == [True, False]


def test_a_search_makes_names_that_no_service_can_have() -> None:
    """DNS-78: hosts and ports of Services stay; more labels below `svc` are what a search list appended to."""
    zone = to_wire("cluster.local")
    found = {
        name: is_beyond_schema(to_wire(f"{name}.cluster.local"), zone)
        for name in (
            "web.default.svc", "rex.pets.default.svc", "_http._tcp.web.default.svc", "www.example.com.svc",
            "www.example.com.default.svc", "a.b.c.d.default.svc", "www.example.com", "a.b.c.d.svcs",
        )
    }  # fmt: skip

    assert [name for name, is_beyond in found.items() if is_beyond] == [
        "www.example.com.default.svc",
        "a.b.c.d.default.svc",
    ]

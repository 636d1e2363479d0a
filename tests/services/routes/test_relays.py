# SPDX-License-Identifier: Apache-2.0
"""What node ports on localhost lead to (SVN-30, SVN-31); connections are in node/test_localhost.py."""

from typing import Any

import pytest

from agent.config.sections.services import Services
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.objects.addresses import read_address
from agent.services.objects.node_state import NodeSettings, NodeSight, family_facts
from agent.services.routes.desired import Desired
from agent.services.routes.frontends import ServicePlan
from agent.services.routes.relays import RelayedPort, Returning, choose, relayed_ports, unrelayed_ports
from agent.services.settings_check import services_faults
from tests.services.making import make_service, make_slice

WEB = ServiceKey("shop", "web")
NODE = read_address("192.168.7.1")
PORTS = [
    {"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080},
    {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053},
]


def planned(*addresses: Any, **spec: Any) -> ServicePlan:
    desired = Desired("IPv4", family_facts("IPv4", NodeSettings(node="here"), NodeSight(), ()).node)
    desired.fold.put_service(make_service(type=spec.pop("type", "NodePort"), ports=PORTS, **spec))
    desired.fold.put_slice(make_slice(addresses or ["10.1.0.1", "10.1.0.2"]))
    desired.update()
    plan = desired.plan_of(WEB)
    assert plan is not None
    return plan


def relayed(*addresses: Any, **spec: Any) -> RelayedPort:
    assert NODE is not None
    ((number, found),) = relayed_ports(planned(*addresses, **spec), "IPv4", [NODE])
    assert number == 30080
    return found


def hosts(found: RelayedPort) -> list[int]:
    return [one[3] for one in found.slots]


def test_only_tcp_is_relayed() -> None:
    assert [(one.port, one.protocol) for one in unrelayed_ports(planned())] == [(30053, "UDP")]
    assert hosts(relayed()) == [1, 2]


def test_the_list_is_that_of_the_cluster_also_with_a_local_policy() -> None:
    """TY-12: a node reaches its node ports whoever has the endpoints."""
    far = {"ip": "10.1.0.7", "nodeName": "there"}

    assert hosts(relayed(far, externalTrafficPolicy="Local")) == [7]


def test_weights_count() -> None:
    meta = {"annotations": {"kepd.dev/endpoint-weights": "10.1.0.1=3,10.1.0.2=1"}}

    assert hosts(relayed(meta=meta)) == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [(["127.0.0.0/8"], [1, 2]), (["192.168.7.0/24"], [1, 2]), (["203.0.113.0/24"], []), (["garbage"], [1, 2])],
)
def test_source_ranges_that_hold_everywhere_hold_here(ranges: list[str], expected: list[int]) -> None:
    """SVN-33: of ranges, those of the node count for what comes from the node; garbage is as if there were none."""
    meta = {"annotations": {"kepd.dev/source-ranges-everywhere": "true"}}

    assert hosts(relayed(type="LoadBalancer", meta=meta, loadBalancerSourceRanges=ranges)) == expected


def test_who_comes_back_gets_the_same_until_it_is_gone_or_refuses() -> None:
    port = relayed()
    first, second = port.slots
    returning = Returning(second, until_s=10.0)

    def draw(_below: int) -> int:
        return 0

    assert choose(port, returning, (), 9.0, draw) == second
    assert choose(port, returning, (), 11.0, draw) == first
    assert choose(port, returning, {second}, 9.0, draw) == first
    assert choose(port, None, {first, second}, 9.0, draw) is None
    assert choose(port, Returning(b"gone", 10.0), (), 9.0, draw) == first


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_localhost_alone_opens_no_other_address(family: Family) -> None:
    for words, is_open in ((("localhost",), False), ((), True)):
        settings = NodeSettings(node="here", node_port_addresses=words)
        node = family_facts(family, settings, NodeSight(), ()).node

        assert (node.is_open_everywhere, node.node_port_addresses) == (is_open, ())
        assert node.has_localhost == bool(words)


@pytest.mark.parametrize(
    ("backend", "words", "fault"),
    [
        ("nftables", ("localhost",), ""),
        ("nftables", ("localhost", "primary"), ""),
        ("nftables", ("localhost", "192.0.2.0/24"), ""),
        ("nftables", ("primary", "192.0.2.0/24"), "localhost may stand beside both"),
        ("nftables", ("127.0.0.0/8",), "expected localhost"),
        ("iptables", ("localhost",), "needs the backend nftables"),
    ],
)
def test_the_word_is_for_nftables(backend: str, words: tuple[str, ...], fault: str) -> None:
    """SVN-30: with iptables node ports on 127.0.0.1 are there without it (TY-20)."""
    found = [str(one) for one in services_faults(Services(backend=backend, node_port_addresses=words))]

    assert (fault in found[0]) if fault else found == []

# SPDX-License-Identifier: Apache-2.0
"""The tracer's words where kepd's rules alone do not decide."""

import pytest

from agent.model.services.nft_table import Content, TableSettings
from agent.model.services.service import Address
from agent.services.nftables.elements import NO_SLOTS, elements_of, shared_elements_of, slots_of
from agent.services.nftables.trace import Outcome, Packet, trace
from agent.services.objects.addresses import read_address
from agent.services.objects.merged import Endpoints
from agent.services.routes.frontends import plan_service
from agent.services.routes.selection import Place
from tests.services.making import backends_in, make_service, make_slice

SETTINGS = TableSettings(family="IPv4")


def at(text: str) -> Address:
    found = read_address(text)
    assert found is not None
    return found


CONTENT: Content = {
    "cluster_ips": {at("10.96.0.10").packed: None},
    "svc_cidrs": {at("10.96.0.0").packed + at("10.96.255.255").packed: None},
}


def traced(target: str, **where: bool) -> Outcome:
    return trace(CONTENT, SETTINGS, Packet(at("10.1.0.7"), at(target), "TCP", 80, **where))


@pytest.mark.parametrize(("target", "verdict"), [("10.96.0.10", "reject"), ("10.96.7.7", "drop"), ("10.1.0.9", "pass")])
def test_what_led_nowhere_ends_after_translation(target: str, verdict: str) -> None:
    """TY-16."""
    assert traced(target).verdict == verdict


def test_an_address_that_another_proxy_may_have_is_said_to_be_that() -> None:
    """FS-1: its rules are not followed."""
    last = traced("10.96.7.7").steps[-1]

    assert last.place == "unserved svc_cidrs"
    assert "unless another proxy translates it" in last.found


def test_a_port_that_is_let_pass_without_endpoints_is_not_refused() -> None:
    """FS-12: the ClusterIP itself was, as an address of a Service without such a port."""
    passing = make_service(meta={"annotations": {"kepd.dev/no-endpoints": "pass"}}).facts
    assert passing is not None
    plan = plan_service(passing, "IPv4", lambda _: Endpoints(), Place("a"), ())
    assert plan is not None
    content: Content = {name: dict(items) for name, items in CONTENT.items()}
    for name, key, data in (*elements_of(plan, [NO_SLOTS]), *shared_elements_of(plan, [NO_SLOTS])):
        content.setdefault(name, {})[key] = data
    packets = [Packet(at("10.1.0.7"), at("10.96.0.10"), "TCP", port) for port in (80, 81)]

    assert [trace(content, SETTINGS, one).verdict for one in packets] == ["pass", "reject"]


def test_an_address_of_the_node_itself_is_not_judged_from_elsewhere() -> None:
    """FS-1: a socket here has it, such as a cache for names on the address of the cluster's name server."""
    assert traced("10.96.7.7", is_to_host=True).verdict == "pass"
    assert traced("10.96.7.7", is_to_host=True, is_from_host=True).verdict == "drop"


@pytest.mark.parametrize(("everywhere", "source", "verdict"), [
    ("false", "10.1.0.7", "dnat"), ("true", "10.1.0.7", "drop"), ("true", "192.0.2.9", "dnat"),
])  # fmt: skip
def test_source_ranges_on_demand_hold_for_node_ports_and_external_ips(
    everywhere: str, source: str, verdict: str
) -> None:
    """SVN-33."""
    read = make_service(
        type="LoadBalancer",
        externalIPs=["203.0.113.7"],
        loadBalancerSourceRanges=["192.0.2.0/24"],
        ports=[{"name": "http", "port": 80, "nodePort": 30080}],
        meta={"annotations": {"kepd.dev/source-ranges-everywhere": everywhere}},
    ).facts
    assert read is not None
    ends = backends_in(facts) if (facts := make_slice(["10.1.0.1"]).facts) is not None else []
    plan = plan_service(read, "IPv4", lambda _: Endpoints(tuple(ends)), Place("a"), ())
    assert plan is not None
    slots = [slots_of(plan.ports[0], NO_SLOTS)]
    content: Content = {"np_addrs": {at("192.168.0.10").packed: None}}
    for name, key, data in (*elements_of(plan, slots), *shared_elements_of(plan, slots)):
        content.setdefault(name, {})[key] = data
    packets = [
        Packet(at(source), at("203.0.113.7"), "TCP", 80),
        Packet(at(source), at("192.168.0.10"), "TCP", 30080, is_to_host=True),
    ]

    assert [trace(content, SETTINGS, one).verdict for one in packets] == [verdict] * 2

# SPDX-License-Identifier: Apache-2.0
"""SVN-50 to SVN-52: which addresses from outside a Service gets, and what is said of the others."""

from collections.abc import Mapping
from typing import Any

import pytest

from agent.model.services.service import ServiceKey
from agent.services.objects.addresses import read_range
from agent.services.objects.node_state import NodeSettings, NodeSight, family_facts
from agent.services.routes.desired import Desired
from tests.services.making import make_service

RESERVED = {bytes([9, 9, 9, 9]): "a name server of this node", bytes([203, 0, 113, 6]): "the API server's address"}
SETTINGS: Mapping[str, Any] = {
    "node": "here",
    "addresses": ("192.0.2.10",),
    "service_ranges": ("10.96.0.0/16",),
    "cluster_ranges": ("10.244.0.0/16",),
}
WEB = ServiceKey("shop", "web")


def desired_with(**settings: Any) -> Desired:
    facts = family_facts("IPv4", NodeSettings(**SETTINGS | settings), NodeSight(), [], reserved=RESERVED)
    return Desired("IPv4", facts.node)


def ways(desired: Desired, key: ServiceKey = WEB) -> set[str]:
    plan = desired.plan_of(key)
    assert plan is not None
    return {f"{one.kind} {one.ip.text}" for port in plan.ports for one in port.frontends if one.ip is not None}


def told(desired: Desired, key: ServiceKey = WEB) -> list[str]:
    return [f"{one.path}: {one.text}" for one in desired.outside.findings.get(key, ())]


ANY: Mapping[str, Any] = {}
DENY: Mapping[str, Any] = {"external_ips": ()}
SOME: Mapping[str, Any] = {"external_ips": ("203.0.113.0/24", "198.51.100.7/32")}
HERE: Mapping[str, Any] = {"external_ips": ("192.0.2.0/24", "9.0.0.0/8")}

MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
SIGHT = NodeSight(is_known=True, pod_ranges=tuple(filter(None, map(read_range, ("10.250.1.0/24", "fd00:2::/64")))))
CASES = [
    (ANY, "203.0.113.7", ""),
    (ANY, "192.0.2.10", "is an address of this node, which only a list in services.externalIPs that has it allows"),
    (ANY, "10.96.0.53", "is in 10.96.0.0/16, the network of Services"),
    (ANY, "10.244.3.4", "is in 10.244.0.0/16, the network of pods"),
    (ANY, "9.9.9.9", "is a name server of this node"),
    (ANY, "203.0.113.6", "is the API server's address"),
    (DENY, "203.0.113.7", "is refused: services.externalIPs allows none"),
    (SOME, "203.0.113.7", ""),
    (SOME, "198.51.100.7", ""),
    (SOME, "198.51.100.8", "is outside of services.externalIPs, 203.0.113.0/24, 198.51.100.7/32"),
    (SOME, "203.0.113.6", "is the API server's address"),
    (SOME, "192.0.2.10", "is outside of services.externalIPs, 203.0.113.0/24, 198.51.100.7/32"),
    (HERE, "192.0.2.10", ""),
    (HERE, "9.9.9.9", "is a name server of this node"),
]


@pytest.mark.parametrize(
    ("settings", "ip", "why"), CASES, ids=[f"{row[1]}-{number}" for number, row in enumerate(CASES)]
)
def test_each_class_of_address(settings: Mapping[str, Any], ip: str, why: str) -> None:
    """SVN-50, SVN-51: the cluster IP stays in every case."""
    desired = desired_with(**settings)
    desired.fold.put_service(make_service("web", externalIPs=[ip]))
    desired.update()

    assert ways(desired) == {"clusterIP 10.96.0.10"} | (set() if why else {f"externalIP {ip}"})
    assert told(desired) == ([f"spec.externalIPs: {ip} {why}; it is left out"] if why else [])


@pytest.mark.parametrize("ip", ["127.0.0.1", "169.254.1.1", "224.0.0.5", "0.0.0.0"])
def test_what_nobody_can_reach_is_refused_by_any_setting(ip: str) -> None:
    """SVN-51: already where it is read."""
    read = make_service("web", externalIPs=[ip])

    assert read.facts is not None
    assert read.facts.v4 is not None
    assert read.facts.v4.external_ips == ()
    assert "it is left out" in read.findings[0].text


def balanced(ip: str) -> Any:
    return make_service("web", type="LoadBalancer", status={"loadBalancer": {"ingress": [{"ip": ip}]}})


def test_addresses_of_balancers_have_limits_of_their_own() -> None:
    """SVN-50."""
    desired = desired_with(external_ips=(), balancer_ips=("203.0.113.0/24",))
    desired.fold.put_service(balanced("203.0.113.7"))
    desired.update()
    had = ways(desired)
    desired.fold.put_service(balanced("198.51.100.7"))
    desired.update()

    assert had == {"clusterIP 10.96.0.10", "loadBalancer 203.0.113.7"}
    assert ways(desired) == {"clusterIP 10.96.0.10"}
    (text,) = told(desired)
    assert text.startswith("status.loadBalancer.ingress: 198.51.100.7 is outside of services.balancerIPs")


def test_the_profile_of_kube_proxy_keeps_what_it_does_and_warns() -> None:
    """SVN-51."""
    desired = desired_with(only_warns_of_ips=True)
    desired.fold.put_service(make_service("web", externalIPs=["9.9.9.9"]))
    desired.update()

    assert ways(desired) == {"clusterIP 10.96.0.10", "externalIP 9.9.9.9"}
    assert told(desired) == [
        "spec.externalIPs: 9.9.9.9 is a name server of this node; services.profile kube-proxy lets it be taken"
    ]
    strict = desired_with(only_warns_of_ips=True, external_ips=())
    strict.fold.put_service(make_service("web", externalIPs=["9.9.9.9"]))
    strict.update()
    assert ways(strict) == {"clusterIP 10.96.0.10"}


def test_another_service_s_cluster_ip_cannot_be_taken_whoever_comes_first() -> None:
    """SVN-52: on no port, and only while the other has it."""
    thief, owner = ServiceKey("shop", "thief"), make_service("owner", ip="172.16.0.9")
    desired = desired_with()
    desired.fold.put_service(make_service("thief", externalIPs=["172.16.0.9"], ports=[{"port": 81}]))
    desired.update()
    before = ways(desired, thief)
    desired.fold.put_service(owner)
    desired.update()
    during, words = ways(desired, thief), told(desired, thief)
    desired.fold.drop_service(owner.key)
    desired.update()

    assert before == ways(desired, thief) == {"clusterIP 10.96.0.10", "externalIP 172.16.0.9"}
    assert during == {"clusterIP 10.96.0.10"}
    assert words == ["spec.externalIPs: 172.16.0.9 is the cluster IP of shop/owner; it is left out"]
    assert told(desired, thief) == []


def test_other_limits_concern_those_services_alone_that_have_such_addresses() -> None:
    """SVN-52: a reload."""
    desired = desired_with()
    desired.fold.put_service(make_service("web", externalIPs=["203.0.113.7"]))
    desired.fold.put_service(make_service("plain", ip="10.96.0.11"))
    desired.update()
    desired.set_node(desired_with(external_ips=()).node)

    assert desired.changed == {WEB}
    desired.update()
    assert ways(desired) == {"clusterIP 10.96.0.10"}
    desired.fold.drop_service(WEB)
    desired.update()
    assert list(desired.outside.services) == []
    assert desired.outside.findings == {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ip", ["10.244.3.4", "10.245.3.4", "10.250.1.9"])
def test_no_mode_of_telling_pods_lets_a_service_take_a_pods_address(mode: str, ip: str) -> None:
    """SVN-51: in any network that the settings or this Node name."""
    settings = NodeSettings(
        **{**SETTINGS, "cluster_ranges": ("10.244.0.0/16", "10.245.0.0/16")}, detect_mode=mode, interface="cni0"
    )
    desired = Desired("IPv4", family_facts("IPv4", settings, SIGHT, []).node)
    desired.fold.put_service(make_service(externalIPs=[ip]))
    desired.update()

    assert ways(desired) == {"clusterIP 10.96.0.10"}
    assert "the network of pods" in told(desired)[0]


def test_a_node_of_one_family_lacks_nothing_of_the_other() -> None:
    """Each start warned of IPv6 in a cluster that has none."""
    settings = NodeSettings(node="here", addresses=("192.0.2.10",), detect_mode="NodeCIDR")
    missing = {family: family_facts(family, settings, NodeSight(), []).findings for family in ("IPv4", "IPv6")}

    assert (bool(missing["IPv4"]), missing["IPv6"]) == (True, ())

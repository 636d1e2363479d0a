# SPDX-License-Identifier: Apache-2.0
"""What is read from Services, slices and Nodes, and what is left out of them."""

from typing import Any

import msgspec
import pytest

from agent.model.kube_objects import EndpointSlice, NodeObject
from agent.model.services.service import PortKey, ServiceKey, SliceFacts
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.node_state import NodeSettings, NodeSight, family_facts, node_sight
from agent.services.objects.reading_slice import read_slice
from agent.services.routes.desired import Desired
from agent.services.routes.selection import Place, is_local, merge
from tests.services.making import backends_in, make_service, make_slice

KEY = ServiceKey("shop", "web")
HTTP = PortKey("http", "TCP")


def facts_of(**spec: Any) -> Any:
    return make_service(**spec).facts


def slice_facts(addresses: list[Any], **fields: Any) -> SliceFacts:
    facts = make_slice(addresses, **fields).facts
    assert facts is not None
    return facts


def backends(addresses: list[Any], **fields: Any) -> list[Any]:
    return list(backends_in(slice_facts(addresses, **fields)))


@pytest.mark.parametrize("spec", [{"ip": "None"}, {"type": "ExternalName", "externalName": "a.example"}])
def test_services_without_an_address_of_their_own_are_no_ones_business(spec: dict[str, Any]) -> None:
    """IN-2: an ExternalName may still carry the address it had before."""
    read = make_service(**spec)

    assert (read.facts, read.findings) == (None, ())


@pytest.mark.parametrize("count", [2, 300])
def test_on_a_node_without_a_cluster_an_endpoint_without_a_node_is_here(count: int) -> None:
    """TY-8, IN-9: it may ask its own Service, and policies Local find it."""
    addresses = [f"10.1.{number >> 8}.{number & 255}" for number in range(1, count + 1)]
    found = {}
    for is_alone in (True, False):
        settings = NodeSettings(node="here", addresses=("192.168.0.10",), is_alone=is_alone)
        desired = Desired("IPv4", family_facts("IPv4", settings, NodeSight(), []).node)
        desired.fold.put_service(make_service(internalTrafficPolicy="Local"))
        desired.fold.put_slice(make_slice([*addresses, {"ip": "10.9.0.1", "nodeName": "there"}]))
        (plan,) = desired.update().values()
        assert plan is not None
        found[is_alone] = len(plan.ports[0].local), len(plan.ports[0].selection.local or ())

    assert found == {True: (count, count), False: (0, 0)}


def test_each_family_has_the_address_that_stands_at_its_place() -> None:
    """IN-3: and no frontends in a family without one."""
    both = facts_of(clusterIPs=["fd00::1", "10.96.0.1"], ipFamilies=["IPv6", "IPv4"], ip="fd00::1")
    one = facts_of(ip="10.96.0.1", externalIPs=["fd00::7", "192.0.2.7"])

    assert (both.v4.cluster_ip.text, both.v6.cluster_ip.text) == ("10.96.0.1", "fd00::1")
    assert one.v6 is None
    assert [ip.text for ip in one.v4.external_ips] == ["192.0.2.7"]


@pytest.mark.parametrize("labels", [{}, {"kubernetes.io/service-name": ""}])
def test_a_slice_without_its_service_is_left_out_with_one_line(labels: dict[str, str]) -> None:
    """IN-5."""
    given = {"metadata": {"name": "x", "namespace": "shop", "labels": labels}, "addressType": "IPv4", "endpoints": []}
    read = read_slice(msgspec.convert(given, EndpointSlice))

    assert (read.facts, len(read.findings)) == (None, 1)


def test_a_slice_counts_in_its_namespace_and_family_alone() -> None:
    """IN-5: names are never addresses."""
    fold = ServiceIndex()
    fold.put_slice(make_slice(["10.1.0.1"]))
    fold.put_slice(make_slice(["10.1.0.2"], namespace="other"))
    names = make_slice(["pod.example"], family="FQDN", name="names")

    assert [one.address for one in fold.backends(KEY, "IPv4", HTTP)] == ["10.1.0.1"]
    assert fold.backends(KEY, "IPv6", HTTP) == ()
    assert names.facts is None


def test_ports_without_name_or_number_do_not_count() -> None:
    """IN-6: neither stands for all ports."""
    ports = [{"port": 1}, {"name": "a"}, {"name": "b", "port": 0}, {"name": "c", "port": 8080, "protocol": "UDP"}]

    assert [key for key, _ in slice_facts(["10.1.0.1"], ports=ports).ports] == [PortKey("c", "UDP")]


def test_the_first_address_of_an_endpoint_is_the_one_that_counts() -> None:
    """IN-7."""
    given = {
        "metadata": {"name": "x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "endpoints": [{"addresses": []}, {"addresses": ["10.1.0.2", "10.1.0.3"]}],
    }
    read = read_slice(msgspec.convert(given, EndpointSlice))
    assert read.facts is not None

    assert [one.key for one in backends_in(read.facts)] == ["10.1.0.2:80"]


def test_an_endpoint_is_local_by_its_node_name_alone() -> None:
    """IN-9: byte by byte, whatever its zone."""
    here = Place("node-a", "z1")
    given = [{"ip": "10.1.0.1", "nodeName": "node-a"}, {"ip": "10.1.0.2", "nodeName": "NODE-A", "zone": "z1"}]
    given.append({"ip": "10.1.0.3", "zone": "z1"})

    assert [is_local(one, here) for one in backends(given)] == [True, False, False]
    assert not is_local(backends([{"ip": "10.1.0.1", "nodeName": ""}])[0], Place("", ""))


def test_hints_that_are_empty_are_none() -> None:
    """IN-10."""
    zoned = {"forZones": [{"name": "z2"}, {"name": "z1"}, {"name": "z2"}], "forNodes": [{"name": "n"}]}
    given = [{"ip": "10.1.0.1", "hints": zoned}, {"ip": "10.1.0.2", "hints": {"forZones": []}}, {"ip": "10.1.0.3"}]

    assert [(set(one.zones), set(one.nodes)) for one in backends(given)] == [
        ({"z1", "z2"}, {"n"}),
        (set(), set()),
        (set(), set()),
    ]


def test_who_is_there_twice_counts_once_and_whoever_leaves_does_not_displace() -> None:
    """IN-11: sorted as text, in brackets for IPv6, the last slice by name among equals."""
    leaving = {"ready": False, "serving": True, "terminating": True}
    first = backends([{"ip": "10.1.0.9", "nodeName": "a"}, "10.1.0.10"])
    second = backends([{"ip": "10.1.0.9", "nodeName": "b"}, {"ip": "10.1.0.10", "conditions": leaving}])
    merged = merge([first, second])

    assert [(one.key, one.node, one.is_ready) for one in merged] == [
        ("10.1.0.10:8080", "", True),
        ("10.1.0.9:8080", "b", True),
    ]
    assert [one.key for one in backends(["FD00::A"])] == ["[fd00::a]:8080"]


def test_source_ranges_that_cannot_be_read_leave_the_port_open_unless_it_shall_be_strict() -> None:
    """IN-14: blanks are trimmed, and everybody is everybody."""
    balancer = {"type": "LoadBalancer", "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}}
    some = facts_of(**balancer, loadBalancerSourceRanges=[" 10.0.0.0/8 ", "fd00::/8"])
    everybody = facts_of(**balancer, loadBalancerSourceRanges=["10.0.0.0/8", "0.0.0.0/0"])
    garbage = make_service(**balancer, loadBalancerSourceRanges=["x"])
    external = make_service(externalIPs=["", "x", "192.0.2.9"])

    assert [one.text for one in some.v4.source_ranges] == ["10.0.0.0/8"]
    assert everybody.v4.source_ranges == ()
    assert garbage.facts is not None
    assert garbage.facts.v4 is not None
    assert (garbage.facts.v4.source_ranges, garbage.facts.v4.is_closed) == ((), False)
    assert any("open" in str(one) for one in garbage.findings)
    assert len(external.findings) == 1


BAD = ["", "10.1.0.256", "fd00::1", "127.0.0.1", "169.254.1.1", "224.0.0.1", "0.0.0.0"]


def test_addresses_that_nobody_can_have_are_left_out_and_told() -> None:
    """IN-15."""
    read = make_slice([*BAD, "10.1.0.1"], family="IPv4")
    assert read.facts is not None

    assert [one.address for one in backends_in(read.facts)] == ["10.1.0.1"]
    assert str(read.findings[-1]).endswith("2 more like these")


NODE = {
    "metadata": {"name": "a"},
    "status": {
        "addresses": [
            {"type": "ExternalIP", "address": "198.51.100.1"},
            {"type": "Hostname", "address": "a"},
            {"type": "InternalIP", "address": "fd00::1"},
            {"type": "InternalIP", "address": "192.168.0.1"},
            {"type": "InternalIP", "address": "192.168.0.2"},
        ]
    },
}


def test_a_node_is_known_by_its_first_internal_address_unless_told_otherwise() -> None:
    """IN-17."""
    sight = node_sight(msgspec.convert(NODE, NodeObject))

    def primary(family: Any, *given: str) -> list[str]:
        found = family_facts(family, NodeSettings(node="a", addresses=given), sight, ())
        return [one.text for one in found.node.addresses]

    assert [one.text for one in sight.addresses] == ["fd00::1", "192.168.0.1", "192.168.0.2", "198.51.100.1"]
    assert (primary("IPv4"), primary("IPv6")) == (["192.168.0.1"], ["fd00::1"])
    assert (primary("IPv4", "10.9.0.1"), primary("IPv6", "10.9.0.1")) == (["10.9.0.1"], ["fd00::1"])


def test_networks_of_services_are_those_of_all_objects_together() -> None:
    """SY-11: what lies within another is no second one."""
    ranges = ("10.96.0.0/16", "10.96.1.0/24", "fd00::/108")
    found = family_facts("IPv4", NodeSettings(), node_sight(msgspec.convert(NODE, NodeObject)), (), ranges)

    assert [(one.first, one.last) for one in found.node.service_ranges] == [
        (bytes([10, 96, 0, 0]), bytes([10, 96, 255, 255]))
    ]

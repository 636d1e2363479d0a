# SPDX-License-Identifier: Apache-2.0
"""Which UDP flows are stale."""

from agent.model.services.flow import Flow
from agent.model.services.service import ServiceKey
from agent.services.objects.addresses import read_address
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.selection import Place
from agent.services.routes.stale_flows import FlowIndex, serving_endpoints
from tests.services.making import make_service, make_slice

WEB = ServiceKey("shop", "web")
DNS = [{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}]
NODE = "192.168.0.10"


def packed(text: str) -> bytes:
    address = read_address(text)
    assert address is not None
    return address.packed


def flow(to: str, port: int, answerer: str, answer_port: int = 8053, protocol: str = "UDP") -> Flow:
    return Flow("IPv4", protocol, packed("10.1.9.9"), 4711, packed(to), port, packed(answerer), answer_port)  # type: ignore[arg-type]


class Bench:
    """One family's plans and its index."""

    def __init__(self) -> None:
        self.desired = Desired("IPv4", NodeFacts(Place("node-a")))
        self.index = FlowIndex()

    def put(self, *endpoints: object, **spec: object) -> bool:
        self.desired.fold.put_service(make_service(type="NodePort", ports=DNS, **spec))
        ports = [{"name": "dns", "protocol": "UDP", "port": 8053}]
        self.desired.fold.put_slice(make_slice(list(endpoints), ports=ports, family="IPv4"))  # type: ignore[arg-type]
        return self.index.follow(self.desired.update())

    def stale(self, *flows: Flow) -> list[Flow]:
        expected = {}
        for target, owner in self.index.owners(self.index.take(), {packed(NODE)}).items():
            found = self.desired.fold.backends(owner.service, "IPv4", owner.port) if owner is not None else ()
            expected[target] = serving_endpoints(found)
        return [one for one in flows if one.is_answered_by_others(expected)]


def test_a_flow_to_an_endpoint_that_left_is_stale_and_one_to_a_serving_endpoint_is_not() -> None:
    """CT-3: also one that terminates but serves, whatever the policies say."""
    bench = Bench()
    leaving = {"ip": "10.1.0.2", "conditions": {"ready": False, "serving": True, "terminating": True}}
    bench.put("10.1.0.1", leaving, internalTrafficPolicy="Local")
    gone = flow("10.96.0.10", 53, "10.1.0.3")

    assert bench.stale(flow("10.96.0.10", 53, "10.1.0.1"), flow("10.96.0.10", 53, "10.1.0.2"), gone) == [gone]


def test_a_flow_from_before_the_rules_is_stale() -> None:
    bench = Bench()
    bench.put("10.1.0.1")
    early = flow("10.96.0.10", 53, "10.96.0.10", 53)

    assert bench.stale(early) == [early]


def test_a_port_without_endpoints_has_no_flows() -> None:
    """CT-4: kube-proxy leaves these for ever."""
    bench = Bench()
    bench.put()
    left = flow("10.96.0.10", 53, "10.1.0.1")

    assert bench.stale(left) == [left]


def test_a_deleted_service_has_no_flows_until_somebody_else_has_its_address() -> None:
    """CT-4."""
    bench = Bench()
    bench.put("10.1.0.1")
    bench.desired.fold.drop_service(WEB)
    assert bench.index.follow(bench.desired.update())
    left = flow("10.96.0.10", 53, "10.1.0.1")
    assert bench.stale(left) == [left]

    assert bench.stale(left) == []


def test_flows_to_a_service_that_went_while_kepd_was_away_are_stale() -> None:
    """FS-6: nothing but its ways in is known of it, from what an earlier process left."""
    bench = Bench()
    left = [(packed("10.96.0.77"), "UDP", 53), (packed("10.96.0.78"), "TCP", 80)]
    is_concerned = bench.index.follow({}, left)
    flows = [flow("10.96.0.77", 53, "10.1.0.1"), flow("10.96.0.78", 80, "10.1.0.1", protocol="TCP")]

    assert is_concerned
    assert bench.stale(*flows) == flows[:1]


def test_a_node_port_counts_on_this_nodes_addresses_alone() -> None:
    """CT-5."""
    bench = Bench()
    bench.put("10.1.0.1")
    own, foreign = flow(NODE, 30053, "10.1.0.9"), flow("8.8.8.8", 30053, "10.1.0.9")

    assert bench.stale(own, foreign) == [own]


def test_only_flows_to_services_that_changed_are_looked_at() -> None:
    """FS-16: once, and again after it failed."""
    bench = Bench()
    bench.put("10.1.0.1")
    bench.index.take()
    changed = bench.desired.fold
    changed.put_service(make_service("other", ip="10.96.0.11", ports=[{"name": "dns", "protocol": "UDP", "port": 53}]))
    bench.index.follow(bench.desired.update())
    check = bench.index.take()
    bench.index.give_back(check)

    assert [one.address for one in bench.index.owners(check, {packed(NODE)})] == [packed("10.96.0.11")]
    assert bench.index.take() == check
    assert not bench.index.is_due
    assert bench.index.follow({}, (), [WEB])
    assert bench.index.take().services == {WEB}


def test_an_external_ip_of_this_node_comes_before_a_node_port() -> None:
    """CT-5: the flow goes to another Service, of which nothing changed."""
    bench = Bench()
    bench.desired.fold.put_service(
        make_service(
            "outer", ip="10.96.0.12", externalIPs=[NODE], ports=[{"name": "x", "protocol": "UDP", "port": 30053}]
        )
    )
    bench.put("10.1.0.1")
    bench.index.take()
    bench.index.follow({}, (), [WEB])

    assert bench.stale(flow(NODE, 30053, "10.1.0.9")) == []


def test_services_without_udp_cause_no_look_at_flows() -> None:
    bench = Bench()
    bench.desired.fold.put_service(make_service())

    assert not bench.index.follow(bench.desired.update())
    assert bench.put("10.1.0.1")

# SPDX-License-Identifier: Apache-2.0
"""Which UDP flows are stale."""

from agent.model.flow import Flow
from agent.model.service import PortKey, ServiceKey
from agent.services.objects.addresses import read_address
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.selection import Place
from agent.services.routes.stale_flows import FlowIndex
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
        def backends(key: ServiceKey, port: PortKey):
            return self.desired.fold.backends(key, "IPv4", port)

        return self.index.stale(flows, backends, {packed(NODE)})


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

    bench.index.forget_gone(bench.index.gone)
    assert bench.stale(left) == []


def test_flows_to_a_service_that_went_while_kepd_was_away_are_stale() -> None:
    """FS-6: nothing but its ways in is known of it, from what an earlier process left."""
    bench = Bench()
    left = [(packed("10.96.0.77"), "UDP", 53), (packed("10.96.0.78"), "TCP", 80)]
    is_concerned = bench.index.follow({}, left)
    flows = [flow("10.96.0.77", 53, "10.1.0.1"), flow("10.96.0.78", 80, "10.1.0.1", protocol="TCP")]

    assert is_concerned
    assert bench.index.stale(flows, lambda _key, _port: (), ()) == flows[:1]


def test_a_node_port_counts_on_this_nodes_addresses_alone() -> None:
    """CT-5."""
    bench = Bench()
    bench.put("10.1.0.1")
    own, foreign = flow(NODE, 30053, "10.1.0.9"), flow("8.8.8.8", 30053, "10.1.0.9")

    assert bench.stale(own, foreign) == [own]


def test_services_without_udp_cause_no_look_at_flows() -> None:
    bench = Bench()
    bench.desired.fold.put_service(make_service())

    assert not bench.index.follow(bench.desired.update())
    assert bench.put("10.1.0.1")

# SPDX-License-Identifier: Apache-2.0
"""When connections to endpoints that are gone may be ended, and which."""

import pytest

from agent.model.services.flow import Flow
from agent.model.services.service import NEVER, PortKey, ServiceKey
from agent.services.objects.addresses import read_address
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.selection import Place
from agent.services.routes.stale_flows import GoneEndpoints
from tests.services.making import make_service, make_slice

WEB = ServiceKey("shop", "web")
NOTE = "kepd.dev/terminate-established"
IPS = {"IPv4": "10.96.0.10", "IPv6": "fd00:96::10"}
PODS = {"IPv4": ("10.1.0.1", "10.1.0.2", "10.1.0.3"), "IPv6": ("fd00:1::1", "fd00:1::2", "fd00:1::3")}


def packed(text: str) -> bytes:
    address = read_address(text)
    assert address is not None
    return address.packed


@pytest.fixture(params=["IPv4", "IPv6"])
def bench(request: pytest.FixtureRequest) -> "Bench":
    return Bench(request.param)


class Bench:
    """One family's plans, and what is watched of them; time is a number."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.ip, self.pods = IPS[family], PODS[family]
        self.desired = Desired(family, NodeFacts(Place("node-a")))  # type: ignore[arg-type]
        self.gone = GoneEndpoints()
        self.default_s = NEVER

    def put(self, now_s: float, *endpoints: object, note: str | None = "on-endpoint-removal", **spec: object) -> None:
        meta = {"annotations": {NOTE: note}} if note is not None else {}
        self.desired.fold.put_service(make_service(ip=self.ip, meta=meta, **spec))
        self.desired.fold.put_slice(make_slice(list(endpoints), family=self.family))  # type: ignore[arg-type]
        self.look(now_s)

    def look(self, now_s: float) -> None:
        for key in {*self.desired.update(), *self.desired.looked}:
            self.gone.look(key, self.desired.plan_of(key), self.default_s, self._endpoints(key), now_s)

    def _endpoints(self, key: ServiceKey):
        def found(port: PortKey) -> frozenset[bytes]:
            return frozenset(one.data[:-2] for one in self.desired.fold.backends(key, self.family, port))  # type: ignore[arg-type]

        return found

    def flow(self, pod: str, to: str = "", *, is_over: bool = False) -> Flow:
        target, port = packed(to or self.ip), 80
        client = packed(self.pods[0])
        return Flow(self.family, "TCP", client, 4711, target, port, packed(pod), 8080, is_over=is_over)  # type: ignore[arg-type]

    def ended(self, now_s: float, *flows: Flow) -> list[Flow]:
        found = []
        for check in self.gone.take(now_s):
            expected = dict.fromkeys(check.targets, check.kept)
            for one in flows:
                if one.is_answered_by_others(expected) and self.gone.may_end(one, check):
                    found.append(one)
        return found


def test_only_what_left_all_slices_is_ended(bench: Bench) -> None:
    """SVN-1: not ready, terminating or passed over for a hint, it keeps its connections."""
    first, second, third = bench.pods
    bench.put(0.0, first, second, third)
    bench.ended(0.0)
    leaving = {"ip": second, "conditions": {"ready": False, "serving": False, "terminating": True}}
    bench.put(1.0, first, leaving)
    flows = [bench.flow(one) for one in bench.pods]

    assert bench.ended(1.0, *flows) == flows[2:]


def test_without_the_annotation_nothing_is_ended_unless_the_node_says_so(bench: Bench) -> None:
    """SVN-1."""
    bench.put(0.0, *bench.pods[:2], note=None)
    bench.put(1.0, bench.pods[0], note=None)
    flow = bench.flow(bench.pods[1])
    assert bench.gone.due_s == float("inf")
    assert bench.ended(9.0, flow) == []

    bench.default_s = 0
    bench.desired.changed.add(WEB)
    bench.look(2.0)
    assert bench.ended(2.0, flow) == [flow]

    bench.put(3.0, *bench.pods[:2], note="never")
    bench.put(4.0, bench.pods[0], note="never")
    assert bench.ended(9.0, flow) == []


def test_each_endpoint_has_its_time_and_may_come_back_in_it(bench: Bench) -> None:
    """SVN-1, SVN-6: who takes the address over has the connections."""
    first, second, third = bench.pods
    note = "on-endpoint-removal,30s"
    bench.put(0.0, first, second, third, note=note)
    bench.put(100.0, first, second, note=note)
    bench.put(110.0, first, note=note)
    flows = [bench.flow(second), bench.flow(third)]
    assert bench.ended(129.0, *flows) == []
    assert bench.ended(130.0, *flows) == flows[1:]
    bench.put(131.0, first, second, note=note)

    assert bench.ended(200.0, *flows) == flows[1:]


def test_at_the_start_what_nobody_knows_is_left_for_the_whole_time(bench: Bench) -> None:
    """SVN-5."""
    bench.put(0.0, bench.pods[0], note="on-endpoint-removal,30s")
    flow = bench.flow(bench.pods[1])

    assert bench.ended(29.0, flow) == []
    assert bench.gone.due_s == 30.0
    assert bench.ended(30.0, flow) == [flow]
    assert bench.gone.due_s == float("inf")


def test_a_service_that_goes_leaves_its_connections(bench: Bench) -> None:
    """SVN-5: nothing would answer them with a reset, and the endpoint may live."""
    bench.put(0.0, *bench.pods[:2])
    bench.ended(0.0)
    bench.put(1.0, bench.pods[0], note="on-endpoint-removal,5s")
    bench.desired.fold.drop_service(WEB)
    bench.look(2.0)

    assert bench.ended(20.0, bench.flow(bench.pods[0]), bench.flow(bench.pods[1])) == []
    assert bench.gone.due_s == float("inf")


def test_closed_and_untranslated_connections_are_left_alone(bench: Bench) -> None:
    """SVN-2: what answers itself began before there was a Service."""
    bench.put(0.0, bench.pods[0])
    over = bench.flow(bench.pods[1], is_over=True)
    itself = Flow(bench.family, "TCP", b"", 1, packed(bench.ip), 80, packed(bench.ip), 80)  # type: ignore[arg-type]

    assert bench.ended(0.0, over, itself) == []


def test_a_round_that_failed_is_tried_again(bench: Bench) -> None:
    bench.put(0.0, *bench.pods[:2])
    bench.ended(0.0)
    bench.put(1.0, bench.pods[0])
    for check in bench.gone.take(1.0):
        bench.gone.give_back(check, 2.0)
    flow = bench.flow(bench.pods[1])

    assert bench.ended(1.5, flow) == []
    assert bench.ended(2.0, flow) == [flow]


def test_an_endpoint_that_comes_while_connections_are_listed_keeps_them(bench: Bench) -> None:
    """SVN-6."""
    bench.put(0.0, *bench.pods[:2])
    bench.ended(0.0)
    bench.put(1.0, bench.pods[0])
    (check,) = bench.gone.take(1.0)
    bench.put(1.0, *bench.pods[:2])

    assert not bench.gone.may_end(bench.flow(bench.pods[1]), check)

# SPDX-License-Identifier: Apache-2.0
"""The mirror: batches that lead exactly from what is programmed to what should be."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.services.nft_table import Batch, ChainBody, Content, TableSettings, TableState
from agent.model.services.service import ServiceKey
from agent.services.nftables.elements import Rows, Slots, differing, reslot, rows_of
from agent.services.nftables.mirror import Mirror
from agent.services.nftables.trace import Packet, trace
from agent.services.objects.addresses import read_address
from agent.services.routes.desired import Desired, NodeFacts
from agent.services.routes.frontends import ServicePlan
from agent.services.routes.selection import Place
from tests.services.making import make_service, make_slice

WEB = ServiceKey("shop", "web")


class Kernel:
    """Refuses what a kernel refuses: a second value for a key, the deletion of nothing, a jump to nowhere."""

    def __init__(self) -> None:
        self.content: Content = {}
        self.chains = {"rj", "x_cluster", "x_local", "n_cluster", "n_local", "fw_cluster", "fw_local", "fw_rj"}

    def apply(self, batch: Batch) -> None:
        self.chains |= {one.name for one in batch.chains}
        for name, keys in batch.deletes.items():
            for key in keys:
                del self.content[name][key]
        for name, items in batch.adds.items():
            for key, data in items:
                assert self.content.setdefault(name, {}).setdefault(key, data) == data
                assert not isinstance(data, str) or data == "" or data in self.chains

    def state(self) -> TableState:
        content = {name: dict(items) for name, items in self.content.items()}
        return TableState("", dict.fromkeys(self.chains, ChainBody()), content)

    def full(self) -> Content:
        return {name: items for name, items in self.content.items() if items}


def make() -> tuple[Desired, Mirror, Kernel]:
    node = NodeFacts(Place("node-a", "z1"), maglevs=2)
    return Desired("IPv4", node), Mirror(), Kernel()


def sync(desired: Desired, mirror: Mirror, kernel: Kernel) -> Batch:
    staged = mirror.stage(desired.update())
    kernel.apply(staged.batch)
    mirror.commit(staged)
    return staged.batch


def test_one_endpoint_less_touches_three_endpoint_elements_and_a_verdict() -> None:
    """NF-6: the last slot moves into the free one."""
    desired, mirror, kernel = make()
    desired.fold.put_service(make_service())
    desired.fold.put_slice(make_slice([f"10.1.0.{number}" for number in range(1, 6)]))
    sync(desired, mirror, kernel)

    desired.fold.put_slice(make_slice(["10.1.0.1", "10.1.0.3", "10.1.0.4", "10.1.0.5"]))
    batch = sync(desired, mirror, kernel)

    assert {name: len(keys) for name, keys in batch.deletes.items()} == {"eps": 2, "services": 1}
    assert {name: len(items) for name, items in batch.adds.items()} == {"eps": 1, "services": 1}


def test_a_replaced_endpoint_touches_its_own_element_alone() -> None:
    """NF-7."""
    desired, mirror, kernel = make()
    desired.fold.put_service(make_service())
    desired.fold.put_slice(make_slice(["10.1.0.1", "10.1.0.2", "10.1.0.3"]))
    sync(desired, mirror, kernel)

    desired.fold.put_slice(make_slice(["10.1.0.1", "10.1.0.9", "10.1.0.3"]))
    batch = sync(desired, mirror, kernel)

    assert (batch.size, set(batch.adds), set(batch.deletes)) == (2, {"eps"}, {"eps"})


def test_a_change_that_means_nothing_writes_nothing() -> None:
    """SY-4: an endpoint that is neither ready nor serving comes and goes."""
    desired, mirror, kernel = make()
    desired.fold.put_service(make_service())
    desired.fold.put_slice(make_slice(["10.1.0.1"]))
    sync(desired, mirror, kernel)

    desired.fold.put_slice(make_slice(["10.1.0.1", {"ip": "10.1.0.2", "conditions": {"ready": False}}]))

    assert not sync(desired, mirror, kernel)


def test_one_endpoint_of_a_large_service_has_no_other_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-17: 5 000 endpoints, 5 ports with 4 ways in each: what is rendered is what changed."""
    desired, mirror, kernel = make()
    ports = [{"name": f"p{number}", "port": 80 + number, "nodePort": 30080 + number} for number in range(5)]
    own = [{"name": f"p{number}", "port": 8080 + number} for number in range(5)]
    ways = {"externalIPs": ["203.0.113.7"], "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.8"}]}}}
    desired.fold.put_service(make_service(type="LoadBalancer", ports=ports, **ways))

    def put(part: int, first: str) -> None:
        addresses = [first, *(f"10.{part}.{number // 250}.{number % 250 + 1}" for number in range(1, 1000))]
        desired.fold.put_slice(make_slice(addresses, name=f"web-{part}", ports=own))

    for part in range(1, 6):
        put(part, f"10.{part}.0.1")
    sync(desired, mirror, kernel)
    rendered = 0

    def counting(plan: ServicePlan, slots: Sequence[Slots], only: Any = None) -> Iterator[Rows]:
        nonlocal rendered
        for name, pairs in rows_of(plan, slots, only):
            rendered += len(pairs)
            yield name, pairs

    monkeypatch.setattr("agent.services.nftables.mirror.rows_of", counting)
    put(3, "10.200.0.1")
    batch = sync(desired, mirror, kernel)

    assert batch.size == 5 * 4 * 2
    assert rendered <= 5 * 4 * 2 * 3
    assert kernel.full() == mirror.content()


@given(
    before=st.lists(st.integers(0, 9), max_size=9),
    wanted=st.lists(st.integers(0, 9), max_size=9),
    repeats=st.booleans(),
)
def test_an_endpoint_that_stays_keeps_its_slot_if_there_is_one(
    before: list[int], wanted: list[int], *, repeats: bool
) -> None:
    """NF-6: those whose slot went take those that others left."""
    if not repeats:
        before, wanted = list(dict.fromkeys(before)), list(dict.fromkeys(wanted))
    had, wants = [bytes([one]) for one in before], [bytes([one]) for one in wanted]
    found = reslot(had, wants)

    assert sorted(found) == sorted(wants)
    assert repeats or all(found[number] == one for number, one in enumerate(had[: len(wants)]) if one in wants)
    changed = differing(Slots(tuple(had)), Slots(found))[0]
    most = max(len(had), len(found))
    assert [*changed] == [
        number for number in range(most) if had[number : number + 1] != list(found[number : number + 1])
    ]


def test_what_is_written_follows_from_the_plan_not_from_the_service_as_it_is_by_then() -> None:
    """FS-25: a Service may change between its plan and its transaction."""
    desired, mirror, kernel = make()
    weights = {"kepd.dev/endpoint-weights": "10.1.0.1=3"}
    desired.fold.put_service(make_service("web", meta={"annotations": weights}))
    desired.fold.put_slice(make_slice([{"ip": "10.1.0.1"}, {"ip": "10.1.0.2"}], service="web"))
    plans = desired.update()
    desired.fold.put_service(make_service("web"))

    kernel.apply(mirror.stage(plans).batch)

    assert sorted(kernel.content["eps"].values()).count(b"\x0a\x01\x00\x01\x1f\x90\x00\x00") == 3


def test_two_ports_share_the_cluster_address_until_the_last_goes() -> None:
    desired, mirror, kernel = make()
    both = [{"name": "a", "port": 80}, {"name": "b", "port": 81}]
    desired.fold.put_service(make_service(ports=both))
    sync(desired, mirror, kernel)
    desired.fold.put_service(make_service(ports=both[:1]))
    sync(desired, mirror, kernel)
    assert len(kernel.content["cluster_ips"]) == 1

    desired.fold.drop_service(WEB)
    sync(desired, mirror, kernel)

    assert kernel.full() == {}


def test_a_restart_finds_the_slots_it_left_and_writes_nothing() -> None:
    """NF-9, SY-10."""
    desired, mirror, kernel = make()
    desired.fold.put_service(make_service(type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    ports = [{"name": "", "port": 8080}]
    desired.fold.put_slice(make_slice([f"10.1.0.{number}" for number in range(1, 8)], ports=ports))
    sync(desired, mirror, kernel)
    desired.fold.put_slice(make_slice([f"10.1.0.{number}" for number in range(3, 10)], ports=ports))
    sync(desired, mirror, kernel)

    again = Mirror()
    again.adopt(kernel.state())
    fresh = Desired("IPv4", desired.node, desired.fold)
    again.commit(again.stage(fresh.update()))

    assert not again.repair(kernel.state(), constant=frozenset(kernel.chains))


def test_clients_that_come_back_keep_their_number_over_a_restart() -> None:
    """NF-30: else every restart would send them elsewhere."""
    desired, mirror, kernel = make()
    desired.fold.put_service(make_service(sessionAffinity="ClientIP"))
    desired.fold.put_slice(make_slice(["10.1.0.1", "10.1.0.2"]))
    sync(desired, mirror, kernel)
    assert set(kernel.content) >= {"aff_port", "aff_cluster"}
    assert kernel.content["services"].popitem()[1] == "c_2_10800"

    again = Mirror()
    again.commit(again.stage(Desired("IPv4", desired.node, desired.fold).update()))

    assert again.content()["aff_port"] == kernel.content["aff_port"]


def test_what_somebody_else_took_away_comes_back() -> None:
    """NF-64."""
    desired, mirror, kernel = make()
    desired.fold.put_service(make_service())
    desired.fold.put_slice(make_slice(["10.1.0.1", "10.1.0.2"]))
    sync(desired, mirror, kernel)
    before = kernel.state().content
    kernel.content["eps"].clear()
    kernel.content["services"][b"foreign"] = ""

    kernel.apply(mirror.repair(kernel.state()))

    assert kernel.full() == before


ADDRESSES = [f"10.1.0.{number}" for number in range(1, 7)]
CONDITIONS = [{}, {"ready": False}, {"ready": False, "serving": True, "terminating": True}]
endpoints = st.lists(
    st.builds(
        lambda ip, node, conditions: {"ip": ip, "nodeName": node, "conditions": conditions},
        st.sampled_from(ADDRESSES),
        st.sampled_from(["node-a", "node-b"]),
        st.sampled_from(CONDITIONS),
    ),
    max_size=5,
    unique_by=lambda one: one["ip"],
)
HOWS = ("maglev", "maglev,source")
services = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]),
        "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
        "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
        "sessionAffinity": st.sampled_from(["None", "ClientIP"]),
        "externalIPs": st.sampled_from([[], ["198.51.100.7"], ["198.51.100.7", "198.51.100.8"]]),
        "loadBalancerSourceRanges": st.sampled_from([[], ["192.0.2.0/24", "192.0.2.7/32"]]),
        "meta": st.sampled_from([{}, *({"annotations": {"kepd.dev/balance": how}} for how in HOWS)]),
    }
)
NAMES = ["one", "two", "three"]
actions = st.lists(
    st.one_of(
        st.tuples(st.just("service"), st.sampled_from(NAMES), services),
        st.tuples(st.just("slice"), st.sampled_from(NAMES), endpoints),
        st.tuples(st.just("gone"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("sync"), st.none(), st.none()),
        st.tuples(st.just("restart"), st.none(), st.none()),
    ),
    min_size=1,
    max_size=14,
)


def put(desired: Desired, name: str, spec: dict) -> None:
    number = NAMES.index(name) + 1
    ports = [{"name": "http", "port": 80, "nodePort": 30080 if number > 1 else 30081}]
    status = {"loadBalancer": {"ingress": [{"ip": f"203.0.113.{number}"}]}}
    desired.fold.put_service(make_service(name, ip=f"10.96.0.{number}", ports=ports, status=status, **spec))


@given(actions)
@settings(deadline=None)
def test_whatever_happens_the_kernel_ends_with_what_should_be_there(todo: list) -> None:
    """Every batch is one the kernel takes, and what was not committed is planned again."""
    desired, mirror, kernel = make()
    for what, name, value in [*todo, ("sync", None, None)]:
        if what == "service":
            put(desired, name, value)
        elif what == "slice":
            desired.fold.put_slice(make_slice(value, service=name, family="IPv4"))
        elif what == "gone":
            desired.fold.drop_service(ServiceKey("shop", name))
        elif what == "restart":
            mirror = Mirror()
            mirror.adopt(kernel.state())
            desired = Desired("IPv4", desired.node, desired.fold)
            mirror.commit(mirror.stage(desired.update()))
            kernel.apply(mirror.repair(kernel.state()))
        else:
            sync(desired, mirror, kernel)

    assert {name: items for name, items in mirror.content().items() if items} == kernel.full()
    fresh = Mirror()
    fresh.commit(fresh.stage(Desired("IPv4", desired.node, desired.fold).update()))
    assert {name: len(items) for name, items in fresh.content().items()} == {
        name: len(items) for name, items in kernel.full().items()
    }
    for plan in desired.plans():
        assert_packets_go_where_the_plan_says(desired, kernel, plan)


def assert_packets_go_where_the_plan_says(desired: Desired, kernel: Kernel, plan) -> None:
    """STY-52: rules and plan say the same of every frontend."""
    table = TableSettings(family="IPv4", has_node_ports_everywhere=True)
    source, host = read_address("192.0.2.7"), read_address("192.168.0.10")
    assert source is not None
    assert host is not None
    for port in plan.ports:
        for one in port.frontends:
            packet = Packet(source, one.ip or host, one.protocol, one.port, is_to_host=one.ip is None)
            outcome = trace(kernel.content, table, packet)
            outside = (port.selection.local if one.is_local_policy else port.selection.cluster) or ()
            assert outcome.verdict == (one.verdict or "dnat"), (one, outcome)
            assert {address + number.to_bytes(2, "big") for address, number in outcome.targets} == {
                backend.data[:-2] for backend in (outside if not one.verdict else ())
            }
            is_marked = one.snat == "always"
            assert outcome.verdict != "dnat" or outcome.is_masqueraded == is_marked


def test_a_health_port_that_changes_alone_is_followed() -> None:
    """HL-4: without an address of the balancer the plan is the same."""
    desired, _, _ = make()
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    desired.fold.put_service(make_service(healthCheckNodePort=32000, **spec))
    desired.update()
    desired.fold.put_service(make_service(healthCheckNodePort=32001, **spec))
    desired.update()

    assert [one.port for one in desired.health_ports.values()] == [32001]


def test_labels_of_a_node_concern_those_who_choose_by_labels() -> None:
    desired, _, _ = make()
    desired.fold.put_service(make_service())
    keys = {"kepd.dev/topology-keys": "rack,*"}
    desired.fold.put_service(make_service("near", ip="10.96.0.11", meta={"annotations": keys}))
    desired.update()
    desired.looked.clear()
    desired.set_node(NodeFacts(Place("node-a", "z1", {"node-a": {"rack": "r1"}}), maglevs=2))
    desired.update()

    assert desired.looked == {ServiceKey("shop", "near")}

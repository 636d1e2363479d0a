# SPDX-License-Identifier: Apache-2.0
"""Whether there is room for a pod, and what is said where there is none (FP-20)."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from agent.model.pods.pod import PodSpec
from agent.pods.plan.admit import AskedResources, Capacity, HostPort, PodPlaces, asked_by, why_refused, why_unfit
from tests.pods.pods import container, make_pod

GIB = 1 << 30
REASONS = {"cpu": "OutOfcpu", "memory": "OutOfmemory", "pods": "OutOfpods"}
NODE = Capacity(milli_cpus=4000, memory_bytes=8 * GIB, pods=3)
PORTS = "Pod was rejected: Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"


def pod(uid: str, cpu: str = "", memory: str = "", ports: Any = (), **spec: Any) -> PodSpec:
    requests = {name: value for name, value in (("cpu", cpu), ("memory", memory)) if value}
    built = make_pod([container("app", resources={"requests": requests}, ports=list(ports))], **spec)
    return replace(built, uid=uid, name=uid)


def port(number: int, protocol: str = "TCP", address: str = "") -> dict[str, Any]:
    return {"containerPort": 80, "hostPort": number, "protocol": protocol, "hostIP": address}


def places(*pods: PodSpec) -> PodPlaces:
    found = PodPlaces()
    for one in pods:
        found.take(one)
    return found


def refused(new: PodSpec, taken: PodPlaces, had_by: str = "", node: Capacity = NODE) -> str:
    refusal = why_refused(new, had_by or new.uid, taken, node)
    return "" if refusal is None else f"{refusal.reason}: {refusal.message}"


def out_of(resource: str, *figures: int) -> str:
    requested, used, capacity = figures
    text = f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
    return f"{REASONS[resource]}: Pod was rejected: {text}"


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (pod("n", "1"), ""),
        (pod("n", "1001m"), out_of("cpu", 1001, 3000, 4000)),
        (pod("n", memory="2Gi"), ""),
        (pod("n", memory="2049Mi"), out_of("memory", 2049 << 20, 6 * GIB, 8 * GIB)),
        (pod("n", "5", "9Gi"), out_of("cpu", 5000, 3000, 4000)),
        (pod("n"), ""),
    ],
)
def test_requests_are_summed_against_the_capacity_of_the_node(new: PodSpec, text: str) -> None:
    assert refused(new, places(pod("a", "1", "2Gi"), pod("b", "2", "4Gi"))) == text


def test_the_number_of_pods_is_bounded() -> None:
    full = places(pod("a"), pod("b"), pod("c"))

    assert refused(pod("n"), full) == out_of("pods", 1, 3, 3)
    assert refused(pod("c", "1"), full) == "", "it is there already"
    assert refused(pod("n"), full, had_by="a") == "", "it gets the place of its predecessor"


def test_inits_sidecars_overhead_and_limits_count_as_kubernetes_counts_them() -> None:
    def sized(name: str, cpu: str, **fields: Any) -> Any:
        return container(name, resources={"limits" if name == "limited" else "requests": {"cpu": cpu}}, **fields)

    made = make_pod([sized("app", "1"), sized("limited", "500m")], overhead={"cpu": "50m"})
    inits = (sized("side", "200m", restartPolicy="Always"), sized("init", "3"))
    with_inits = replace(made, spec=type(made.spec)(**{
        one: getattr(made.spec, one) for one in made.spec.__struct_fields__ if one != "init_containers"
    }, init_containers=inits))  # fmt: skip

    assert asked_by(made).milli_cpus == 1550
    assert asked_by(with_inits).milli_cpus == 3250


ADDRESSES = ("", "0.0.0.0", "192.0.2.1", "192.0.2.2")


@pytest.mark.parametrize(("mine", "theirs"), list(itertools.product(ADDRESSES, ADDRESSES)))
def test_a_port_is_free_where_no_address_overlaps(mine: str, theirs: str) -> None:
    every = ("", "0.0.0.0")
    overlaps = mine in every or theirs in every or mine == theirs
    taken = places(pod("a", ports=[port(8080, address=theirs)]))

    assert bool(refused(pod("n", ports=[port(8080, address=mine)]), taken)) is overlaps
    for other in (port(8081, address=mine), port(8080, "UDP", mine)):
        assert refused(pod("n", ports=[other]), taken) == ""


def test_the_refusal_names_the_port_and_who_has_it() -> None:
    taken = places(pod("a", ports=[port(8080, address="192.0.2.1")]))

    assert refused(pod("n", ports=[port(8080)]), taken) == f"NodePorts: {PORTS}: TCP 8080 is used by default/a"
    assert refused(pod("n", ports=[port(8080, address="192.0.2.1")]), taken).endswith(
        "TCP 8080 on 192.0.2.1 is used by default/a"
    )


def test_ports_of_the_node_s_own_network_and_of_sidecars_count_those_of_inits_do_not() -> None:
    ports = [{"containerPort": 80, "protocol": "TCP"}]
    listed = make_pod([container("app", ports=ports)], hostNetwork=True)
    assert asked_by(listed).ports == {HostPort("TCP", 80)}
    assert asked_by(make_pod([container("app", ports=ports)])).ports == frozenset()
    inits = [container("init", ports=[port(1)]), container("side", ports=[port(2)], restartPolicy="Always")]
    made = make_pod(["app"], inits)
    assert asked_by(made).ports == {HostPort("TCP", 2)}


def test_what_a_pod_has_it_keeps_on_a_node_that_became_smaller() -> None:
    """Only what it asks for beyond that is refused."""
    small = Capacity(milli_cpus=1000, memory_bytes=GIB, pods=1)
    first, second = pod("a", "2", "2Gi", [port(1)]), pod("b", "2", "2Gi", [port(1)])
    taken = places(first, second)

    assert refused(first, taken, node=small) == refused(second, taken, node=small) == ""
    assert refused(pod("a", "1500m", "1Gi"), taken, node=small) == "", "less of it"
    assert refused(pod("a", "2001m"), taken, node=small).startswith("OutOfcpu")


def test_sums_follow_each_change_and_end_where_they_began() -> None:
    taken = PodPlaces()
    seen = []
    for change in (
        lambda: taken.take(pod("a", "1", "1Gi", [port(1), port(1, "UDP"), port(2)])),
        lambda: taken.take(pod("b", "2", "2Gi", [port(1, address="192.0.2.1")])),
        lambda: taken.take(pod("a", "3", "1Gi", [port(3)])),
        lambda: taken.release("b"),
        lambda: taken.release("b"),
        lambda: taken.release("a"),
    ):
        change()
        seen.append((len(taken), taken.milli_cpus, taken.memory_bytes // GIB))

    assert seen == [(1, 1000, 1), (2, 3000, 3), (2, 5000, 3), (1, 3000, 1), (1, 3000, 1), (0, 0, 0)]
    assert taken.of("a") == AskedResources()
    assert taken.holder(HostPort("TCP", 3), "n") == ""


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"os": {"name": "windows"}}, "PodOSNotSupported"),
        ({"os": {"name": "linux"}}, ""),
        ({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}}, ""),
        ({"securityContext": {"sysctls": [{"name": "net/core/somaxconn", "value": "1"}]}}, ""),
        ({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}}, "SysctlForbidden"),
    ],
)
def test_a_pod_for_another_system_or_with_unsafe_sysctls_is_refused(spec: dict[str, Any], expected: str) -> None:
    found = why_unfit(make_pod(**spec).spec, ["net.core.*"])
    assert (found.reason if found is not None else "") == expected

# SPDX-License-Identifier: Apache-2.0
"""EndpointSlices through changes: hints that stay, hints that come and go, endpoints that no pod stands for."""

from typing import Any

import pytest

from kepd_rehearsal.plan.changes import Change, parse_add_node, parse_traffic
from kepd_rehearsal.plan.rehearse import rehearse
from kepd_rehearsal.plan.serving import Serving
from packages.rehearsal.tests.clusters import cluster, deployment, node, service

Object = dict[str, Any]
ZONES = {"n0": "a", "n1": "b", "n2": "c"}


def slices_of(name: str, nodes: list[str], hints: list[str] | None, *, of_pods: bool = True) -> Object:
    endpoints = []
    for place, where in enumerate(nodes):
        made: Object = {"addresses": [f"10.0.0.{place + 1}"], "conditions": {"ready": True}}
        made |= {"zone": ZONES[where], "nodeName": where}
        if of_pods:
            made["targetRef"] = {"kind": "Pod", "namespace": "default", "name": f"{name}-1-{place}", "uid": "u"}
        if hints is not None:
            made["hints"] = {"forZones": [{"name": hints[place]}]}
        endpoints.append(made)
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": f"{name}-x", "labels": {"kubernetes.io/service-name": name}, "resourceVersion": "1"},
    }  # fmt: skip


def world(nodes: list[str], hints: list[str] | None, cpus: str = "444") -> Any:
    hosts = [node(name, zone, cpu=cpu) for (name, zone), cpu in zip(ZONES.items(), cpus, strict=True)]
    made = deployment("web", nodes, skew=None)
    return cluster(*hosts, *made, service("web"), slices_of("web", nodes, hints))


def served(known: Any, change: Change) -> tuple[Serving, Serving]:
    (web,) = rehearse(known, [change])[0][0].services
    return web.before, web.after


def test_who_was_refused_stays_so_although_a_change_of_nodes_would_let_it_have_hints() -> None:
    """Five endpoints are too few for zones of 2, 4 and 2 CPUs, and enough for 4, 4 and 2."""
    known = world(["n0", "n0", "n1", "n1", "n2"], None, cpus="242")
    before, after = served(known, parse_add_node("LIKE=n0,zone=a"))

    assert (before.hints, before.why) == ("refused (overload)", "overload")
    assert (after.hints, after.why) == ("refused", "it was refused, and is looked at again when its endpoints change")


def test_hints_stay_as_they_were_while_no_endpoint_changes() -> None:
    """Somebody wrote them the wrong way round, and nobody looks at them."""
    before, after = served(world(["n0", "n1", "n2"], ["b", "c", "a"]), parse_traffic("web=Cluster"))

    assert [before.crossing, after.crossing] == [1, 1]


def test_a_zone_that_has_too_few_now_makes_hints_anew() -> None:
    """One more node of twice the CPU in zone c asks for more than its one endpoint."""
    before, after = served(world(["n0", "n0", "n1", "n2"], ["a", "a", "b", "c"]), parse_add_node("LIKE=n0,zone=c"))

    assert [one.hinted for one in before.zones] == [2, 1, 1]
    assert [one.hinted for one in after.zones] == [1, 1, 2]


def test_another_policy_makes_the_control_plane_look_at_it_again() -> None:
    known = world(["n0", "n1", "n2"], None)
    before, after = served(known, parse_traffic("web=PreferSameZone"))

    assert before.crossing == pytest.approx(2 / 3)
    assert (after.hints, after.crossing) == ("distribution", 0)


def test_endpoints_of_no_pod_that_is_given_stay_with_their_node() -> None:
    hosts = [node(name, zone) for name, zone in ZONES.items()]
    known = cluster(*hosts, service("web"), slices_of("web", ["n0", "n1", "n2", "n2"], None, of_pods=False))
    (lost,) = rehearse(known, [Change("lose-zone", "c")])[0][0].services

    assert (lost.before.ready, lost.after.ready) == (4, 2)
    assert lost.after.hints == "active", "two endpoints over two zones that are left"

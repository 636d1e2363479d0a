# SPDX-License-Identifier: Apache-2.0
"""The cases that people ask about most, as a rehearsal tells them: the tables of docs/topology.md, counts that an
autoscaler goes through, and a pod that waits for a fifth host."""

from typing import Any

import pytest

from agent.topology.hints.capacity import read_zone_quantities
from agent.topology.hints.zones import parse_zones, plan_zones
from kepd_rehearsal.plan.changes import Change, parse_add_node
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse
from kepd_rehearsal.plan.serving import Serving
from packages.rehearsal.tests.clusters import cluster, deployment, node, service, template

HOSTS = ("n0", "n1", "n2")
SAME = Change("traffic", "default/web", value="Cluster")


def world(cpus: tuple[str, str, str], counts: tuple[int, int, int], *, by_slice: bool) -> Any:
    nodes = [node(name, zone, cpu=cpu) for name, zone, cpu in zip(HOSTS, "abc", cpus, strict=True)]
    places = [name for name, count in zip(HOSTS, counts, strict=True) for _ in range(count)]
    if not by_slice:
        return cluster(*nodes, *deployment("web", places, cpu="10m"), service("web"))
    endpoints = [
        {"addresses": [f"10.0.0.{place + 1}"], "zone": "abc"[HOSTS.index(name)], "conditions": {"ready": True}}
        for place, name in enumerate(places)
    ]
    written = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": {"name": "web-x", "labels": {"kubernetes.io/service-name": "web"}},
    }  # fmt: skip
    return cluster(*nodes, service("web"), written)


def once(known: Any, change: Change) -> Rehearsal:
    return rehearse(known, [change])[0][0]


def rows(one: Serving) -> list[tuple[str, float, int | None, int | None, int, int]]:
    return [
        (each.zone, round(each.want or 0, 2), each.least, each.most, each.endpoints, each.hinted) for each in one.zones
    ]


@pytest.mark.parametrize("by_slice", [False, True])
@pytest.mark.parametrize(
    ("cpus", "counts", "status", "table"),
    [
        (
            ("2", "2", "4"), (1, 1, 2), "active",
            [("a", 1.0, 1, 1, 1, 1), ("b", 1.0, 1, 1, 1, 1), ("c", 2.0, 2, 2, 2, 2)],
        ),
        (
            ("2", "2", "4"), (1, 2, 2), "refused (overload)",
            [("a", 1.25, 2, None, 1, 0), ("b", 1.25, 2, None, 2, 0), ("c", 2.5, 3, None, 2, 0)],
        ),
        (
            ("8", "8", "8"), (3, 3, 4), "active",
            [("a", 3.33, 3, 4, 3, 3), ("b", 3.33, 3, 4, 3, 3), ("c", 3.33, 3, 4, 4, 4)],
        ),
        (
            ("2", "2", "4"), (2, 2, 0), "active",
            [("a", 1.0, 1, 1, 2, 1), ("b", 1.0, 1, 1, 2, 1), ("c", 2.0, 2, 2, 0, 2)],
        ),
    ],
)  # fmt: skip
def test_the_tables_of_the_page(
    cpus: tuple[str, str, str], counts: tuple[int, int, int], status: str, table: list[Any], *, by_slice: bool
) -> None:
    (web,) = once(world(cpus, counts, by_slice=by_slice), SAME).services

    assert (web.before.hints, rows(web.before)) == (status, table)


@pytest.mark.parametrize(("cpus", "text"), [(("2", "2", "4"), "a=2,b=2,c=4"), (("8", "8", "8"), "a=8,b=8,c=8")])
def test_each_count_of_an_autoscaler_is_what_plan_zones_says(cpus: tuple[str, str, str], text: str) -> None:
    plan = plan_zones(read_zone_quantities(parse_zones(text)), 1, 30, ["a", "b", "c"])
    known = world(cpus, (1, 0, 0), by_slice=False)
    for row in plan.rows:
        (web,) = once(known, Change("scale", "default/web", row.n, row.n)).services

        assert (web.after.ready, web.after.hints) == (row.n, f"refused ({row.refusal})" if row.refusal else "active")


def test_a_pod_that_wants_five_hosts_waits_for_a_node_of_its_own() -> None:
    """Fewer domains than minDomains count as an empty one, so that each host with a pod is full; a new host is not."""
    nodes = [node(name, "", cpu="4") for name in HOSTS]
    made = template("web", skew=None)
    made["spec"]["topologySpreadConstraints"] = [
        {"maxSkew": 1, "minDomains": 5, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
         "labelSelector": {"matchLabels": {"app": "web"}}},
    ]  # fmt: skip
    incoming = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p3", "labels": {"app": "web"}}, **made}
    incoming["metadata"] = {"name": "p3", "labels": {"app": "web"}}
    known = cluster(*nodes, *deployment("web", list(HOSTS), skew=None), incoming)

    (waits,) = once(known, Change("drain", "n0")).pending[:1]
    assert waits.why == "0 of 3 nodes: 1 cordoned, 2 would exceed maxSkew"
    (placed,) = once(known, parse_add_node("LIKE=n0")).placed
    assert (placed.pod, placed.node) == ("default/p3", "n0-like-1")

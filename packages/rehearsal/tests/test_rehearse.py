# SPDX-License-Identifier: Apache-2.0
"""Rehearsals: what a change does to Services, pods and budgets, and that loads are those that proxies would give."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.model.services.service import Backend
from agent.services.routes.selection import Place, Use, select
from agent.topology.hints.slices import Endpoint, Hints, Slice
from agent.topology.hints.standalone import fill_hints
from kepd_rehearsal.plan.advice import advise, parse_goal
from kepd_rehearsal.plan.applying import rehearse_files
from kepd_rehearsal.plan.changes import (
    BadChange,
    Change,
    parse_add_node,
    parse_hpa,
    parse_scale,
    parse_traffic,
)
from kepd_rehearsal.plan.cluster import Cluster
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse
from kepd_rehearsal.plan.serving import Crowd, Ground, serving
from kepd_rehearsal.plan.slices import endpoints_of, written_first
from kepd_rehearsal.view.texts import faults_of
from packages.rehearsal.tests.clusters import SIX, WEB, budget, cluster, deployment, node, service


def once(known: Cluster, change: Change) -> Rehearsal:
    return rehearse(known, [change])[0][0]


def nodes_of(rehearsal: Rehearsal) -> list[str]:
    return [one.node for one in rehearsal.placed]


def test_a_drain_shows_the_moment_between_and_where_pods_go() -> None:
    told = once(cluster(*WEB), Change("drain", "n0"))
    (web,) = told.services

    assert (web.before.hints, web.during.hints, web.after.hints) == ("active", "refused (overload)", "active")
    assert (web.before.ready, web.during.ready, web.after.ready) == (6, 5, 6)
    assert nodes_of(told) == ["n3"], "maxSkew lets it go to its own zone alone"
    assert [(one.pod, one.node, one.is_lost) for one in told.ending] == [("default/web-1-0", "n0", False)]


def test_pods_without_a_workload_are_lost_and_those_of_daemon_sets_stay_on_a_drained_node() -> None:
    single = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {"nodeName": "n0", "containers": []},
    }
    told = once(cluster(*SIX, single), Change("drain", "n0"))

    assert [(one.pod, one.is_lost) for one in told.ending] == [("default/one", True)]
    assert told.placed == ()


def test_what_finds_no_node_says_what_keeps_it_from_how_many() -> None:
    told = once(cluster(*WEB), Change("lose-zone", "a"))
    assert nodes_of(told) == ["n1", "n2"]

    full = [node("n0", "a", cpu="600m"), node("n1", "b", cpu="600m"), *deployment("web", ["n0", "n1"], skew=None)]
    told = once(cluster(*full), Change("scale", "default/web", 3, 3))
    assert [(one.pod, one.why) for one in told.pending] == [
        ("default/web-new-0", "0 of 2 nodes: 2 have too little CPU")
    ]

    told = once(cluster(*WEB), Change("lose-node", "n0"))
    assert told.pending == ()


def test_a_budget_that_holds_a_drain_is_named() -> None:
    held = once(cluster(*WEB, budget("web", minAvailable=6)), Change("drain", "n0")).held
    free = once(cluster(*WEB, budget("web", maxUnavailable="20%")), Change("drain", "n0")).held

    assert [(one.budget, one.allowed, one.wanted) for one in held] == [("default/web", 0, 1)]
    assert free == ()


def test_a_policy_local_goes_dark_where_no_endpoint_is() -> None:
    known = cluster(*SIX, *deployment("web", ["n0", "n1"], skew=None), service("web", externalTrafficPolicy="Local"))
    told = once(known, Change("lose-node", "n1"))
    (web,) = told.services

    assert web.before.dark_nodes == ("n2", "n3", "n4", "n5")
    assert web.during.dark_nodes == ("n2", "n3", "n4", "n5")
    assert faults_of([told], ["dark"]) == [], "it was dark there before"
    assert faults_of([once(known, Change("drain", "n1"))], ["dark"]) == ["drain n1: default/web goes dark on n1"]


def test_a_rolling_change_keeps_to_surge_and_unavailability_at_its_worst() -> None:
    (web,) = once(cluster(*WEB), Change("roll", "default/web")).services

    assert (web.before.ready, web.during.ready, web.after.ready) == (6, 5, 6)


def test_changes_build_on_each_other_in_their_order() -> None:
    first, second = rehearse(cluster(*WEB), [Change("scale", "default/web", 9, 9), Change("lose-zone", "a")])[0]

    assert first.services[0].after == second.services[0].before
    assert second.services[0].after.ready == 9


def test_one_more_node_and_another_policy_change_what_clients_get() -> None:
    added = once(cluster(*WEB), parse_add_node("LIKE=n0,zone=d"))
    near = once(cluster(*WEB), parse_traffic("web=PreferSameZone"))
    none = once(cluster(*WEB), parse_traffic("default/web=None"))

    assert [one.zone for one in added.services[0].after.zones] == ["a", "b", "c", "d"]
    assert near.services[0].after.hints == "distribution"
    assert (none.services[0].after.hints, round(none.services[0].after.crossing, 2)) == ("none", 0.67)


def test_edited_manifests_take_the_place_of_those_that_have_their_names() -> None:
    told, _ = rehearse_files(cluster(*WEB), cluster(deployment("web", ["x"] * 9)[0], service("web", "")), ["web.yaml"])

    assert told.services[0].after.ready == 9
    assert (told.services[0].before.hints, told.services[0].after.hints) == ("active", "none")


def test_an_edited_template_makes_all_pods_anew() -> None:
    told, after = rehearse_files(cluster(*WEB), cluster(deployment("web", ["x"] * 6, cpu="1")[0]), ["f"])

    assert len(told.ending) == len(told.placed) == 6
    assert told.services[0].during.ready == 5
    assert {one.asks.cpu_milli for one in after.members} == {1000}


def test_advice_is_the_smallest_change_and_its_rehearsal_proves_it() -> None:
    known = rehearse(cluster(*WEB), [Change("lose-node", "n1")])[1]
    (advice,) = advise(known, parse_goal("hints"), "hints")

    assert advice.change is not None
    assert advice.change.text == "scale default/web to 5"
    assert advice.proof is not None
    assert advice.proof.services[0].after.hints == "active"
    assert advise(cluster(*WEB), parse_goal("hints"), "hints") == []


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_scale, "web", "no number of pods"),
        (parse_scale, "web=-1", "no number of pods"),
        (parse_scale, "web=99999", "expected 0 to 10000"),
        (parse_scale, "/web=1", "expected NAMESPACE/NAME"),
        (parse_hpa, "web=3", "has no range"),
        (parse_hpa, "web=5..3", "5 is more than 3"),
        (parse_add_node, "n0", "expected LIKE=NODE"),
        (parse_add_node, "LIKE=n0,rack=3", "expected LIKE=NODE"),
        (parse_traffic, "web=Locl", "expected one of Cluster, Local, Auto, None, PreferClose"),
        (parse_goal, "overload<x%", "is no goal"),
    ],
)
def test_a_change_that_cannot_be_read_says_what_would_be_right(parse: object, text: str, expected: str) -> None:
    with pytest.raises(BadChange, match=expected):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Change("drain", "n9"), "no node n9 is there"),
        (Change("scale", "default/wbe", 3, 3), 'no workload default/wbe is there; did you mean "default/web"'),
        (Change("lose-zone", "z"), "no node is in zone z; there are a, b, c"),
        (Change("traffic", "default/web2", value="Local"), "no Service default/web2 is there"),
    ],
)
def test_a_change_of_what_is_not_there_is_refused(change: Change, expected: str) -> None:
    with pytest.raises(BadChange, match=expected.replace("?", r"\?")):
        once(cluster(*WEB), change)


PLACES = st.lists(st.sampled_from([f"n{place}" for place in range(6)]), min_size=0, max_size=9)
MODES = st.sampled_from([{}, {"trafficDistribution": "PreferSameZone"}, {"trafficDistribution": "PreferSameNode"}])


def asked_one_by_one(known: Cluster, is_local: bool) -> list[float]:
    """Each node asks its own proxy, as the services plane chooses for it."""
    (traffic,) = known.traffic
    (piece,) = [Slice("all", tuple(sorted_endpoints(known)))]
    filled = fill_hints(traffic.service, "IPv4", [piece], [host.node for host in known.hosts])
    backends = [_backend(one) for one in filled.slices[0].endpoints] if filled.slices else []
    total = sum(host.room.cpu_milli for host in known.hosts)
    loads = dict.fromkeys((one.key for one in backends), 0.0)
    for host in known.hosts:
        chosen = select(backends, Use(cluster=not is_local, local=is_local), Place(host.name, host.node.zone))
        taken: Sequence[Backend] = (chosen.local if is_local else chosen.cluster) or ()
        for one in taken:
            loads[one.key] += host.room.cpu_milli / total / len(taken)
    return [loads[key] for key in sorted(loads)]


def _backend(one: Endpoint) -> Backend:
    hints = one.hints or Hints()
    return Backend(key=str(one.target), data=b"", node=one.node or "", zones=hints.zones, nodes=hints.nodes)


def sorted_endpoints(known: Cluster) -> list[Endpoint]:
    zones = {host.name: host.node.zone for host in known.hosts}
    return [
        Endpoint(addresses=(one.key,), zone=zones[one.node], node=one.node, ready=True, serving=True, terminating=False,
                 target=one.key)
        for one in sorted(known.members, key=lambda each: each.key)
    ]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(PLACES, MODES, st.booleans(), st.booleans())
def test_loads_are_those_that_each_nodes_proxy_would_give(
    places: list[str], mode: dict[str, str], is_auto: bool, is_local: bool
) -> None:
    policy = {"internalTrafficPolicy": "Local"} if is_local else {}
    known = cluster(*SIX, *deployment("web", places), service("web", "Auto" if is_auto else "", **mode, **policy))
    ground, traffic = Ground(known.hosts), known.traffic[0]
    endpoints = endpoints_of(Crowd(known.members, [traffic.service]).of(traffic), traffic, ground.zone_of)
    found = serving(traffic, written_first(traffic, endpoints, ground.reading), ground)

    assert [one.load for one in found.endpoints] == pytest.approx(asked_one_by_one(known, is_local))

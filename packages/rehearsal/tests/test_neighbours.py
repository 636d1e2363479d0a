# SPDX-License-Identifier: Apache-2.0
"""Pods that need, refuse or like others beside them."""

from typing import Any

import pytest

from kepd_rehearsal.plan.changes import Change, parse_scale
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse
from packages.rehearsal.tests.clusters import SIX, cluster, deployment

Object = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
REQUIRED, PREFERRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("required", "preferred"))


def term(app: str, key: str = HOST, **more: Any) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def with_affinity(name: str, nodes: list[str], kind: str, how: str, *terms: Object) -> list[Object]:
    made = deployment(name, nodes, skew=None)
    for one in made:
        spec = one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        spec["affinity"] = {kind: {how: list(terms)}}
    return made


def scaled(count: int, *objects: Object) -> Rehearsal:
    return rehearse(cluster(*SIX, *objects), [parse_scale(f"web={count}")])[0][0]


def test_pods_that_refuse_their_like_take_a_host_each_and_the_next_one_waits() -> None:
    told = scaled(7, *with_affinity("web", ["n0", "n1"], "podAntiAffinity", REQUIRED, term("web")))

    assert sorted(one.node for one in told.placed) == ["n2", "n3", "n4", "n5"]
    assert [one.why for one in told.pending] == ["0 of 6 nodes: 6 have pods that it stays away from"]


def test_a_pod_that_is_there_keeps_away_those_that_it_refuses() -> None:
    guards = with_affinity("db", ["n0", "n1", "n2"], "podAntiAffinity", REQUIRED, term("web", ZONE))
    told = scaled(1, *deployment("web", [], skew=None), *guards)

    assert [one.why for one in told.pending] == ["0 of 6 nodes: 6 have pods that stay away from it"]


def test_a_pod_goes_where_those_are_that_it_needs() -> None:
    near = with_affinity("web", [], "podAffinity", REQUIRED, term("db", ZONE))
    told = scaled(2, *near, *deployment("db", ["n4"], skew=None))

    assert {one.node for one in told.placed} == {"n1", "n4"}, "the zone of n4"
    assert scaled(1, *near).pending[0].why == "0 of 6 nodes: 6 do not match its affinity to pods"


def test_the_first_of_pods_that_need_their_like_goes_anywhere_and_the_others_follow() -> None:
    told = scaled(3, *with_affinity("web", [], "podAffinity", REQUIRED, term("web")))

    assert len({one.node for one in told.placed}) == 1
    assert len(told.placed) == 3


@pytest.mark.parametrize(("kind", "expected"), [("podAffinity", {"n2"}), ("podAntiAffinity", {"n0", "n1", "n3", "n4"})])
def test_what_is_only_liked_ranks_and_keeps_nobody_out(kind: str, expected: set[str]) -> None:
    liked = {"weight": 100, "podAffinityTerm": term("db")}
    told = scaled(1, *with_affinity("web", [], kind, PREFERRED, liked), *deployment("db", ["n2"], skew=None))

    assert told.placed[0].node in expected


def test_namespaces_of_a_term_are_named_or_chosen() -> None:
    others = deployment("db", ["n3"], skew=None)
    for one in others:
        one["metadata"]["namespace"] = "shop"
    for more, count in (({}, 0), ({"namespaces": ["shop"]}, 1), ({"namespaceSelector": {}}, 1)):
        near = with_affinity("web", [], "podAffinity", REQUIRED, term("db", **more))
        assert len(scaled(1, *near, *others).placed) == count, more


def test_pods_are_counted_again_after_each_that_comes() -> None:
    """The pod of the lost host finds its neighbour where that one went."""
    near = with_affinity("web", ["n0"], "podAffinity", REQUIRED, term("db"))
    known = cluster(*SIX, *deployment("db", ["n0"], skew=None), *near)
    told = rehearse(known, [Change("lose-node", "n0")])[0][0]

    assert [one.pod for one in told.placed] == ["default/db-new-0", "default/web-new-0"]
    assert len({one.node for one in told.placed}) == 1


def test_a_pod_that_waits_for_a_neighbour_goes_when_it_has_come() -> None:
    near = with_affinity("db", [], "podAffinity", REQUIRED, term("web"))
    waits = {**near[0]["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
    waits["metadata"] = {**waits["metadata"], "name": "waits"}
    told = scaled(1, *deployment("web", [], skew=None), waits)

    assert sorted(one.pod for one in told.placed) == ["default/waits", "default/web-new-0"]
    assert told.pending == ()

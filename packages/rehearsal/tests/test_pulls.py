# SPDX-License-Identifier: Apache-2.0
"""Pulls of nodes by the queue: what is there, what is not, how long it takes."""

from typing import Any

import pytest

from kepd_rehearsal.effects.pulls import NodePulls, PullRules, Pulls, spellings
from kepd_rehearsal.effects.told import Asked, told_of
from kepd_rehearsal.plan.changes import Change
from kepd_rehearsal.plan.cluster import Cluster
from kepd_rehearsal.plan.rehearse import rehearse
from packages.rehearsal.tests.clusters import Object, cluster, deployment, node

MIB = 1 << 20
SLOW = PullRules(bandwidth=MIB)


def host(name: str, *listed: tuple[str, int], **spec: Any) -> Object:
    made = node(name, "a", **spec)
    made["status"]["images"] = [{"names": [image], "sizeBytes": size * MIB} for image, size in listed]
    return made


def app(name: str, nodes: list[str], *images: str, policy: str = "IfNotPresent") -> list[Object]:
    made = deployment(name, nodes, skew=None)
    containers = [
        {"name": f"c{place}", "image": image, "imagePullPolicy": policy} for place, image in enumerate(images)
    ]
    for one in made:
        spec = one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        spec["containers"] = containers
    return made


def pulled(known: Cluster, change: Change, rules: PullRules = SLOW) -> Pulls:
    (told,), after = rehearse(known, [change])
    return told_of(told, change.verb, known, after, Asked(rules=rules)).pulls


def drained(*objects: Object, rules: PullRules = SLOW) -> NodePulls:
    (one,) = pulled(cluster(*objects), Change("drain", "n0"), rules).nodes
    return one


def names(one: NodePulls) -> list[tuple[str, int | None, float]]:
    return [(each.image.rpartition("/")[2], each.size_bytes, each.ended_s) for each in one.images]


def test_images_are_pulled_one_after_the_other_by_default() -> None:
    full = host("n0", ("docker.io/library/web:1", 10), ("docker.io/library/log:1", 4))
    told = drained(full, host("n1"), *app("web", ["n0"], "web:1", "log:1"))

    assert (told.node, told.size_bytes, told.seconds) == ("n1", 14 * MIB, 14)
    assert names(told) == [("web:1", 10 * MIB, 10), ("log:1", 4 * MIB, 14)]


def test_pods_that_pull_at_once_share_the_bandwidth() -> None:
    full = host("n0", ("docker.io/library/web:1", 10), ("docker.io/library/db:1", 4))
    both = [*app("web", ["n0"], "web:1"), *app("db", ["n0"], "db:1")]
    serial = drained(full, host("n1"), *both)
    parallel = drained(full, host("n1"), *both, rules=PullRules(bandwidth=MIB, parallel=2))

    assert sorted(one[2] for one in names(serial)) in ([4, 14], [10, 14])
    assert names(parallel) == [("db:1", 4 * MIB, 8), ("web:1", 10 * MIB, 14)]


def test_what_several_pods_need_is_pulled_once() -> None:
    full = host("n0", ("docker.io/library/web:1", 10))
    told = drained(
        full, host("n1"), *app("web", ["n0", "n0", "n0"], "web:1"), rules=PullRules(bandwidth=MIB, parallel=3)
    )

    assert (told.pods, told.images[0].pods, told.size_bytes, told.seconds) == (3, 3, 10 * MIB, 10)


@pytest.mark.parametrize("listed", ["docker.io/library/web:1", "web:1", "library/web:1"])
def test_an_image_is_there_however_the_node_spells_it(listed: str) -> None:
    known = cluster(host("n0"), host("n1", (listed, 10)), *app("web", ["n0"], "web:1"))

    assert pulled(known, Change("drain", "n0")).nodes == ()
    assert listed in spellings("web:1")


def test_a_pod_that_is_ready_proves_its_image() -> None:
    known = cluster(host("n0"), host("n1"), *app("web", ["n0", "n1"], "web:1"))

    assert pulled(known, Change("drain", "n0")).nodes == ()


def test_always_asks_again_and_pulls_nothing_that_is_there() -> None:
    full = host("n0", ("docker.io/library/log:1", 4))
    there = host("n1", ("docker.io/library/web:1", 10))
    told = drained(full, there, *app("web", ["n0"], "web:1", "log:1", policy="Always"))

    assert (told.checks, told.size_bytes, told.seconds) == (1, 4 * MIB, 4)


def test_never_is_told_and_pulls_nothing() -> None:
    told = drained(host("n0", ("docker.io/library/web:1", 9)), host("n1"), *app("web", ["n0"], "web:1", policy="Never"))

    assert (told.never, told.images, told.seconds) == (("web:1",), (), 0)


def test_a_size_comes_from_any_node_from_the_user_or_from_nobody() -> None:
    objects = [host("n0"), host("n1"), *app("web", ["n0"], "web:1")]
    elsewhere = host("n2", ("docker.io/library/web:1", 7), unschedulable=True)
    nobody = drained(*objects)
    user = drained(*objects, elsewhere, rules=PullRules(bandwidth=MIB, sizes={"web:1": 3 * MIB}))

    assert (nobody.unknown, nobody.size_bytes, nobody.images[0].size_bytes) == (1, 0, None)
    assert drained(*objects, elsewhere).size_bytes == 7 * MIB
    assert user.size_bytes == 3 * MIB


def test_a_new_node_has_nothing_and_its_own_pods_pull_too() -> None:
    full = host("n0", ("docker.io/library/agent:1", 5))
    daemon = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
              "spec": app("agent", [], "agent:1")[0]["spec"]}  # fmt: skip
    del daemon["spec"]["replicas"]
    (told,) = pulled(cluster(full, daemon), Change("add-node", "n0")).nodes

    assert (told.node, told.size_bytes) == ("n0-like-1", 5 * MIB)


def test_what_a_change_brought_is_there_for_the_next() -> None:
    known = cluster(host("n0", ("docker.io/library/web:1", 9)), host("n1"), *app("web", ["n0"], "web:1"))
    first, after = rehearse(known, [Change("drain", "n0")])
    again = pulled(after, Change("scale", "default/web", 2, 2))

    assert told_of(first[0], "drain", known, after, Asked()).pulls.seconds > 0
    assert again.nodes == ()


def test_nodes_are_told_slowest_first_and_a_full_list_may_hide_some() -> None:
    many = [(f"docker.io/library/other:{place}", 1) for place in range(50)]
    full = host("n0", ("docker.io/library/web:1", 8), ("docker.io/library/db:1", 2))
    known = cluster(full, host("n1", *many, cpu="1"), *app("web", ["n0"], "web:1"), *app("db", ["n0"], "db:1"))
    told = pulled(known, Change("drain", "n0"))

    assert told.nodes[0].is_cut
    assert told.seconds == told.nodes[0].seconds == 10


def test_images_that_are_mounted_and_those_of_inits_come_first() -> None:
    made = app("web", ["n0"], "web:1")
    for one in made:
        spec = one["spec"] if one["kind"] == "Pod" else one["spec"]["template"]["spec"]
        spec["initContainers"] = [{"name": "i", "image": "setup:1"}]
        spec["volumes"] = [{"name": "v", "image": {"reference": "data:1"}}]
    told = drained(host("n0"), host("n1"), *made)

    assert [one[0] for one in names(told)] == ["data:1", "setup:1", "web:1"]


@pytest.mark.parametrize("listed", [["x"], [{"names": "web:1"}], [{"names": [3, None], "sizeBytes": "9"}], "x"])
def test_a_list_of_images_that_is_none_lists_nothing(listed: object) -> None:
    wrong = node("n1", "a")
    wrong["status"]["images"] = listed
    told = drained(host("n0"), wrong, *app("web", ["n0"], "UPPER:case"))

    assert told.unknown == 1

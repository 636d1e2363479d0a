# SPDX-License-Identifier: Apache-2.0
"""Pods that files do not have: as many as their workloads have, where the scheduler puts them, and told."""

from collections import Counter
from typing import Any

import pytest

from kepd_rehearsal.plan.assumed import with_assumed
from kepd_rehearsal.plan.changes import Change
from kepd_rehearsal.plan.cluster import Cluster
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.plan.rehearse import rehearse
from packages.rehearsal.tests.clusters import SIX, WEB, deployment, documents, node, service, template


def assumed(*objects: dict[str, Any]) -> tuple[Cluster, list[str]]:
    given = documents(*objects)
    return with_assumed(read_cluster(given).cluster, given)


def plain(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    made = {"selector": {"matchLabels": {"app": name}}, "template": template(name), **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": made}


def nodes_of(cluster: Cluster) -> Counter[str]:
    return Counter(one.node for one in cluster.members)


def test_a_deployment_without_pods_has_those_that_it_wants_and_a_drain_moves_them() -> None:
    cluster, notes = assumed(*SIX, plain("Deployment", "web", replicas=12), service("web"))
    (drained,), _ = rehearse(cluster, [Change("drain", "n0")])

    assert notes == ["12 pods of default/web are not in the files; they are taken as placed"]
    assert set(nodes_of(cluster).values()) == {2}
    assert len(drained.ending) == 2
    assert [one.before.ready for one in drained.services] == [12]


def test_a_whole_dump_is_left_as_it_is() -> None:
    cluster, notes = assumed(*WEB)

    assert notes == []
    assert nodes_of(cluster) == nodes_of(read_cluster(documents(*WEB)).cluster)


def test_a_dump_without_replica_sets_has_no_pods_twice() -> None:
    cluster, notes = assumed(*(one for one in WEB if one["kind"] != "ReplicaSet"))

    assert notes == []
    assert {one.workload for one in cluster.members} == {("Deployment", "default", "web")}


@pytest.mark.parametrize(
    ("status", "count"), [({"observedGeneration": 1, "replicas": 2}, 2), ({"observedGeneration": 1}, 0), ({}, 4)]
)
def test_what_an_api_server_wrote_has_as_many_as_it_says(status: dict[str, int], count: int) -> None:
    """A quota may keep a workload from what it wants."""
    cluster, _ = assumed(*SIX, {**plain("Deployment", "web", replicas=4), "status": status})

    assert len(cluster.members) == count


def test_a_daemon_set_has_a_pod_on_each_node_that_takes_it() -> None:
    tainted = node("n6", "a", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    cordoned = node("n7", "a", unschedulable=True, taints=[
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    ])  # fmt: skip
    cluster, notes = assumed(*SIX, tainted, cordoned, plain("DaemonSet", "log"))

    assert set(nodes_of(cluster)) == {*(one["metadata"]["name"] for one in SIX), "n7"}
    assert notes == ["7 pods of default/log are not in the files; they are taken as placed"]


def test_what_fits_nowhere_is_told_and_stateful_pods_have_their_names() -> None:
    big = plain("StatefulSet", "db", replicas=2)
    big["spec"]["template"] = template("db", cpu="3", skew=None)
    cluster, notes = assumed(node("n0", "a"), big)

    assert notes == ["2 pods of default/db are not in the files; they are taken as placed, 1 of them on no node"]
    assert {one.key: one.node for one in cluster.members} == {"default/db-0": "n0", "default/db-1": ""}


def test_a_pod_of_a_manifest_goes_somewhere_and_one_that_waits_goes_on_waiting() -> None:
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lone"}, "spec": template("lone")["spec"]}
    waiting = {**made, "metadata": {"name": "late"}, "status": {"phase": "Pending"}}
    cluster, notes = assumed(node("n0", "a"), made, waiting)

    assert notes == ["default/lone has no node in the files; it is taken as placed"]
    assert {one.key: one.node for one in cluster.members} == {"default/lone": "n0", "default/late": ""}


def test_many_workloads_are_told_in_few_lines() -> None:
    found = [plain("Deployment", f"web{place}") for place in range(9)]
    _, notes = assumed(node("n0", "a", cpu="16"), *found)

    assert len(notes) == 6
    assert notes[-1] == "and so for 4 more workloads and pods"
    assert notes[0] == "a pod of default/web0 is not in the files; it is taken as placed"


def test_pods_that_are_given_count_among_those_that_are_wanted() -> None:
    given = deployment("web", ["n0", "n1", "n2"])[:-1]
    cluster, notes = assumed(*SIX, *given)

    assert notes == ["a pod of default/web is not in the files; it is taken as placed"]
    assert len(cluster.members) == 3

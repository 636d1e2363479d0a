# SPDX-License-Identifier: Apache-2.0
"""What is dropped of a cluster's objects as they are read, and that whatever stands there is no failure."""

import json

import msgspec
import pytest

from agent.topology.manifest.objects import Document
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.run.clusters.shedding import Shedding, is_of_the_past, shed_dump
from packages.rehearsal.tests.clusters import WEB

ENV = {"env": [{"name": "PASSWORD", "value": "hush"}], "volumeMounts": [{"name": "t", "mountPath": "/"}]}


def test_bulk_and_values_go_and_what_pods_have_alike_is_there_once() -> None:
    pods = [json.loads(json.dumps(one)) for one in WEB if one["kind"] == "Pod"]
    for one in pods:
        one["metadata"]["managedFields"] = [{"manager": "x"}]
        one["spec"]["containers"][0] |= ENV
        one["spec"]["volumes"] = [{"name": "t", "projected": {}}, {"name": "d", "persistentVolumeClaim": {}}]
    shedding = Shedding()
    first, second = (shedding.object(one) for one in pods[:2])

    assert "hush" not in str(first)
    assert first["metadata"].keys() == {"name", "labels", "ownerReferences"}
    assert first["spec"]["containers"] is second["spec"]["containers"]
    assert [one["name"] for one in first["spec"]["volumes"]] == ["d"]


def test_a_dump_that_was_shed_is_the_same_cluster() -> None:
    dump = {"apiVersion": "v1", "kind": "List", "items": WEB}
    shed = shed_dump(msgspec.json.encode(dump))

    assert read_cluster([Document("", shed)]) == read_cluster([Document("", dump)])


@pytest.mark.parametrize(
    "content",
    [
        {"items": None}, {"items": 3}, {"items": [3, None, {"spec": 3}, {"spec": {"containers": 3, "template": []}}]},
        {"metadata": [], "status": ""}, {"metadata": {"annotations": []}, "status": {"conditions": [3], "images": "x"}},
        {"spec": {"containers": [3, {"env": 1}], "volumes": [None]}, "status": {"conditions": {}}},
    ],
)  # fmt: skip
def test_whatever_stands_there_is_left_to_the_reader(content: dict) -> None:
    assert shed_dump(json.dumps(content).encode()).keys() == content.keys()


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [({"replicas": 0}, {"replicas": 0}, True), ({"replicas": 0}, {"replicas": 1}, False), ({}, {}, False)],
)
def test_a_replica_set_without_pods_is_of_the_past(spec: dict, status: dict, expected: bool) -> None:
    assert is_of_the_past({"kind": "ReplicaSet", "spec": spec, "status": status}) is expected

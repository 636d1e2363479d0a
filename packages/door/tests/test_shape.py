# SPDX-License-Identifier: Apache-2.0
"""What requests and answers look like, without any daemon."""

import json
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from agent.cli.objects.manifest_files import ManifestFile, check_file
from agent.kinds.table import Column, Object
from kepd_door.shape.bounds import check_text, check_value
from kepd_door.shape.discovery import aggregated, group_list, resource_list
from kepd_door.shape.dressing import dressed, last_applied, with_last_applied, written
from kepd_door.shape.openapi import document_v2, document_v3
from kepd_door.shape.protobuf import MAGIC, decoded_protobuf, encoded_protobuf
from kepd_door.shape.resources import BY_PLACE, RESOURCES
from kepd_door.shape.selecting import Selection, part_of
from kepd_door.shape.statuses import Failure
from kepd_door.shape.tables import row, table
from kepd_door.shape.targets import target_of, verb_of

PODS = BY_PLACE["", "v1", "pods"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/api/v1/pods", ("pods", "", "", "")),
        ("/api/v1/namespaces/a/pods", ("pods", "a", "", "")),
        ("/api/v1/namespaces/a/pods/b/log", ("pods", "a", "b", "log")),
        ("/api/v1/namespaces/a", ("namespaces", "", "a", "")),
        ("/apis/apps/v1/namespaces/a/deployments/b", ("deployments", "a", "b", "")),
        ("/apis/kepd.dev/v1/pulls", ("pulls", "", "", "")),
        ("/api/v1/namespaces/../pods", None),
        ("/api/v1/namespaces/a/pods/b/c/d", None),
        ("/api/v1/namespaces/a/nodes", None),
        ("/api/v1/namespaces/a/pods/-b", None),
        ("/apis/apps/v2/deployments", None),
        ("/api/v1/", None),
        ("/", None),
        ("/metrics", None),
    ],
)
def test_a_path_means_a_resource_or_nothing(path: str, found: tuple[str, ...] | None) -> None:
    target = target_of(path)

    assert (target and (target.resource.name, target.namespace, target.name, target.part)) == found


def test_verbs_are_those_of_kubernetes() -> None:
    one, all_of_them = target_of("/api/v1/namespaces/a/pods/b"), target_of("/api/v1/pods")
    assert one is not None
    assert all_of_them is not None
    cases = [("GET", one), ("GET", all_of_them), ("DELETE", one), ("DELETE", all_of_them), ("POST", one), ("BREW", one)]

    found = [verb_of(method, target, {}) for method, target in cases]

    assert found == ["get", "list", "delete", "deletecollection", "create", ""]
    assert verb_of("GET", all_of_them, {"watch": "true"}) == "watch"


def test_bodies_are_counted_before_they_are_read() -> None:
    text = json.dumps({"a": '[{,"' * 5000, "b": ["\\"] * 90}).encode()
    check_text(text, 100)
    check_value({"a": [[]] * 99}, 100)
    deep: Any = 1
    for _ in range(70):
        deep = [deep]
    for body in (b"[" + b"[]," * 100 + b"[]]", b'{"":"",' * 300, b"[" * 200):
        with pytest.raises(Failure) as failure:
            check_text(body, 100)
        assert failure.value.code == 413
    for value, code in (([1] * 101, 413), (deep, 400)):
        with pytest.raises(Failure) as failure:
            check_value(value, 100)
        assert failure.value.code == code
    with pytest.raises(Failure, match="more than 100 values"):
        decoded_protobuf(MAGIC + field(1, field(2, b"ConfigMap")) + field(2, field(2, b"") * 101), 100)


def test_an_object_keeps_its_identity_and_loses_what_only_a_server_adds() -> None:
    shown = dressed(PODS, {"metadata": {"name": "a"}, "spec": {}}, 7)

    assert shown["metadata"]["resourceVersion"] == "7"
    assert shown["metadata"]["uid"] == dressed(PODS, {"metadata": {"name": "a"}}, 9)["metadata"]["uid"]
    assert written({**shown, "status": {"phase": "Running"}})["metadata"] == {"name": "a", "namespace": "default"}
    wanted = {"metadata": {"name": "a"}, "spec": {"x": 1}}
    assert last_applied(with_last_applied({}, wanted, "kubectl"))["spec"] == {"x": 1}
    assert last_applied({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{"}}}) == {}


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128, *varint(number >> 7)])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    named = field(1, version.encode()) + field(2, kind.encode())
    return MAGIC + field(1, named) + field(2, raw)


def test_a_cron_job_in_protobuf_keeps_limits_that_are_zero() -> None:
    """CJ-7."""
    spec = field(1, b"@daily") + field(2, 0) + field(4, 0) + field(6, 0) + field(7, 0) + field(8, b"UTC")
    pod = field(2, field(3, b"Never"))
    raw = field(1, field(1, b"b")) + field(2, spec + field(5, field(2, field(6, pod))))
    made = decoded_protobuf(envelope("batch/v1", "CronJob", raw))

    template = made["spec"].pop("jobTemplate")
    assert template["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert made["spec"] == {
        "schedule": "@daily", "startingDeadlineSeconds": 0, "suspend": False, "successfulJobsHistoryLimit": 0,
        "failedJobsHistoryLimit": 0, "timeZone": "UTC",
    }  # fmt: skip


@pytest.mark.parametrize("group", sorted({one.group for one in RESOURCES}))
def test_each_group_has_a_document_of_its_fields(group: str) -> None:
    """`kubectl explain job` got an error for want of one type."""
    version = next(one.version for one in RESOURCES if one.group == group)
    document = document_v3(RESOURCES, group, version)

    assert document is not None
    assert document["components"]["schemas"]


def test_protobuf_is_read_as_the_json_that_it_stands_for() -> None:
    labels = field(11, field(1, b"app") + field(2, b"web"))
    container = field(1, b"main") + field(2, b"busybox") + field(3, b"sh") + field(3, b"-c") + field(16, 0)
    container += field(15, field(2, 0))
    volume = field(1, b"v") + field(2, field(19, field(1, field(1, b"cm"))))
    spec = field(1, volume) + field(2, container) + field(4, 0) + field(11, 0) + field(14, b"")
    raw = field(1, field(1, b"a") + field(2, b"") + labels) + field(2, spec) + field(3, b"")

    made = decoded_protobuf(envelope("v1", "Pod", raw))

    assert made["metadata"] == {"name": "a", "labels": {"app": "web"}}
    assert made["spec"]["terminationGracePeriodSeconds"] == 0
    assert "hostNetwork" not in made["spec"]
    assert made["spec"]["containers"][0]["command"] == ["sh", "-c"]
    assert made["spec"]["containers"][0]["securityContext"]["privileged"] is False
    assert made["spec"]["volumes"] == [{"name": "v", "configMap": {"name": "cm"}}]
    secret = decoded_protobuf(envelope("v1", "Secret", field(2, field(1, b"k") + field(2, b"\xff"))))
    assert secret["data"] == {"k": b64encode(b"\xff").decode()}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        MAGIC,
        MAGIC + b"\x0a\xff",
        envelope("v1", "Nosuch", b""),
        envelope("v1", "Pod", b"\xff" * 12),
        envelope("v1", "Pod", b"\x0d1234"),
        envelope("v1", "Namespace", field(2, field(15, b"x"))),
        envelope("v1", "ConfigMap", field(1, field(1, b"\xff"))),
        envelope("v1", "ConfigMap", field(15, b"x")),
    ],
)
def test_protobuf_with_faults_is_refused(body: bytes) -> None:
    with pytest.raises(Failure):
        decoded_protobuf(body)


def test_discovery_names_each_kind_once_and_in_both_forms() -> None:
    names = [(one.group, one.version, one.name) for one in RESOURCES]
    assert len(names) == len(set(names))
    core = resource_list(RESOURCES, "", "v1")
    assert core is not None
    assert {"pods", "pods/log", "services", "nodes", "namespaces"} <= {one["name"] for one in core["resources"]}
    assert {"apps", "batch", "kepd.dev", "metrics.k8s.io"} <= {one["name"] for one in group_list(RESOURCES)["groups"]}
    found = aggregated(RESOURCES, "v2", is_core=False)
    assert [one["metadata"]["name"] for one in found["items"]] == [
        one["name"] for one in group_list(RESOURCES)["groups"]
    ]
    assert resource_list(RESOURCES, "apps", "v9") is None


def test_documents_describe_what_may_be_written() -> None:
    assert document_v2(RESOURCES).startswith(b"\x0a\x032.0")
    assert b"kind: Deployment" in document_v2(RESOURCES)
    document = document_v3(RESOURCES, "", "v1")
    assert document is not None
    schemas = document["components"]["schemas"]
    assert schemas["core.part.Container"]["properties"]["image"] == {"type": "string"}
    assert document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]["parameters"]
    refs = [one for schema in schemas.values() for one in str(schema).split("'$ref': '")[1:]]
    assert all(one.partition("'")[0].removeprefix("#/components/schemas/") in schemas for one in refs)


def test_fields_and_pages_select() -> None:
    made = {"metadata": {"name": "a", "labels": {"x": "y"}}, "status": {"phase": "Running"}}
    assert Selection({"fieldSelector": "status.phase=Running,metadata.namespace!=b", "labelSelector": "x"}).holds(made)
    assert not Selection({"fieldSelector": "status.phase!=Running"}).holds(made)
    assert Selection({"fieldSelector": "metadata.name=a"}).name == "a"
    for query in ({"fieldSelector": "phase"}, {"labelSelector": "a=b=c"}):
        with pytest.raises(Failure):
            Selection(query)


def test_pages_have_each_object_once() -> None:
    """A namespace's name may begin with another's."""
    spaces = ("shop", "shop-a", "shop.b", "shopz", "a")
    keys = sorted((space, name) for space in spaces for name in ("a", "b-c", "b"))
    for limit in (1, 2, 3, 7):
        pages, token, left = [], "", -1
        while token or left:
            page, token, left = part_of(keys, {"limit": str(limit), "continue": token}, lambda key: key)
            pages.append(page)
        assert [key for page in pages for key in page] == keys
        assert {len(page) for page in pages[:-1]} == {limit}
    for query in ({"limit": "x"}, {"continue": "shop"}, {"continue": "/w==="}):
        with pytest.raises(Failure):
            part_of(keys, query, lambda key: key)


def test_a_row_begins_with_the_name_and_leaves_the_namespace_to_kubectl() -> None:
    cells = {"NAMESPACE": "n", "STATUS": "ok", "NAME": "a", "IP": "1.2.3.4"}
    columns = [Column[Object](title, lambda _, cell=cell: cell, wide=title == "IP") for title, cell in cells.items()]
    shown = {"metadata": {"name": "a"}}
    made = json.loads(msgspec.json.encode(table(columns, [row(columns, {}, shown, "Metadata", {})], {})))

    assert [one["name"] for one in made["columnDefinitions"]] == ["Name", "Status", "Ip"]
    assert made["columnDefinitions"][2]["priority"] == 1
    assert made["rows"][0]["cells"] == ["a", "ok", "1.2.3.4"]
    assert made["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_a_row_is_encoded_once_until_its_age_is_another() -> None:
    ages = ["1s"]
    columns = [Column[Object]("NAME", lambda made: made["name"]), Column[Object]("AGE", lambda _: ages[0])]
    told, cache = {"name": "a"}, {}
    first, again = (row(columns, told, told, "None", cache) for _ in range(2))
    ages[0] = "2s"
    older = row(columns, told, told, "None", cache)

    assert first is again
    assert json.loads(bytes(older)) == {"cells": ["a", "2s"]}


LABELS = {"a": "b"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "a", "image": "i"}]}}
OF_OTHERS: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "x"},
        "spec": {
            "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/srv/x", "type": "Directory"},
            "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "default", "name": "c"},
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "manual", "volumeMode": "Filesystem",
        },
    },
    {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "x"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "",
            "volumeMode": "Filesystem",
        },
    },
    {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "x"},
        "provisioner": "kepd.dev/directory", "parameters": LABELS, "reclaimPolicy": "Delete",
        "allowVolumeExpansion": True, "volumeBindingMode": "Immediate",
    },
    {
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "x"},
        "spec": {"replicas": 0, "selector": {"matchLabels": LABELS}, "template": TEMPLATE},
    },
    {
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "x"},
        "spec": {"replicas": 2, "selector": LABELS, "template": TEMPLATE},
    },
    {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": TEMPLATE},
    {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "x"}, "value": -5,
        "globalDefault": True, "description": "d", "preemptionPolicy": "Never",
    },
    {
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "x"},
        "spec": {"limits": [{"type": "Container", "max": {"cpu": "1"}, "default": {"memory": "1Gi"}}]},
    },
    {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "x"},
        "spec": {
            "hard": {"pods": "2"},
            "scopeSelector": {
                "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]
            },
        },
    },
)  # fmt: skip


@pytest.mark.parametrize("made", OF_OTHERS, ids=lambda made: str(made["kind"]))
def test_kinds_of_manifests_come_as_protobuf_too_and_are_taken(made: dict[str, Any]) -> None:
    raw = encoded_protobuf(made["kind"], made)
    read = decoded_protobuf(envelope(made["apiVersion"], made["kind"], raw))
    checked = check_file(ManifestFile("x.json", json.dumps(read).encode()))

    assert read == made
    assert not checked.findings

# SPDX-License-Identifier: Apache-2.0
"""What an API server does beside keeping objects: namespaces that end, names and numbers it chooses, what it always
has, what it lets nobody change, and ends that wait for others."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from packages.door.tests.door_process import DoorProcess, config_map
from tests.ports import take_port

CORE, MERGE = "/api/v1", "application/merge-patch+json"
MAPS = f"{CORE}/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DoorProcess]:
    with DoorProcess(tmp_path_factory.mktemp("d"), (take_port(), take_port())) as opened:
        yield opened


def inside(namespace: str, name: str, **data: str) -> dict[str, Any]:
    made = config_map(name, **data)
    made["metadata"]["namespace"] = namespace
    return made


def test_a_namespace_stays_while_it_is_empty_and_takes_what_is_in_it_along(door: DoorProcess) -> None:
    status, made = door.ask("POST", f"{CORE}/namespaces", {"metadata": {"generateName": "shop-", "labels": {"a": "b"}}})
    name = made["metadata"]["name"]
    assert (status, made["status"]["phase"], len(name)) == (201, "Active", len("shop-") + 5)
    assert made["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": name}
    place = f"{CORE}/namespaces/{name}"
    assert door.ask("GET", f"{place}/serviceaccounts/default")[1]["metadata"]["namespace"] == name
    assert "BEGIN CERTIFICATE" in door.ask("GET", f"{place}/configmaps/kube-root-ca.crt")[1]["data"]["ca.crt"]
    assert door.ask("POST", f"{place}/configmaps", inside(name, "one"))[0] == 201
    held = {**inside(name, "held"), "metadata": {"name": "held", "finalizers": ["example.org/hold"]}}
    assert door.ask("POST", f"{place}/configmaps", held)[0] == 201

    with closing(door.open()) as opened:
        version = door.ask("GET", f"{CORE}/namespaces")[1]["metadata"]["resourceVersion"]
        watch = door.watch(
            opened, f"{CORE}/namespaces?watch=1&resourceVersion={version}&fieldSelector=metadata.name={name}"
        )
        ending = door.ask("DELETE", place)[1]
        assert (ending["status"]["phase"], "deletionTimestamp" in ending["metadata"]) == ("Terminating", True)
        refused = door.ask("POST", f"{place}/configmaps", inside(name, "late"))
        assert (refused[0], refused[1]["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
        door.kepd.wait(lambda: door.ask("GET", f"{place}/configmaps/one")[0] == 404, "what nobody holds is gone")
        assert "deletionTimestamp" in door.ask("GET", f"{place}/configmaps/held")[1]["metadata"]
        let_go = door.ask("PATCH", f"{place}/configmaps/held", {"metadata": {"finalizers": None}}, kind=MERGE)
        assert let_go[0] == 200
        kinds = [json.loads(watch.readline())["type"] for _ in range(2)]
    assert kinds == ["MODIFIED", "DELETED"]
    assert door.ask("GET", place)[0] == 404


def test_the_usual_namespace_stays_and_its_account_is_made_again(door: DoorProcess) -> None:
    account = f"{CORE}/namespaces/default/serviceaccounts/default"
    assert door.ask("DELETE", f"{CORE}/namespaces/default")[0] == 403
    assert door.ask("DELETE", account)[0] == 200
    assert door.ask("GET", account)[0] == 200
    changed = door.ask("PATCH", account, {"metadata": {"labels": {"a": "b"}}}, kind=MERGE)
    assert (changed[0], door.ask("GET", account)[1]["metadata"]["labels"]) == (200, {"a": "b"})
    # What was written is gone, and what is always there is seen again.
    assert door.ask("DELETE", account)[0] == 200
    assert "labels" not in door.ask("GET", account)[1]["metadata"]


def test_the_authority_is_as_the_door_has_it_whatever_clients_write(door: DoorProcess) -> None:
    path = f"{MAPS}/kube-root-ca.crt"
    before = door.ask("GET", path)[1]["data"]
    assert door.ask("PATCH", path, {"data": {"ca.crt": ""}}, kind=MERGE)[1]["data"] == before
    assert door.ask("DELETE", path)[0] == 200
    assert door.ask("GET", path)[1]["data"] == before


def test_an_object_has_one_uid_from_its_answer_on_and_another_after_it_was_made_anew(door: DoorProcess) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    lease = {"metadata": {"name": "who"}, "spec": {"holderIdentity": "a"}}
    first = door.ask("POST", leases, lease)[1]["metadata"]
    changed = door.ask("PATCH", f"{leases}/who", {"spec": {"holderIdentity": "b"}}, kind=MERGE)[1]["metadata"]
    labelled = door.ask("PATCH", f"{leases}/who", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE)[1]["metadata"]
    assert [each["uid"] for each in (changed, labelled)] == [first["uid"]] * 2
    assert [each["generation"] for each in (first, changed, labelled)] == [1, 2, 2]
    assert first["creationTimestamp"].endswith("Z")
    assert labelled["creationTimestamp"] == first["creationTimestamp"]
    assert door.ask("DELETE", f"{leases}/who")[0] == 200
    assert door.ask("POST", leases, lease)[1]["metadata"]["uid"] != first["uid"]


def test_what_is_immutable_is_changed_by_nobody(door: DoorProcess) -> None:
    assert door.ask("POST", MAPS, {**config_map("fixed", a="b"), "immutable": True})[0] == 201
    for patch in ({"data": {"a": "c"}}, {"immutable": False}):
        status, said = door.ask("PATCH", f"{MAPS}/fixed", patch, kind=MERGE)
        assert (status, said["reason"]) == (422, "Invalid"), patch
    assert door.ask("PATCH", f"{MAPS}/fixed", {"metadata": {"labels": {"a": "b"}}}, kind=MERGE)[0] == 200


def test_the_node_has_a_lease_and_shows_what_pods_may_have(door: DoorProcess) -> None:
    node = door.ask("GET", f"{CORE}/nodes")[1]["items"][0]
    lease = door.ask("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")[1]["items"][0]
    assert set(node["status"]["capacity"]) == {"cpu", "memory", "pods", "ephemeral-storage"}
    assert lease["spec"]["holderIdentity"] == node["metadata"]["name"]
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


def test_classes_and_ingresses_are_kept_with_the_status_that_others_write(door: DoorProcess) -> None:
    net, nodes = "/apis/networking.k8s.io/v1", "/apis/node.k8s.io/v1/runtimeclasses"
    assert door.ask("POST", nodes, {"metadata": {"name": "bad"}, "handler": "No_Name"})[0] == 422
    assert door.ask("POST", nodes, {"metadata": {"name": "runc"}, "handler": "runc"})[0] == 201
    ingresses = f"{net}/namespaces/default/ingresses"
    made = door.ask("POST", ingresses, {"metadata": {"name": "way"}, "spec": {"rules": [{"host": "a.example"}]}})
    assert made[0] == 201
    told = {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}}
    status, changed = door.ask("PATCH", f"{ingresses}/way/status", told, kind=MERGE)
    assert (status, changed["status"]) == (200, told["status"])
    assert door.ask("GET", f"{ingresses}/way")[1]["status"] == told["status"]
    stale = {**made[1], "status": {}}
    assert door.ask("PUT", f"{ingresses}/way/status", stale)[1]["reason"] == "Conflict"


def test_who_may_only_read_reaches_no_pod_by_a_proxy(door: DoorProcess) -> None:
    path = f"{CORE}/namespaces/default/services/kubernetes/proxy/"
    assert door.ask("GET", path, level="read")[0] in (403, 404)

# SPDX-License-Identifier: Apache-2.0
"""Manifests as other people have them: dumps of a cluster, and older kinds."""

import json
from itertools import permutations
from typing import Any

import pytest

from agent.cli.objects.manifest_files import CheckedFile, ManifestFile, check_file

SPEC: dict[str, Any] = {"containers": [{"name": "a", "image": "i"}]}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}
OWN: dict[str, Any] = {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}


def made(kind: str, version: str, name: str, spec: Any, owner: tuple[str, str] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}]
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def checked(*objects: Any) -> CheckedFile:
    return check_file(ManifestFile("f.yaml", "\n---\n".join(map(json.dumps, objects)).encode()))


def names(file: CheckedFile) -> set[str]:
    assert not file.findings, file.findings
    return {f"{one.kind}/{one.name}" for one in file.objects}


DUMP = (
    made("Pod", "v1", "web-1-x", SPEC, ("ReplicaSet", "web-1")),
    made("ReplicaSet", "apps/v1", "web-1", OWN, ("Deployment", "web")),
    made("Deployment", "apps/v1", "web", OWN),
    made("Pod", "v1", "alone", SPEC, ("ReplicaSet", "elsewhere")),
)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_a_dump_what_another_object_makes_is_left_out(order: tuple[int, ...]) -> None:
    """Else a Deployment would have its pods twice. One whose owner is not in the file is a pod of its own."""
    file = checked(*(DUMP[place] for place in order), DUMP[3])

    assert names(file) == {"Deployment/web", "Pod/alone"}
    assert len(file.foreign) == 2


ENDPOINTS = {
    "apiVersion": "v1",
    "kind": "Endpoints",
    "metadata": {"name": "web"},
    "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}],
}


def test_endpoints_are_the_slice_that_they_mean() -> None:
    from agent.model.kube_objects import EndpointSlice
    from agent.objects.admitting import objects_in
    from agent.services.attach.manifests import SERVICE_READING, HintOptions, services_in

    in_force = objects_in({"/m/e.json": json.dumps(ENDPOINTS).encode()}, SERVICE_READING)
    found = services_in(in_force, HintOptions()).slices

    assert [one.endpoints[0].addresses for one in found if isinstance(one, EndpointSlice) and one.endpoints] == [
        ("192.0.2.1",)
    ]
    assert found[0].metadata.labels is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"subsets": []}, "subsets: has 0, and one can be taken"),
        ({"subsets": "x"}, "subsets: must be a list of maps"),
        ({"subsets": [{"addresses": [{"ip": "192.0.2.1", "ipp": 1}]}]}, "subsets[0].addresses[0].ipp: unknown field"),
        ({"subsets": [{"addresses": [{"ip": "x"}], "ports": [{"port": 80}]}]}, "x"),
        ({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 99999}]}]}, "99999"),
        ({"apiVersion": "v2"}, "apiVersion: must be v1 for Endpoints"),
    ],
)
def test_endpoints_with_a_fault_are_refused_by_its_path(change: dict[str, Any], said: str) -> None:
    assert any(said in str(one) for one in checked({**ENDPOINTS, **change}).findings)


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController"])
def test_old_sorts_of_workloads_are_taken(kind: str) -> None:
    version, selector = ("apps/v1", {"matchLabels": {"a": "b"}}) if kind == "ReplicaSet" else ("v1", {"a": "b"})
    good = made(kind, version, "web", {"replicas": 2, "selector": selector, "template": TEMPLATE})
    wrong = made(kind, version, "web", {"replicas": 999, "template": {"spec": SPEC}})

    assert names(checked(good)) == {f"{kind}/web"}
    assert {one.path for one in checked(wrong).findings} == {"spec.replicas", "spec.selector"}


@pytest.mark.parametrize("code", ["utf-16-le", "utf-16-be"])
def test_what_powershell_wrote_is_read(code: str) -> None:
    mark = "\ufeff".encode(code)
    text = json.dumps(DUMP[2])
    cut = check_file(ManifestFile("f.yaml", mark + text.encode(code)[:-1]))

    assert names(check_file(ManifestFile("f.yaml", mark + text.encode(code)))) == {"Deployment/web"}
    assert "is not UTF-8" in [one.text for one in cut.findings]


@pytest.mark.parametrize(
    ("version", "kind", "serves"),
    [
        ("autoscaling/v2", "HorizontalPodAutoscaler", "kepctl scale"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "kepctl kubeconfig --level"),
        ("networking.istio.io/v1", "VirtualService", "kepd runs no mesh"),
        ("monitoring.coreos.com/v1", "ServiceMonitor", "Prometheus"),
        ("storage.k8s.io/v1", "CSIDriver", "claims get directories"),
        # Of somebody else, though it is called like one of Kubernetes.
        ("serving.knative.dev/v1", "Service", "is not carried out here"),
    ],
)
def test_kinds_of_others_are_told_with_what_serves_and_hold_nothing_up(version: str, kind: str, serves: str) -> None:
    file = checked({"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, "spec": {}}, DUMP[2])

    assert names(file) == {"Deployment/web"}
    assert [serves in one.text for one in file.foreign] == [True]


def test_a_slip_of_the_pen_in_a_kind_of_ours_is_no_kind_of_others() -> None:
    file = checked({**DUMP[2], "apiVersion": "apps/v1beta1"}, {**DUMP[2], "kind": "Deploymant"})

    assert [one.path for one in file.findings] == ["apiVersion", "kind"]
    assert not file.foreign

# SPDX-License-Identifier: Apache-2.0
"""Services from files: what counts, what a broken edit does, and hints that nobody wrote."""

from agent.services.attach.manifests import SERVICE_READING, ServiceObjects, services_in
from agent.topology.hints.standalone import HintOptions
from tests.objects.looks import after

SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, annotations: {service.kubernetes.io/topology-mode: Auto}}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""
NODES = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata: {name: a, labels: {topology.kubernetes.io/zone: z1}}
  status: {allocatable: {cpu: "2"}, conditions: [{type: Ready, status: "True"}]}
- apiVersion: v1
  kind: Node
  metadata: {name: b, labels: {topology.kubernetes.io/zone: z2}}
  status: {allocatable: {cpu: "2"}, conditions: [{type: Ready, status: "True"}]}
"""


def slices(count: int, more: str = "") -> str:
    endpoints = ", ".join(
        f"{{addresses: [10.1.0.{number}], nodeName: {'ab'[number % 2]}, zone: z{number % 2 + 1}}}"
        for number in range(1, count + 1)
    )
    return (
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        "metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n"
        f"addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{endpoints}]\n{more}"
    )


def looked(*looks: dict[str, str]) -> ServiceObjects:
    named = [{f"/m/{name}.yaml": content.encode() for name, content in files.items()} for files in looks]
    return services_in(after(SERVICE_READING, *named), HintOptions())


def read(**files: str) -> ServiceObjects:
    return looked(files)


def test_objects_of_many_files_come_together_with_their_defaults() -> None:
    """IN-16."""
    found = read(a=SERVICE, b=slices(2), c=NODES)

    assert [one.metadata.namespace for one in found.services] == ["default"]
    assert [port.name for one in found.slices for port in one.ports or ()] == [""]
    assert [one.metadata.name for one in found.nodes] == ["a", "b"]
    assert found.findings == ()


def test_hints_are_filled_in_where_manifests_have_none() -> None:
    """TOP-47: half the CPU each, half the endpoints each."""
    found = read(a=SERVICE, b=slices(4), c=NODES)
    zones = [
        target.name
        for one in found.slices
        for endpoint in one.endpoints or ()
        for target in (endpoint.hints.for_zones if endpoint.hints is not None else None) or ()
    ]

    assert sorted(zones) == ["z1", "z1", "z2", "z2"]


def test_a_broken_file_keeps_its_last_good_content() -> None:
    """MAN-07."""
    found = looked({"a": SERVICE, "b": slices(2)}, {"a": "kind: [", "b": slices(2)})

    assert [one.metadata.name for one in found.services] == ["web"]
    assert found.findings[0].where.startswith("/m/a.yaml")


def test_a_wrong_field_keeps_the_last_good_version_of_its_object_alone() -> None:
    changed = {"a": SERVICE.replace("port: 80", "prot: 80"), "b": slices(3)}
    found = looked({"a": SERVICE, "b": slices(2)}, changed)

    assert [one.metadata.name for one in found.services] == ["web"]
    assert len(found.slices[0].endpoints or ()) == 3
    assert any('spec.ports[0].prot: unknown field; did you mean "port"?' in str(one) for one in found.findings)
    assert any("the last good version of Service default/web stays in force" in str(one) for one in found.findings)


def test_a_wrong_type_is_told_with_its_place() -> None:
    found = read(a=SERVICE.replace("port: 80", 'port: "80"'))

    assert found.services == ()
    assert "spec.ports[0].port" in str(found.findings[0])


def test_an_object_that_is_there_twice_is_taken_once() -> None:
    found = read(a=SERVICE, b=SERVICE.replace("10.96.0.10", "10.96.0.11"))

    assert [one.spec.cluster_ip for one in found.services] == ["10.96.0.10"]
    assert "is already in /m/a.yaml" in str(found.findings[0])


def test_a_removed_file_takes_its_objects_along() -> None:
    assert looked({"a": SERVICE, "b": slices(2)}, {"b": slices(2)}).services == ()


def test_other_kinds_are_for_others() -> None:
    found = read(a="apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: []}\n")

    assert (found.services, found.findings) == ((), ())

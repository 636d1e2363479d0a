# SPDX-License-Identifier: Apache-2.0
"""From JSON to values: recorded objects, hostile ones, and what is never built."""

import gc
import json
import weakref
from pathlib import Path

import pytest

from agent.drivers.kube import errors
from agent.drivers.kube.decoding import BookmarkLine, ChangeLine, Decoding
from agent.drivers.kube.resource import (
    ENDPOINT_SLICES,
    NODES,
    PODS,
    SERVICE_CIDRS,
    SERVICES,
    ChangeType,
    Malformed,
    ObjectKey,
    Resource,
)
from agent.model.kube_objects import HintsObject, HintTarget, Pod

RECORDINGS = Path(__file__).parent / "recordings"


def recorded(name: str) -> bytes:
    return (RECORDINGS / f"{name}.txt").read_bytes().partition(b"\n\n")[2]


def decoding_of(resource: Resource) -> Decoding:
    return Decoding(resource, lambda item: item)


def test_recorded_services_are_read_with_all_fields_that_count() -> None:
    page = decoding_of(SERVICES).page(recorded("list-services"))
    a, b, c, d = page.items

    assert (page.resource_version, page.continue_token, page.malformed) == ("31249", "", ())
    assert [(port.name, port.protocol, port.port) for port in a.spec.ports] == [("http", "TCP", 80), ("dns", "UDP", 53)]
    assert (b.spec.type, b.spec.ports[0].node_port, b.spec.session_affinity) == ("NodePort", 30293, "ClientIP")
    assert b.spec.session_affinity_config.client_ip.timeout_seconds == 10800
    assert (b.spec.internal_traffic_policy, c.spec.cluster_ip) == ("Local", "None")
    assert c.spec.ip_families == ("IPv4", "IPv6")
    assert (d.spec.external_traffic_policy, d.spec.health_check_node_port) == ("Local", 31503)
    assert d.spec.load_balancer_source_ranges == ("192.0.2.0/24",)
    assert d.metadata.creation_timestamp == "2026-11-20T09:17:14Z"


def test_recorded_slices_are_read() -> None:
    (recorded_slice,) = decoding_of(ENDPOINT_SLICES).page(recorded("list-endpointslices")).items
    first, second = recorded_slice.endpoints

    assert recorded_slice.metadata.labels.service_name == "a"
    assert (first.addresses, first.node_name) == (("10.1.0.1",), "node-1")
    assert second.hints == HintsObject((HintTarget("zone-b"),), (HintTarget("node-2"),))
    assert (second.conditions.ready, second.conditions.serving, second.conditions.terminating) == (False, True, True)


def test_recorded_node_is_read() -> None:
    (node,) = decoding_of(NODES).page(recorded("list-nodes")).items

    assert node.metadata.labels["topology.kubernetes.io/zone"] == "zone-a"
    assert [(address.type, address.address) for address in node.status.addresses] == [("InternalIP", "10.255.0.1")]
    assert node.spec.taints[0].key == "node.kubernetes.io/not-ready"


def test_recorded_error_event_is_raised() -> None:
    with pytest.raises(errors.Expired, match="too old resource version: 1"):
        decoding_of(ENDPOINT_SLICES).event(recorded("watch-too-old"))


def test_recorded_page_token_is_read() -> None:
    page = decoding_of(SERVICES).page(recorded("list-services-limit2"))

    assert page.continue_token.startswith("eyJ2Ijoi")


def test_what_is_not_declared_is_not_built() -> None:
    """SY-12: neither managedFields nor the copy of the manifest that kubectl leaves in an annotation."""
    page = decoding_of(SERVICES).page(recorded("list-services"))

    assert "managedFields" not in repr(page.items)
    assert "last-applied" not in repr(page.items)


def event(change: str, **parts: object) -> bytes:
    return json.dumps({"type": change, "object": parts}).encode()


def test_pod_is_read_with_images_in_every_place() -> None:
    """IMG-S21."""
    spec = {
        "nodeName": "n",
        "initContainers": [{"name": "i", "image": "init", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "main", "imagePullPolicy": "Always", "resources": {}}],
        "volumes": [{"name": "v", "image": {"reference": "vol"}}, {"name": "e", "emptyDir": {}}],
        "imagePullSecrets": [{"name": "s"}],
    }
    meta = {"name": "p", "namespace": "d", "uid": "u", "resourceVersion": "5"}
    step = decoding_of(PODS).event(event("ADDED", metadata=meta, spec=spec, status={"phase": "Pending"}))

    assert isinstance(step, ChangeLine)
    pod: Pod = step.news.object
    assert pod.spec.init_containers[0].image == "init"
    assert [volume.image and volume.image.reference for volume in pod.spec.volumes] == ["vol", None]
    assert (pod.status.phase, pod.spec.image_pull_secrets[0].name) == ("Pending", "s")


def test_service_cidr_is_read() -> None:
    step = decoding_of(SERVICE_CIDRS).event(event("ADDED", metadata={"name": "k"}, spec={"cidrs": ["10.96.0.0/12"]}))

    assert step.news.object.spec.cidrs == ("10.96.0.0/12",)


@pytest.mark.parametrize(
    ("resource", "rest"),
    [
        (SERVICES, {"spec": {}, "status": {"loadBalancer": {}}}),
        (ENDPOINT_SLICES, {"addressType": "", "endpoints": None, "ports": None}),
        (NODES, {"spec": {}, "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}}}),
    ],
)
def test_bookmark_of_any_kind_is_read(resource: Resource, rest: dict) -> None:
    meta = {"resourceVersion": "9", "creationTimestamp": None, "annotations": {"k8s.io/initial-events-end": "true"}}

    assert decoding_of(resource).event(event("BOOKMARK", metadata=meta, **rest)) == BookmarkLine(
        "9", ends_initial_events=True
    )
    bare = event("BOOKMARK", metadata={"resourceVersion": "9"}, **rest)
    assert decoding_of(resource).event(bare) == BookmarkLine("9", ends_initial_events=False)


HOSTILE = [
    ({"ports": "none"}, "spec.ports: expected"),
    ({"ports": [{"port": "80"}]}, "spec.ports[0].port: expected int, got str"),
    ({"ports": [{}]}, "spec.ports[0]: object missing required field port"),
    ({"clusterIPs": [1]}, "spec.clusterIPs[0]: expected str, got int"),
    ({"type": None}, "spec.type: expected str, got null"),
    ({"externalIPs": {}}, "spec.externalIPs: expected"),
    (
        {"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1.5}}},
        "spec.sessionAffinityConfig.clientIP.timeoutSec",
    ),
]


@pytest.mark.parametrize(("spec", "text"), HOSTILE)
def test_hostile_object_is_blamed_with_its_field(spec: dict, text: str) -> None:
    step = decoding_of(SERVICES).event(event("MODIFIED", metadata={"name": "x", "resourceVersion": "3"}, spec=spec))

    assert isinstance(step.news, Malformed)
    assert step.news.key == ObjectKey("", "x")
    assert step.news.text.startswith(text)
    assert step.resource_version == "3"


def test_deletion_of_a_hostile_object_is_known_as_such() -> None:
    step = decoding_of(SERVICES).event(event("DELETED", metadata={"name": "x"}, spec={"ports": 1}))

    assert step.news.is_gone


def test_change_type_is_kept() -> None:
    step = decoding_of(SERVICES).event(event("DELETED", metadata={"name": "x"}))

    assert step.news.change is ChangeType.DELETED


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{"metadata":7}}',
        b"\xff\xfe",
        b"{" * 9,
    ],
)
def test_line_that_is_no_event_is_unreadable(line: bytes) -> None:
    with pytest.raises(errors.AnswerUnreadable):
        decoding_of(SERVICES).event(line)


def test_objects_nested_without_end_are_unreadable_not_a_crash() -> None:
    bottomless = b'{"type":"ADDED","object":{"metadata":{"name":"x"},"spec":' + b"[" * 100_000
    with pytest.raises(errors.AnswerUnreadable):
        decoding_of(SERVICES).event(bottomless)


def test_list_without_items_is_empty() -> None:
    assert decoding_of(SERVICES).page(b'{"metadata":{"resourceVersion":"1"},"items":null}').items == []


class Body(bytearray):
    """Text whose end can be observed."""


@pytest.mark.parametrize("spec", [{}, {"ports": "bad"}])
def test_text_of_an_answer_is_not_kept_alive_by_what_was_read_from_it(spec: dict) -> None:
    """SY-12: no raw objects, neither on the quick path nor where one object is to blame."""
    items = [{"metadata": {"name": "a", "namespace": "b"}, "spec": each} for each in ({"clusterIP": "10.0.0.1"}, spec)]
    body = Body(json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode())
    line = Body(event("ADDED", **items[1]))
    alive = [weakref.ref(body), weakref.ref(line)]
    page, step = decoding_of(SERVICES).page(body), decoding_of(SERVICES).event(line)
    del body, line
    gc.collect()

    assert [reference() for reference in alive] == [None, None]
    assert page.items[0].spec.cluster_ip == "10.0.0.1"
    assert step.key == ObjectKey("b", "a")

# SPDX-License-Identifier: Apache-2.0
"""Manifests in, values and complaints out."""

import copy

import pytest

from agent.model.nodes.node import ZONE_LABEL, NodeTerm, Toleration
from agent.model.quantity import parse_quantity
from agent.model.selector import LabelSelector, Requirement
from agent.topology.hints.mode import LEGACY_ANNOTATION
from agent.topology.hints.slices import Hints
from agent.topology.manifest.objects import Document, read_manifests
from tests.topology.builders import (
    constraint_manifest,
    node_manifest,
    pod_manifest,
    service_manifest,
    slice_manifest,
)

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def read(*contents):
    return read_manifests(Document(f"f.yaml:{number}", content) for number, content in enumerate(contents, 1))


def changed(manifest, path, value):
    """A copy with one field set; `path` has names and positions."""
    result = copy.deepcopy(manifest)
    inner = result
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return result


def complaint(manifest):
    """The only error there is, as a line."""
    result = read(manifest)

    assert len(result.errors) == 1, [str(error) for error in result.errors]
    return str(result.errors[0])


def test_an_endpoint_slice_is_read_with_its_conditions_and_hints():
    """A3, A8."""
    manifest = slice_manifest("ab")
    manifest["endpoints"][0] |= {
        "conditions": {"ready": False, "serving": True, "terminating": True},
        "nodeName": "n1",
        "hostname": "h",
        "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-1", "uid": "1"},
        "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n1"}]},
    }
    result = read(manifest).slices[0]
    first, second = result.slice.endpoints

    assert (result.namespace, result.service, result.family, result.slice.name) == ("default", "web", "IPv4", "web-1")
    assert (first.ready, first.serving, first.terminating) == (False, True, True)
    assert (first.node, first.hostname, first.target) == ("n1", "h", "Pod/default/web-1/1")
    assert first.hints == Hints(("a",), ("n1",))
    assert (second.ready, second.serving, second.hints) == (True, None, None)


def test_a_sparse_node_is_completed_and_every_assumption_is_reported():
    """TOP-50: nothing is guessed silently."""
    sparse = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {ZONE_LABEL: "a"}}}
    sparse["status"] = {"capacity": {"cpu": "8"}}
    result = read(sparse)

    assert (result.nodes[0].ready, result.nodes[0].cpu) == ("True", parse_quantity("8"))
    assert [(note.path, "missing" in note.text) for note in result.notes] == [
        ("status.conditions", True),
        ("status.allocatable.cpu", True),
    ]
    assert result.errors == ()


def test_a_node_without_any_cpu_or_zone_is_read_and_reported():
    """TOP-8: it will refuse hints for everybody, so it is said early."""
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    result = read(bare)

    assert result.nodes[0].cpu is None
    assert [note.path for note in result.notes] == [
        f"metadata.labels[{ZONE_LABEL}]",
        "status.conditions",
        "status.allocatable.cpu",
    ]


def test_a_pod_is_read():
    """TOP-60, TOP-67, TOP-72."""
    manifest = pod_manifest(
        "web-1",
        "n1",
        topologySpreadConstraints=[constraint_manifest(minDomains=2, matchLabelKeys=["rev"], nodeTaintsPolicy="Honor")],
        nodeSelector={"pool": "x"},
        tolerations=[{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}],
        affinity={
            "podAffinity": {},
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "size", "operator": "Gt", "values": ["4"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
                        }
                    ]
                }
            },
        },
    )
    manifest["metadata"] |= {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "1"},
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "2", "controller": True},
        ],
    }
    manifest["status"] = {"phase": "Running", "podIP": "10.0.0.1"}
    result = read(manifest)
    pod = result.pods[0]

    assert result.errors == ()
    assert (pod.key, pod.node_name, pod.phase, pod.is_terminating) == ("default/web-1", "n1", "Running", True)
    assert pod.owner == ("ReplicaSet", "web")
    assert pod.node_selector == {"pool": "x"}
    assert pod.tolerations == (Toleration("k", "Exists", "", "NoExecute"),)
    assert pod.required_terms == (
        NodeTerm((Requirement("size", "Gt", ("4",)),), (Requirement("metadata.name", "In", ("n1",)),)),
    )
    constraint = pod.constraints[0]
    assert (constraint.max_skew, constraint.min_domains, constraint.match_label_keys) == (1, 2, ("rev",))
    assert (constraint.label_selector, constraint.node_taints_policy) == (LabelSelector({"app": "web"}), "Honor")


def test_an_old_replication_controller_selects_by_a_plain_map():
    """TOP-63."""
    manifest = {
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {"name": "web"},
        "spec": {"template": {"metadata": {"labels": {"app": "web"}}, "spec": {}}},
    }

    assert read(manifest).workloads[0].selector == LabelSelector({"app": "web"})
    assert read(changed(manifest, ["spec", "selector"], {"a": "b"})).workloads[0].selector == LabelSelector({"a": "b"})


def test_lists_are_taken_apart_and_their_items_keep_a_place_of_their_own():
    """What `kubectl get -o yaml` prints can be used as it is."""
    mixed = {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [node_manifest("n1"), service_manifest()]}
    typed = {"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "p"}, "spec": {"nodeNam": "x"}}]}
    result = read(mixed, typed)

    assert (len(result.nodes), len(result.services)) == (1, 1)
    assert [str(error) for error in result.errors] == [
        'f.yaml:2 items[0]: spec.nodeNam: unknown field; did you mean "nodeName"?'
    ]


BAD = {
    "unknown field of a constraint": (
        pod_manifest(topologySpreadConstraints=[constraint_manifest(maxskew=2)]),
        "spec.topologySpreadConstraints[0].maxskew",
        'did you mean "maxSkew"',
    ),
    "unknown field of a pod": (
        pod_manifest(topologySpreadConstraint=[]),
        "spec.topologySpreadConstraint",
        "did you mean",
    ),
    "unknown field of a service": (
        service_manifest(trafficdistribution="x"),
        "spec.trafficdistribution",
        "did you mean",
    ),
    "unknown field of a node": (
        changed(node_manifest("n"), ["spec", "taint"], []),
        "spec.taint",
        'did you mean "taints"',
    ),
    "unknown field of an endpoint": (
        changed(slice_manifest("a"), ["endpoints", 0, "zoneName"], "a"),
        "endpoints[0].zoneName",
        "unknown field",
    ),
    "unknown condition": (
        changed(slice_manifest("a"), ["endpoints", 0, "conditions", "Ready"], True),
        "endpoints[0].conditions.Ready",
        'did you mean "ready"',
    ),
    "unknown metadata": (changed(service_manifest(), ["metadata", "label"], {}), "metadata.label", "did you mean"),
    "unknown selector field": (
        pod_manifest(topologySpreadConstraints=[constraint_manifest(labelSelector={"matchLabel": {}})]),
        "spec.topologySpreadConstraints[0].labelSelector.matchLabel",
        "did you mean",
    ),
    "negative CPU": (node_manifest("n", cpu="-1"), "status.allocatable.cpu", "not negative"),
    "CPU that is no quantity": (node_manifest("n", cpu="four"), "status.allocatable.cpu", "not a quantity"),
    "CPU that is a flag": (node_manifest("n", cpu=True), "status.allocatable.cpu", "quantity"),
    "bad address type": (changed(slice_manifest("a"), ["addressType"], "ipv4"), "addressType", "IPv4"),
    "no address": (
        changed(slice_manifest("a"), ["endpoints", 0, "addresses"], []),
        "endpoints[0].addresses",
        "at least one",
    ),
    "nine zone hints": (
        changed(slice_manifest("a"), ["endpoints", 0, "hints"], {"forZones": [{"name": str(n)} for n in range(9)]}),
        "endpoints[0].hints.forZones",
        "at most 8",
    ),
    "nine node hints": (
        changed(slice_manifest("a"), ["endpoints", 0, "hints"], {"forNodes": [{"name": str(n)} for n in range(9)]}),
        "endpoints[0].hints.forNodes",
        "at most 8",
    ),
    "ready that is a string": (
        changed(slice_manifest("a"), ["endpoints", 0, "conditions", "ready"], "yes"),
        "endpoints[0].conditions.ready",
        "true or false",
    ),
    "zone that is a number": (
        changed(slice_manifest("a"), ["endpoints", 0, "zone"], 1),
        "endpoints[0].zone",
        "in quotes",
    ),
    "label that is a number": (
        changed(pod_manifest(), ["metadata", "labels"], {"rev": 1}),
        "metadata.labels[rev]",
        "in quotes",
    ),
    "bad label value": (
        changed(pod_manifest(), ["metadata", "labels"], {"rev": "a b"}),
        "metadata.labels[rev]",
        "label value",
    ),
    "ready status": (
        changed(node_manifest("n"), ["status", "conditions"], [{"type": "Ready", "status": "true"}]),
        "status.conditions[0].status",
        "Unknown",
    ),
    "taint without a key": (node_manifest("n", taints=[{"effect": "NoSchedule"}]), "spec.taints[0].key", "expected"),
    "bad taint effect": (
        node_manifest("n", taints=[{"key": "k", "effect": "Never"}]),
        "spec.taints[0].effect",
        "PreferNoSchedule",
    ),
    "no name": (changed(service_manifest(), ["metadata"], {}), "metadata.name", "missing"),
    "no node name": (changed(node_manifest("n"), ["metadata", "name"], ""), "metadata.name", "the name of the node"),
    "old API version": (
        changed(slice_manifest("a"), ["apiVersion"], "discovery.k8s.io/v1beta1"),
        "apiVersion",
        "discovery.k8s.io/v1",
    ),
    "maxSkew that is a string": (
        pod_manifest(topologySpreadConstraints=[constraint_manifest(minDomains="2")]),
        "spec.topologySpreadConstraints[0].minDomains",
        "whole number",
    ),
    "constraint refused by the API server": (
        pod_manifest(topologySpreadConstraints=[constraint_manifest(maxSkew=0)]),
        "spec.topologySpreadConstraints[0].maxSkew",
        "from 1",
    ),
    "constraints that are no list": (
        pod_manifest(topologySpreadConstraints={}),
        "spec.topologySpreadConstraints",
        "a list",
    ),
    "constraint that is not a mapping": (
        pod_manifest(topologySpreadConstraints=["x"]),
        "spec.topologySpreadConstraints[0]",
        "a mapping",
    ),
    "spec that is not a mapping": (changed(pod_manifest(), ["spec"], []), "spec", "a mapping"),
    "labels that are no mapping": (changed(pod_manifest(), ["metadata", "labels"], []), "metadata.labels", "a mapping"),
    "values that are no strings": (
        pod_manifest(
            topologySpreadConstraints=[
                constraint_manifest(
                    labelSelector={"matchExpressions": [{"key": "a", "operator": "In", "values": ["x", 1]}]}
                )
            ]
        ),
        "labelSelector.matchExpressions[0].values[1]",
        "in quotes",
    ),
    "bad node selector term": (
        pod_manifest(
            affinity={
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}]
                    }
                }
            }
        ),
        "nodeSelectorTerms[0].matchExpressions[0]",
        "cannot be used",
    ),
    "bad field selector": (
        pod_manifest(
            affinity={
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [{"matchFields": [{"key": "spec", "operator": "In", "values": ["x"]}]}]
                    }
                }
            }
        ),
        "nodeSelectorTerms[0].matchFields[0]",
        "metadata.name",
    ),
    "no node selector term": (
        pod_manifest(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}),
        "nodeSelectorTerms",
        "at least one",
    ),
    "bad toleration operator": (
        pod_manifest(tolerations=[{"key": "k", "operator": "exists"}]),
        "spec.tolerations[0].operator",
        "Equal or Exists",
    ),
    "toleration without a key": (pod_manifest(tolerations=[{"value": "v"}]), "spec.tolerations[0].operator", "Exists"),
    "toleration with a value too many": (
        pod_manifest(tolerations=[{"key": "k", "operator": "Exists", "value": "v"}]),
        "spec.tolerations[0].value",
        "no value",
    ),
    "bad toleration effect": (
        pod_manifest(tolerations=[{"key": "k", "operator": "Exists", "effect": "Never"}]),
        "spec.tolerations[0].effect",
        "NoExecute",
    ),
    "a list without items": ({"apiVersion": "v1", "kind": "List"}, "items", "a list"),
    "no kind": ({"apiVersion": "v1"}, "kind", "not a kind"),
    "no object": ("hello", "", "not an object"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_with_place_value_and_what_is_right(case):
    """Wrong input is told, never guessed at."""
    manifest, path, words = BAD[case]
    line = complaint(manifest)

    assert line.startswith("f.yaml:1: ")
    assert path in line
    assert words in line
    assert "\n" not in line


def test_the_same_object_twice_is_an_error_that_names_both_places():
    """Which of them counts would be a guess."""
    result = read(node_manifest("n1"), node_manifest("n1", zone="b"))

    assert [node.zone for node in result.nodes] == ["a"]
    assert str(result.errors[0]).startswith("f.yaml:2: metadata.name: Node n1 exists twice, first in f.yaml:1")


def test_other_kinds_are_noted_with_a_guess_at_the_spelling():
    """A ConfigMap is no error, and a Servce is not passed over in silence."""
    result = read({"apiVersion": "v1", "kind": "ConfigMap"}, {"apiVersion": "v1", "kind": "Servce"}, None)

    assert result.errors == ()
    assert [note.where for note in result.notes] == ["f.yaml:1", "f.yaml:2"]
    assert 'did you mean "Service"' in result.notes[1].text


def test_warnings_of_the_api_server_are_notes():
    """TOP-3, TOP-83."""
    result = read(
        service_manifest(annotations={LEGACY_ANNOTATION: "Auto"}),
        pod_manifest(topologySpreadConstraints=[constraint_manifest(labelSelector=None)]),
        pod_manifest("other", tolerations=[{"key": "k", "operator": "Gt", "value": "1"}]),
    )

    assert result.errors == ()
    assert [note.path for note in result.notes] == [
        f"metadata.annotations[{LEGACY_ANNOTATION}]",
        "spec.topologySpreadConstraints[0]",
        "spec.tolerations[0].operator",
    ]


@pytest.mark.parametrize("junk", [0, 1.5, True, "x", [], {}, [[]], {"a": {"b": []}}, {1: 2}])
@pytest.mark.parametrize(
    "manifest", [pod_manifest, service_manifest, lambda: node_manifest("n"), lambda: slice_manifest("a")]
)
def test_junk_in_any_field_is_a_finding_and_never_a_crash(manifest, junk):
    """Whatever a file contains, the answer is a list of findings."""
    whole = manifest()
    for path in _paths(whole):
        read(changed(whole, path, copy.deepcopy(junk)))


def _paths(value, prefix=()):
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*prefix, step)
        yield from _paths(inner, (*prefix, step))


def test_a_pod_that_a_server_had_has_keys_of_its_labels_in_the_selector_already():
    """An API server writes `matchLabelKeys` out into the selector when a pod is made, and keeps both."""
    selector = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [{"key": "rev", "operator": "In", "values": ["7"]}],
    }
    pod = pod_manifest(topologySpreadConstraints=[constraint_manifest(labelSelector=selector, matchLabelKeys=["rev"])])
    pod["metadata"]["labels"]["rev"] = "7"
    written = read(pod)
    stored = read(changed(pod, ["metadata", "resourceVersion"], "12"))

    assert "only one of the two" in written.errors[0].text
    assert stored.errors == ()
    assert stored.pods[0].constraints[0].match_label_keys == ()


def test_preferred_node_affinity_is_read_with_its_weights():
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    term = {"weight": 7, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    (pod,) = read(pod_manifest(affinity={"nodeAffinity": {preferred: [term]}})).pods

    assert pod.preferred_terms == ((7, NodeTerm((Requirement("disk", "Exists"),))),)

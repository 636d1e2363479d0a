# SPDX-License-Identifier: Apache-2.0
"""Pods that are meant for other nodes, among manifests that nodes share."""

from pathlib import Path
from typing import Any

import pytest

from agent.pods.manifest.validation.pod import check_pod
from agent.pods.plan.admit import labels_of_node, why_not_here
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, manifest, running
from tests.pods.pods import make_pod

LABELS = {"zone": "a", "cores": "8", "kubernetes.io/hostname": "n"}


def required(*terms: Any) -> dict[str, Any]:
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {key: {"nodeSelectorTerms": list(terms)}}}


def expressions(*given: tuple[str, str, list[str]]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": word, "values": values} for key, word, values in given]}


@pytest.mark.parametrize(
    ("spec", "is_here"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "disk": "ssd"}}, False),
        ({"affinity": required(expressions(("zone", "In", ["a", "b"])))}, True),
        ({"affinity": required(expressions(("zone", "In", ["b"])))}, False),
        ({"affinity": required(expressions(("zone", "In", ["b"])), expressions(("cores", "Gt", ["4"])))}, True),
        ({"affinity": required(expressions(("zone", "In", ["a"]), ("cores", "Lt", ["8"])))}, False),
        ({"affinity": required(expressions(("zone", "Gt", ["4"])))}, False),
        ({"affinity": required(expressions(("disk", "NotIn", ["ssd"]), ("disk", "DoesNotExist", [])))}, True),
        ({"affinity": required(expressions(("disk", "Exists", [])))}, False),
        ({"affinity": required({})}, False),
        ({"affinity": required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})}, True),
        ({"affinity": required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["o"]}]})}, False),
        ({"nodeSelector": {"zone": "a"}, "affinity": required(expressions(("zone", "In", ["b"])))}, False),
        ({"affinity": {"podAffinity": {"x": 1}, "nodeAffinity": {}}}, True),
    ],
)
def test_who_belongs_here(spec: dict[str, Any], is_here: bool) -> None:
    text = why_not_here(make_pod(**spec).spec, LABELS, "n")
    assert (not text) is is_here
    assert is_here or text.startswith("Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match")


def test_it_says_what_it_has_instead() -> None:
    spec = make_pod(nodeSelector={"zone": "b", "disk": "ssd"}).spec
    text = why_not_here(spec, LABELS, "n")
    assert "nodeSelector wants zone=b, which here is 'a'; nodeSelector wants disk=ssd, which here is not set" in text


def test_every_node_has_some_labels() -> None:
    found = labels_of_node("n", {"zone": "a", "kubernetes.io/os": "other"})
    assert found.keys() == {"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "zone"}
    assert (found["kubernetes.io/hostname"], found["kubernetes.io/os"]) == ("n", "other")


@pytest.mark.parametrize(
    ("affinity", "word"),
    [
        (required(), "at least one"),
        (required(expressions(("a", "Is", ["b"]))), "operator"),
        (required(expressions(("a", "In", []))), "values"),
        (required(expressions(("a", "Gt", ["1", "2"]))), "values"),
        (required(expressions(("a", "Exists", ["1"]))), "values"),
        (required({"matchFields": [{"key": "metadata.name", "operator": "Exists"}]}), "operator"),
    ],
)
def test_what_is_no_requirement_is_a_fault(affinity: dict[str, Any], word: str) -> None:
    found = check_pod(make_pod(affinity=affinity).spec)
    assert [one for one in found if word in str(one)]


async def test_it_is_refused_in_plain_sight(tmp_path: Path) -> None:
    """As a kubelet refuses it: Failed, with the reason; whoever belongs here runs."""
    other = manifest("other").replace(b"spec:", b"spec:\n  nodeSelector: {zone: elsewhere}", 1)
    manifests = FakeManifestDirectory({"/m/a.yaml": other, "/m/b.yaml": manifest()})
    async with running(Slow(), manifests, tmp_path) as plane:
        await plane.until_phases(other="Failed", web="Running")
        shown = plane.pod("other-n")
        assert (shown.reason, "zone=elsewhere" in shown.message) == ("NodeAffinity", True)
        assert len([one for one in plane.events if one.reason == "NodeAffinity"]) == 1
        manifests.put("/m/a.yaml", manifest("other"))
        await plane.until_phases(other="Running", web="Running")

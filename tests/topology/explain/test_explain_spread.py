# SPDX-License-Identifier: Apache-2.0
"""Explanations of spread: domains, nodes, scores, what to change."""

import msgspec
import pytest

from agent.model.nodes.node import HOSTNAME_LABEL, ZONE_LABEL
from agent.topology.explain.documents import NotThereError, explain_spread, plan_for_pod
from agent.topology.manifest.objects import Document, read_manifests
from agent.topology.spread.filter import AS_IT_IS, WhatIf
from tests.topology.builders import constraint_manifest, node_manifest, pod_manifest, service_manifest

TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
NODES = (node_manifest("n1", "z1"), node_manifest("n2", "z2"), node_manifest("n3", "z3", taints=[TAINT]))
SPREAD = [constraint_manifest()]


def read(*contents):
    manifests = read_manifests(Document(f"f.yaml:{number}", content) for number, content in enumerate(contents))

    assert manifests.errors == ()
    return manifests


def explained(*contents, name="default/incoming", what_if=AS_IT_IS):
    return explain_spread(read(*contents), name, what_if)


def trap(**changes):
    """One pod in z1 and z2 each, nobody in z3, which is tainted."""
    incoming = pod_manifest(topologySpreadConstraints=[constraint_manifest(**changes)])
    return (*NODES, pod_manifest("web-1", "n1"), pod_manifest("web-2", "n2"), incoming)


def test_a_tainted_empty_zone_is_shown_to_pin_the_minimum():
    """Reference a=1, b=1, tainted c=0; TOP-75, TOP-93."""
    one = explained(*trap())

    assert one.exit_code == 1
    assert [(row.value, row.pods, row.skew_if_placed, row.nodes) for row in one.constraints[0].domains] == [
        ("z1", 1, 2, ("n1",)),
        ("z2", 1, 2, ("n2",)),
        ("z3", 0, 1, ("n3",)),
    ]
    assert one.constraints[0].domains[2].remark == (
        "no node here takes the pod (taint dedicated=x:NoSchedule); pins the minimum to 0"
    )
    assert [(node.excluded_by, node.detail, node.is_preemptible) for node in one.nodes] == [
        ("skew", "skew 2 > 1 (constraint 0)", True),
        ("skew", "skew 2 > 1 (constraint 0)", True),
        ("taint", "taint dedicated=x:NoSchedule is not tolerated", False),
    ]


def test_every_single_change_that_helps_is_offered_with_the_nodes_it_admits():
    """TOP-93."""
    changes = {change.text: change.admits for change in explained(*trap()).changes}

    assert changes == {
        "nodeTaintsPolicy: Honor, so that nodes the pod does not tolerate are not counted": ("n1", "n2"),
        f"maxSkew: 2 on constraint 0 ({ZONE_LABEL}), now 1": ("n1", "n2"),
        "tolerate or remove the taint of one of these nodes": ("n3",),
        "remove node n3, whose domain counts though the pod cannot go there": ("n1", "n2"),
        f"add a node that the pod may use, with a new value of {ZONE_LABEL}": (),
    }


def test_a_pod_that_fits_gets_no_suggestions():
    """TOP-93."""
    one = explained(*trap(nodeTaintsPolicy="Honor"))

    assert (one.candidates, one.changes, one.exit_code) == (("n1", "n2"), (), 0)


def test_a_domain_that_does_not_count_is_shown_with_the_cause():
    """TOP-85."""
    nodes = (*NODES, node_manifest("n4", "z4"), node_manifest("n5", "z5"))
    del nodes[4]["metadata"]["labels"][HOSTNAME_LABEL]
    incoming = pod_manifest(
        topologySpreadConstraints=[
            constraint_manifest(nodeTaintsPolicy="Honor"),
            constraint_manifest(topologyKey=HOSTNAME_LABEL),
        ],
        nodeSelector={HOSTNAME_LABEL: "n1"},
    )
    rows = {row.value: row for row in explained(*nodes, incoming).constraints[0].domains}

    assert [value for value, row in rows.items() if row.is_counted] == ["z1"]
    assert rows["z2"].remark == "not counted: node affinity does not match"
    assert rows["z5"].remark == f"not counted: label {HOSTNAME_LABEL} is missing"
    assert rows["z5"].nodes == ("n5",)


def test_a_domain_left_out_by_an_honored_taint_says_so():
    """TOP-85, TOP-65."""
    rows = explained(*trap(nodeTaintsPolicy="Honor")).constraints[0].domains

    assert rows[2].remark == "not counted: taint dedicated=x:NoSchedule is honored"


def test_the_constraint_is_shown_as_it_really_applies():
    """TOP-93: defaults filled in, selector as text, and the highest count that would still be allowed."""
    one = explained(*trap(matchLabelKeys=["app"], labelSelector={})).constraints[0]

    assert (one.min_domains, one.affinity_policy, one.taints_policy) == (1, "Honor", "Ignore")
    assert one.selector == "app=web"
    assert (one.domain_count, one.global_min, one.self_match, one.most_allowed) == (3, 0, 1, 0)


def test_min_domains_is_named_when_it_makes_the_minimum_zero():
    """TOP-93, TOP-68."""
    one = explained(
        *NODES[:2], pod_manifest("w1", "n1"), pod_manifest("w2", "n2"),
        pod_manifest(topologySpreadConstraints=[constraint_manifest(minDomains=5)]),
    )  # fmt: skip

    assert one.constraints[0].is_zeroed_by_min_domains
    assert ("minDomains: 2, the number of domains there are", ("n1", "n2")) in [
        (change.text, change.admits) for change in one.changes
    ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [({"unschedulable": True}, "uncordon"), ({"taints": [TAINT]}, "tolerate or remove the taint")],
)
def test_nodes_that_spread_would_allow_are_pointed_out(spec, words):
    """TOP-71."""
    one = explained(node_manifest("n1", **spec), pod_manifest())

    assert [change.admits for change in one.changes if words in change.text] == [("n1",)]


def test_a_node_affinity_in_the_way_is_pointed_out():
    """TOP-71."""
    one = explained(node_manifest("n1"), pod_manifest(nodeSelector={"pool": "x"}))

    assert "node affinity match" in one.changes[0].text
    assert one.nodes[0].detail == "nodeSelector or required node affinity does not match"


def test_a_cluster_without_nodes_needs_one():
    """TOP-93."""
    one = explained(pod_manifest())

    assert [change.text for change in one.changes] == ["add a node that the pod may use"]


def test_a_missing_label_is_told_with_its_key():
    """TOP-70."""
    one = explained(
        node_manifest("n1"), pod_manifest(topologySpreadConstraints=[constraint_manifest(topologyKey="rack")])
    )

    assert one.nodes[0].detail == "label rack is missing (constraint 0)"
    assert one.nodes[0].counts == (None,)


def test_a_cordoned_node_is_told():
    """TOP-74."""
    assert explained(node_manifest("n1", unschedulable=True), pod_manifest()).nodes[0].detail.startswith("spec.unsched")


def test_scores_come_best_first_and_with_the_weight_of_the_plugin():
    """TOP-80: among equals in node order."""
    soft = constraint_manifest(whenUnsatisfiable="ScheduleAnyway")
    one = explained(
        node_manifest("n1", "z1"), node_manifest("n2", "z2"), node_manifest("n3", "z3"),
        pod_manifest("w1", "n1"), pod_manifest(topologySpreadConstraints=[soft]),
    )  # fmt: skip

    assert [(row.node, row.raw, row.normalized, row.weighted) for row in one.scores] == [
        ("n2", 0, 100, 200),
        ("n3", 0, 100, 200),
        ("n1", 2, 0, 0),
    ]
    assert one.soft[0].counts == {"z1": 1, "z2": 0, "z3": 0}


def test_a_pod_that_runs_already_is_explained_without_counting_itself():
    """TOP-93: as if it were placed now."""
    one = explained(*NODES, pod_manifest("web-1", "n1", topologySpreadConstraints=SPREAD), name="default/web-1")

    assert one.constraints[0].domains[0].pods == 0
    assert "runs on n1" in one.notes[0].text


def deployment(kind="Deployment", **spec):
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": []} | spec},
        },
    }


def test_a_deployment_is_explained_by_its_template():
    """TOP-93: before there is a pod."""
    one = explained(*NODES, pod_manifest("w1", "n1"), deployment(topologySpreadConstraints=SPREAD), name="web")

    assert one.pod == "default/web"
    assert one.candidates == ("n2",)
    assert "pod-template-hash" in one.notes[0].text


def test_default_constraints_use_the_selector_of_the_owner():
    """TOP-63."""
    owned = pod_manifest()
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": True}
    ]
    one = explained(*NODES, deployment("ReplicaSet"), owned)

    assert one.source == "system-defaults"
    assert one.soft[0].constraint.topology_key == HOSTNAME_LABEL
    assert explained(*NODES, owned).source == "none"
    assert explained(*NODES, service_manifest(), pod_manifest()).source == "system-defaults"


def test_a_what_if_is_part_of_the_explanation():
    """TOP-86."""
    what_if = WhatIf(honors_taints=True)
    one = explained(*trap(), what_if=what_if)

    assert (one.what_if, one.candidates) == (what_if, ("n1", "n2"))


def test_dropping_a_node_that_is_not_there_is_an_error():
    """Exit code 2 with a line that helps."""
    with pytest.raises(NotThereError, match=r"no Node n9.*there are: n1, n2, n3"):
        explained(*trap(), what_if=WhatIf(dropped_nodes=frozenset({"n9"})))


def test_a_pod_that_is_not_there_is_told_with_some_that_are():
    """Exit code 2 with a line that helps."""
    with pytest.raises(NotThereError, match=r"no Pod or workload elsewhere/unrelated \(there are: default/p0, .*, …\)"):
        explained(*(pod_manifest(f"p{number}") for number in range(7)), name="elsewhere/unrelated")


def test_what_was_not_checked_is_said():
    """TOP-71."""
    assert "resources" in explained(*trap()).not_checked


def test_an_explanation_can_be_printed_as_json():
    """-o json."""
    assert msgspec.json.decode(msgspec.json.encode(explained(*trap())))["pod"] == "default/incoming"


def test_the_zone_plan_takes_the_only_pod_or_workload_there_is():
    """TOP-96."""
    plan = plan_for_pod(read(*NODES, deployment(topologySpreadConstraints=SPREAD)), range(1, 7))

    assert plan.placement == ("z1", "z2", "z3")
    with pytest.raises(NotThereError, match="exactly one"):
        plan_for_pod(read(*NODES, pod_manifest("a"), pod_manifest("b")), range(1, 7))

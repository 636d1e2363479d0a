# SPDX-License-Identifier: Apache-2.0
"""What controllers, budgets and an apply make of a change, where a plain count would be wrong."""

from typing import Any

import pytest

from kepd_rehearsal.plan.applying import rehearse_files, says_the_same
from kepd_rehearsal.plan.changes import BadChange, Change, parse_add_node, parse_scale, parse_traffic
from kepd_rehearsal.plan.reading import read_cluster
from kepd_rehearsal.plan.rehearse import Rehearsal, rehearse
from kepd_rehearsal.view.texts import faults_of
from packages.rehearsal.tests.clusters import SIX, WEB, budget, cluster, deployment, documents, node, service, template

Object = dict[str, Any]


def once(known: Any, change: Change) -> Rehearsal:
    return rehearse(known, [change])[0][0]


def unready(objects: list[Object], *names: str) -> list[Object]:
    for one in objects:
        if one["metadata"]["name"] in names:
            one["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    return objects


def stateful(count: int, **spec: Any) -> list[Object]:
    made = template("db", skew=None)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s", "controller": True}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    start = spec.get("ordinals", {}).get("start", 0)
    selector = {"matchLabels": {"app": "db"}}
    return [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
         "spec": {"replicas": count, "selector": selector, "serviceName": "db", "template": made, **spec}},
        *(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"db-{start + place}", "labels": {"app": "db"},
             "ownerReferences": [owner]}, "spec": {"nodeName": f"n{place}", **made["spec"]}, "status": ready}
            for place in range(count)
        ),
    ]  # fmt: skip


def daemons(*nodes: str, **spec: Any) -> list[Object]:
    made = template("agent", skew=None)
    made["spec"] |= spec
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "d", "controller": True}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
         "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": made}},
        *(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"agent-{name}", "labels": {"app": "agent"},
             "ownerReferences": [owner]}, "spec": {"nodeName": name, **made["spec"]}, "status": ready}
            for name in nodes
        ),
    ]  # fmt: skip


def test_an_apply_keeps_what_earlier_changes_did() -> None:
    _, known = rehearse(cluster(*WEB), [parse_scale("web=8"), parse_traffic("web=Local"), Change("lose-node", "n5")])
    told, after = rehearse_files(known, cluster(*SIX[:1], service("other")), ["f"])

    assert (told.ending, told.placed) == ((), ())
    assert [one.key for one in after.traffic] == ["default/web", "default/other"]
    assert after.traffic[0].is_internal_local
    assert "n5" not in {one.name for one in after.hosts}


def test_a_selector_that_chooses_nobody_makes_a_service_dark() -> None:
    edited = service("web", selector={"app": "wbe"})
    told, _ = rehearse_files(cluster(*WEB), cluster(edited), ["f"])

    assert (told.services[0].before.ready, told.services[0].after.ready) == (6, 0)
    assert faults_of([told], ["dark"])


def test_the_same_manifest_changes_nothing_whatever_defaults_a_server_added() -> None:
    stored = deployment("web", ["n0", "n1"])
    for one in stored[:2]:
        inner = one["spec"]["template"]["spec"]
        inner |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        inner["containers"][0] |= {"imagePullPolicy": "Always", "terminationMessagePath": "/dev/termination-log"}
    edited = deployment("web", ["n0", "n1"])[0]
    edited["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "0.5"
    told, _ = rehearse_files(cluster(*SIX, *stored), cluster(edited), ["f"])

    assert told.ending == ()
    assert not says_the_same({"env": [{"name": "A", "value": "2"}]}, {"env": [{"name": "A", "value": "1"}]})


def test_a_manifest_without_a_number_leaves_it_and_a_paused_one_is_not_rolled() -> None:
    edited = deployment("web", ["n0"], cpu="1")[0]
    del edited["spec"]["replicas"]
    edited["spec"]["paused"] = True
    told, after = rehearse_files(cluster(*WEB), cluster(edited), ["f"])

    assert (told.ending, len(after.members)) == ((), 6)


def test_each_service_has_its_own_worst_moment() -> None:
    """Two workloads that are made anew one after the other, all their pods at once."""
    known, edited = list(SIX), []
    for name in ("aa", "bb"):
        made = deployment(name, ["n0", "n1"], skew=None)
        new = deployment(name, ["n0", "n1"], skew=None, cpu="1")[0]
        for one in (made[0], new):
            one["spec"]["strategy"] = {"type": "Recreate"}
        known += [*made, service(name)]
        edited.append(new)
    told, _ = rehearse_files(cluster(*known), cluster(*edited), ["f"])

    assert [one.during.ready for one in told.services] == [0, 0]


def test_a_stateful_set_that_keeps_its_order_waits_for_each_pod() -> None:
    full = [node(f"n{place}", "a", cpu="500m") for place in range(2)]
    waits = once(cluster(*full, *stateful(2)), parse_scale("db=5"))
    parallel = once(cluster(*full, *stateful(2, podManagementPolicy="Parallel")), parse_scale("db=5"))

    assert [one.pod for one in waits.pending] == ["default/db-2"]
    assert len(parallel.pending) == 3


def test_a_roll_replaces_broken_pods_first() -> None:
    broken = unready(deployment("web", ["n0", "n1", "n2", "n3"], skew=None), *(f"web-1-{place}" for place in range(4)))
    told = once(cluster(*SIX, *broken, service("web")), Change("roll", "default/web"))

    assert (len(told.ending), told.services[0].after.ready) == (4, 4)


def test_a_stateful_set_rolls_from_its_highest_ordinal_by_the_same_names() -> None:
    told = once(cluster(*SIX, *stateful(3)), Change("roll", "default/db"))

    assert [one.pod for one in told.ending] == ["default/db-2", "default/db-1", "default/db-0"]
    assert [one.pod for one in told.placed] == ["default/db-2", "default/db-1", "default/db-0"]


@pytest.mark.parametrize(
    ("strategy", "ending"),
    [({"type": "OnDelete"}, []), ({"rollingUpdate": {"partition": 2}}, ["default/db-2"])],
)
def test_a_stateful_set_rolls_as_far_as_it_is_told(strategy: Object, ending: list[str]) -> None:
    told = once(cluster(*SIX, *stateful(3, updateStrategy=strategy)), Change("roll", "default/db"))

    assert [one.pod for one in told.ending] == ending


def test_ordinals_begin_where_they_are_told_to() -> None:
    told = once(cluster(*SIX, *stateful(2, ordinals={"start": 5})), parse_scale("db=3"))

    assert [one.pod for one in told.placed] == ["default/db-7"]


def test_a_daemon_set_rolls_in_place_and_comes_to_new_nodes_that_it_fits() -> None:
    known = cluster(*SIX, *daemons("n0", "n1"), service("agent"))
    told = once(known, Change("roll", "default/agent"))
    added = once(known, parse_add_node("LIKE=n0,zone=a")).services[0].after.ready
    picky = cluster(*SIX, *daemons("n0", nodeSelector={"gpu": "yes"}), service("agent"))

    assert [one.node for one in told.placed] == ["n1", "n0"]
    assert added == 3
    assert once(picky, parse_add_node("LIKE=n0,zone=a")).services[0].after.ready == 1
    new, _ = rehearse_files(cluster(*SIX, service("agent")), cluster(daemons()[0]), ["f"])
    assert new.services[0].after.ready == 6


def test_a_new_node_has_nothing_of_the_state_of_the_one_it_is_like() -> None:
    cordoned = node("n9", "z", taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
    known = cluster(cordoned, *deployment("web", [], skew=None))

    assert rehearse(known, [parse_add_node("LIKE=n9"), parse_scale("web=1")])[0][1].placed[0].node == "n9-like-1"


def test_nobody_counts_on_pods_that_end_already() -> None:
    made = deployment("web", ["n0", "n1", "n2"], skew=None)
    made[-1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert len(once(cluster(*SIX, *made), parse_scale("web=4")).placed) == 2
    assert once(cluster(*SIX, *made), Change("drain", "n2")).placed == ()


def test_a_drain_goes_in_waves_that_a_budget_lets_go() -> None:
    made = [*SIX, *deployment("web", ["n0", "n0", "n0"], skew=None), service("web")]
    told = once(cluster(*made, budget("web", minAvailable=2)), Change("drain", "n0"))
    never = once(cluster(*made, budget("web", minAvailable=3)), Change("drain", "n0"))
    both = once(cluster(*made, budget("web", minAvailable=1), budget("b", minAvailable=1)), Change("drain", "n0"))

    assert (told.services[0].during.ready, told.services[0].after.ready) == (2, 3)
    assert (never.ending, never.services[0].after.ready) == ((), 3)
    assert [(one.allowed, one.wanted) for one in never.held] == [(0, 3)]
    assert len(both.held) == 1


def test_pods_of_two_budgets_are_never_evicted() -> None:
    second = budget("web", minAvailable=1)
    second["metadata"]["name"] = "web-too"
    made = [*SIX, *deployment("web", ["n0", "n1", "n2"], skew=None), budget("web", minAvailable=1), second]
    told = once(cluster(*made), Change("drain", "n0"))

    assert [(one.budget, one.allowed) for one in told.held] == [("default/web, default/web-too", 0)]
    assert told.ending == ()


@pytest.mark.parametrize(("policy", "is_free"), [("AlwaysAllow", True), ("IfHealthyBudget", False)])
def test_unready_pods_go_where_the_policy_lets_them(policy: str, *, is_free: bool) -> None:
    made = unready(deployment("web", ["n0", "n1", "n2"], skew=None), "web-1-0")
    guard = budget("web", minAvailable=3, unhealthyPodEvictionPolicy=policy)

    assert (once(cluster(*SIX, *made, guard), Change("drain", "n0")).held == ()) is is_free
    enough = budget("web", minAvailable=2)
    assert once(cluster(*SIX, *made, enough), Change("drain", "n0")).held == ()


def test_gates_keep_a_pod_waiting_and_no_room_is_no_room() -> None:
    gated = {**template("web"), "apiVersion": "v1", "kind": "Pod"}
    gated["metadata"] = {"name": "gated", "labels": {"app": "web"}}
    gated["spec"] = {**gated["spec"], "schedulingGates": [{"name": "wait"}]}
    told = once(cluster(*SIX, gated), Change("drain", "n0"))
    full = node("full", "a")
    full["status"]["allocatable"]["pods"] = "0"

    assert [(one.why, one.has_waited) for one in told.pending] == [("it has scheduling gates", True)]
    assert faults_of([told], ["pending"]) == []
    assert once(cluster(full, *deployment("web", [])), parse_scale("web=1")).pending


def test_kinds_of_other_groups_and_numbers_beyond_all_bounds_are_told() -> None:
    knative = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"x": 1}}
    reading = read_cluster(documents(*WEB, knative))
    huge = deployment("web", [])[0]
    huge["spec"]["replicas"] = 30_000_000

    assert reading.errors == ()
    assert any("another kind" in one.text for one in reading.notes)
    assert "expected 0 to 10000" in str(read_cluster(documents(huge)).errors[0])


def test_what_cannot_be_rolled_or_scaled_is_told_by_its_kind() -> None:
    known = cluster(*SIX, *daemons("n0"))
    with pytest.raises(BadChange, match="default/agent is a DaemonSet; expected a Deployment"):
        once(known, parse_scale("agent=2"))

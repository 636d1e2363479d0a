# SPDX-License-Identifier: Apache-2.0
"""PriorityClasses, LimitRanges and ResourceQuotas at work, and what their manifests may say."""

from pathlib import Path
from typing import Any

import pytest

from agent.model.finding import Finding
from agent.objects.decoding import documents_of
from agent.pods.admission.objects import read_rule, rule_warnings
from agent.pods.plan.admit import priority_of
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, running
from tests.pods.run.test_workloads import deployment, until_ready

CLASS = """apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: NAME}
value: VALUE
"""
LIMITS = """apiVersion: v1
kind: LimitRange
metadata: {name: limits}
spec: {limits: [{type: Container, LIMITS}]}
"""
QUOTA = """apiVersion: v1
kind: ResourceQuota
metadata: {name: quota}
spec: {hard: {HARD}SCOPES}
"""
POD = """apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec: {containers: [{name: a, image: i, imagePullPolicy: IfNotPresent, resources: {RESOURCES}}]MORE}
"""


def pod(name: str, resources: str = "", more: str = "") -> bytes:
    return POD.replace("NAME", name).replace("RESOURCES", resources).replace("MORE", more).encode()


def quota(hard: str, scopes: str = "") -> bytes:
    return QUOTA.replace("HARD", hard).replace("SCOPES", scopes).encode()


def told(plane: Plane) -> dict[str, Any]:
    return dict(plane.runner.workloads.status(("ResourceQuota", "default", "quota")) or {})


@pytest.fixture
def cri() -> Slow:
    return Slow()


async def test_a_class_gives_its_pods_their_priority(cri: Slow, tmp_path: Path) -> None:
    high = CLASS.replace("NAME", "high").replace("VALUE", "1000").encode()
    usual = CLASS.replace("NAME", "usual").replace("VALUE", "7").encode() + b"globalDefault: true\n"
    files = FakeManifestDirectory({
        "/m/c": high + b"---\n" + usual, "/m/a": pod("a", more=", priorityClassName: high"), "/m/b": pod("b"),
        "/m/d": deployment(1, more="      priorityClassName: high\n"),
    })  # fmt: skip
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 4 - 1)
        found = {one.run.pod.manifest_name: priority_of(one.run.pod.spec) for one in plane.runner.keepers.values()}
        assert (found.pop("a"), found.pop("b")) == (1000, 7)
        assert [*found.values()] == [1000]


async def test_a_namespace_gives_its_containers_what_they_do_not_say(cri: Slow, tmp_path: Path) -> None:
    limits = LIMITS.replace("LIMITS", "default: {memory: 300Mi}, defaultRequest: {memory: 50Mi}").encode()
    files = FakeManifestDirectory({"/m/l": limits, "/m/a": pod("a"), "/m/b": pod("b", "limits: {memory: 600Mi}")})
    async with running(cri, files, tmp_path) as plane:
        await plane.until_phases(a="Running", b="Running")
        found = {
            one.run.pod.manifest_name: one.run.pod.spec.containers[0].resources for one in plane.runner.keepers.values()
        }
        assert (found["a"].requests, found["a"].limits) == ({"memory": "50Mi"}, {"memory": "300Mi"})
        assert (found["b"].requests, found["b"].limits) == ({}, {"memory": "600Mi"})


@pytest.mark.parametrize(
    ("limits", "resources", "said"),
    [
        ("min: {memory: 500Mi}", "requests: {memory: 1Mi}", "asks for 1Mi memory, and the namespace wants at least"),
        ("max: {cpu: 500m}", "limits: {cpu: 1}", "may use 1 cpu, and the namespace allows at most 500m"),
        ("max: {cpu: 500m}", "", "has no limit of cpu"),
        ("maxLimitRequestRatio: {cpu: 2}", "limits: {cpu: 3}, requests: {cpu: 1}", "more than 2 times the cpu"),
    ],
)
async def test_what_a_namespace_does_not_allow_waits(
    cri: Slow, tmp_path: Path, limits: str, resources: str, said: str
) -> None:
    files = FakeManifestDirectory({"/m/l": LIMITS.replace("LIMITS", limits).encode(), "/m/a": pod("a", resources)})
    async with running(cri, files, tmp_path, cpus=8) as plane:
        await plane.until(lambda: any(said in one.message for one in plane.events), "it is told")
        assert plane.phases == {"a-n": "Pending"}
        files.put("/m/l", None)
        await plane.until_phases(a="Running")


async def test_pods_beyond_a_quota_wait_until_others_end(cri: Slow, tmp_path: Path) -> None:
    files = FakeManifestDirectory({"/m/q": quota("pods: 2, secrets: 1"), "/m/a": pod("a"), "/m/b": pod("b")})
    async with running(cri, files, tmp_path) as plane:
        await plane.until_phases(a="Running", b="Running")
        files.put("/m/c", pod("c"))
        await plane.until(lambda: any("2 of 2 pods are used" in one.message for one in plane.events), "told")
        assert "ExceededQuota" in {event.reason for event in plane.events}
        assert told(plane) == {"hard": {"pods": "2", "secrets": "1"}, "used": {"pods": "2"}}
        files.put("/m/a", None)
        await plane.until_phases(b="Running", c="Running")


async def test_a_deployment_has_the_pods_that_the_quota_has_room_for(cri: Slow, tmp_path: Path) -> None:
    """However many it asks for."""
    files = FakeManifestDirectory({"/m/q": quota("pods: 3"), "/m/w": deployment(200)})
    async with running(cri, files, tmp_path) as plane:
        await plane.until(lambda: sum(one == "Running" for one in plane.phases.values()) == 3, "three run")
        await plane.rounds()
        assert sum(one == "Running" for one in plane.phases.values()) == 3
        assert told(plane)["used"] == {"pods": "3"}


async def test_who_says_nothing_has_no_place_where_it_is_counted(cri: Slow, tmp_path: Path) -> None:
    files = FakeManifestDirectory({"/m/q": quota("requests.memory: 1Gi"), "/m/a": pod("a")})
    async with running(cri, files, tmp_path) as plane:
        await plane.until(lambda: any("have to say requests.memory" in one.message for one in plane.events), "told")
        files.put("/m/a", pod("a", "requests: {memory: 600Mi}"))
        await plane.until_phases(a="Running")
        assert told(plane)["used"] == {"requests.memory": "600Mi"}


async def test_a_quota_of_a_scope_counts_its_pods_alone(cri: Slow, tmp_path: Path) -> None:
    scope = ", scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}"
    high = CLASS.replace("NAME", "high").replace("VALUE", "5").encode()
    files = FakeManifestDirectory({"/m/q": quota("pods: 0", scope), "/m/c": high, "/m/a": pod("a")})
    async with running(cri, files, tmp_path) as plane:
        await plane.until_phases(a="Running")
        files.put("/m/b", pod("b", more=", priorityClassName: high"))
        await plane.until(lambda: any("quota quota: 0 of 0 pods" in one.message for one in plane.events), "it waits")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CLASS.replace("NAME", "x").replace("VALUE", "2000000000"), "at most 1000000000"),
        (CLASS.replace("NAME", "x").replace("value: VALUE\n", ""), "value: Required value"),
        (QUOTA.replace("HARD", "pods: -1").replace("SCOPES", ""), "must be a quantity from 0 on"),
        (QUOTA.replace("HARD", "pods: 9e999999").replace("SCOPES", ""), ""),
        (QUOTA.replace("HARD", "pods: 1").replace("SCOPES", ", scopes: [Sometimes]"), "Unsupported value"),
        (LIMITS.replace("LIMITS", "max: {cpu: lots}"), "must be a quantity from 0 on"),
        (LIMITS.replace("type: Container, LIMITS", "type: Thing"), "Unsupported value"),
    ],
)
def test_a_wrong_rule_is_one_clear_line(text: str, said: str) -> None:
    findings: list[Finding] = []
    (tree, *_), _ = documents_of(text.encode(), "/m/r.yaml")
    rule = read_rule(tree, str(tree.entries["kind"].scalar), findings)

    assert any(said in str(one) for one in findings) if said else rule is not None


def test_what_holds_nobody_here_is_told() -> None:
    findings: list[Finding] = []
    (tree, *_), _ = documents_of(quota("pods: 1, services: 3"), "/m/r.yaml")
    rule = read_rule(tree, "ResourceQuota", findings)

    assert rule is not None
    assert [path for path, _ in rule_warnings(rule)] == ["spec.hard.services"]


async def test_a_thousand_quotas_are_too_many_and_say_so(cri: Slow, tmp_path: Path) -> None:
    many = b"---\n".join(quota("pods: 9").replace(b"name: quota", b"name: q%d" % place) for place in range(1000))
    files = FakeManifestDirectory({"/m/a": pod("a")})
    async with running(cri, files, tmp_path) as plane:
        await plane.until_phases(a="Running")
        files.put("/m/q", many)
        await plane.until(lambda: "100 objects of kind ResourceQuota already" in plane.message, "it is told")
        assert len(plane.runner.wants.reading.rules.quotas) == 100
        assert plane.phases == {"a-n": "Running"}

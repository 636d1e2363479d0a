# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets and Jobs on the command line: listed, described, scaled, made anew, as kubectl has it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.model.generation import spec_generation
from agent.model.pod_state import Condition, PodState
from tests.cli.node_in_process import Node, running_node
from tests.daemon.test_manifest_objects import objects_in
from tests.pods.run.test_workloads import daemon_set, deployment, job

STATUS: Mapping[str, Any] = {
    "replicas": 3,
    "updatedReplicas": 3,
    "readyReplicas": 3,
    "availableReplicas": 3,
    "desiredNumberScheduled": 1,
    "succeeded": 1,
    "startTime": "2026-01-01T10:00:00Z",
    "completionTime": "2026-01-01T10:01:05Z",
    "conditions": [{"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "done"}],
}


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    folder = tmp_path / "manifests"
    folder.mkdir(mode=0o755)
    (folder / "web.yaml").write_bytes(deployment())
    (folder / "log.yaml").write_bytes(daemon_set().replace(b"name: web", b"name: log"))
    (folder / "work.yaml").write_bytes(job())
    return folder


@pytest.fixture
def node(short_path: Path, manifests: Path) -> Iterator[Node]:
    def fill(node: Node) -> None:
        node.objects = lambda: objects_in(manifests, status=status)
        pod = PodState(
            namespace="default", name="web-abc-x", uid="u", phase="Running",
            labels=(("app", "web"), ("pod-template-hash", "abc")), conditions=(Condition(type="Ready", is_true=True),),
        )  # fmt: skip
        node.pods.pods.put(pod.key, pod)

    def status(key: tuple[str, str, str]) -> Mapping[str, Any]:
        made = json.loads(next(iter(objects_in(manifests)._listed(key[0]))).content)
        return {**STATUS, "observedGeneration": made["metadata"]["generation"]}

    with running_node(short_path, fill) as node:
        yield node


def rows(node: Node, *words: str) -> list[list[str]]:
    return [line.split() for line in node.out(*words).splitlines()]


@pytest.mark.parametrize("word", ["deployments", "deployment", "deploy"])
def test_deployments_are_listed_in_kubectls_columns(node: Node, word: str) -> None:
    assert rows(node, "get", word) == [
        ["NAMESPACE", "NAME", "READY", "UP-TO-DATE", "AVAILABLE"],
        ["default", "web", "3/3", "3", "3"],
    ]


def test_daemon_sets_and_jobs_are_listed(node: Node) -> None:
    assert rows(node, "get", "ds")[1][:3] == ["default", "log", "1"]
    assert rows(node, "get", "jobs")[1] == ["default", "work", "Complete", "1/1", "0", "1m5s"]


def test_programs_get_kubernetes_objects_with_status_and_generation(node: Node) -> None:
    made = json.loads(node.out("get", "deploy", "web", "-o", "json"))

    assert (made["apiVersion"], made["kind"], made["status"]["readyReplicas"]) == ("apps/v1", "Deployment", 3)
    assert made["metadata"]["generation"] == made["status"]["observedGeneration"] == spec_generation(made["spec"])


def test_a_description_has_conditions_and_pods(node: Node) -> None:
    text = node.out("describe", "deploy/web")

    assert "CompletionsReached" in text
    assert "web-abc-x" in text
    assert "3 availableReplicas" in text


def test_a_scale_and_a_restart_change_the_manifest(node: Node, manifests: Path) -> None:
    assert "scaled" in node.out("scale", "deploy/web", "--replicas", "5")
    assert "restarted" in node.out("rollout", "restart", "deploy/web")
    text = (manifests / "web.yaml").read_text()

    assert "replicas: 5" in text
    assert "kubectl.kubernetes.io/restartedAt" in text
    assert "expected one of" in node.ctl("scale", "job/work", "--replicas", "1").stderr


def test_a_rollout_that_has_arrived_is_said_to_have(node: Node) -> None:
    assert "successfully rolled out, 3 available" in node.out("rollout", "status", "deploy/web")


def test_a_workload_is_deleted_by_name_and_its_files_are_checked(node: Node, manifests: Path) -> None:
    assert "deleted" in node.out("delete", "job", "work")
    assert not (manifests / "work.yaml").exists()
    assert "is valid" in node.out("validate", "-f", str(manifests / "web.yaml"))
    (manifests / "bad.yaml").write_bytes(deployment(more="  paused: true\n"))
    assert "spec.paused: Forbidden" in node.ctl("validate", "-f", str(manifests / "bad.yaml")).stderr

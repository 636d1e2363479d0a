# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets and Jobs on the command line: listed, described, scaled, made anew, as kubectl has it."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.model.event import Event
from agent.model.generation import spec_generation
from agent.model.pods.pod import PodOwner
from agent.model.pods.state import Condition, PodState
from agent.objects import hidden
from agent.objects.admitting import NOTHING
from tests.cli.node_in_process import Node, running_node
from tests.objects.test_applying import objects_in
from tests.pods.run.test_workloads import daemon_set, deployment, job

OWNER = PodOwner(kind="Deployment", namespace="default", name="web", uid="o-1", revision="abc")

STATUS: Mapping[str, Any] = {
    "replicas": 3,
    "updatedReplicas": 3,
    "readyReplicas": 3,
    "availableReplicas": 3,
    "desiredNumberScheduled": 1,
    "currentNumberScheduled": 1,
    "numberReady": 1,
    "numberAvailable": 1,
    "updatedNumberScheduled": 1,
    "succeeded": 1,
    "startTime": "2026-01-01T10:00:00Z",
    "completionTime": "2026-01-01T10:01:05Z",
    "conditions": [
        {"type": "Complete", "status": "True", "reason": "CompletionsReached", "message": "done"},
        {"type": "Available", "status": "True", "reason": "Served", "message": "3 of 3"},
    ],
}

CREATED_S = time.time() - 5.5 * 86400


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
        node.objects = lambda: objects_in(manifests, status=status, created_s=lambda _: CREATED_S)
        pod = PodState(
            namespace="default", name="web-abc-x", uid="u", phase="Running",
            labels=(("app", "web"), ("pod-template-hash", "abc")), conditions=(Condition(type="Ready", is_true=True),),
            owner=OWNER,
        )  # fmt: skip
        node.pods.pods.put(pod.key, pod)

    def status(key: tuple[str, str, str]) -> Mapping[str, Any] | None:
        if key[2] == "faulty":
            return None
        made = json.loads(next(iter(objects_in(manifests)._listed(key[0], hidden.shown, NOTHING))).content)
        return {**STATUS, "observedGeneration": made["metadata"]["generation"]}

    with running_node(short_path, fill) as node:
        yield node


def rows(node: Node, *words: str) -> list[list[str]]:
    return [line.split() for line in node.out(*words).splitlines()]


@pytest.mark.parametrize("word", ["deployments", "deployment", "deploy"])
def test_deployments_are_listed_in_kubectls_columns(node: Node, word: str) -> None:
    assert rows(node, "get", word) == [
        ["NAMESPACE", "NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
        ["default", "web", "3/3", "3", "3", "5d12h"],
    ]


def test_daemon_sets_and_jobs_are_listed(node: Node) -> None:
    assert rows(node, "get", "ds")[1] == ["default", "log", "1", "1", "1", "1", "1", "5d12h"]
    assert rows(node, "get", "jobs")[1] == ["default", "work", "Complete", "1/1", "0", "1m5s", "5d12h"]


def test_a_job_that_is_not_carried_out_is_not_said_to_run(node: Node, manifests: Path) -> None:
    """NP-14: its manifest has a fault, or no plane here is for it."""
    (manifests / "faulty.yaml").write_bytes(job().replace(b"name: work", b"name: faulty"))

    assert rows(node, "get", "jobs", "faulty")[1][2] == "Unknown"
    assert "its manifest has a fault" in node.out("explain", "job", "faulty")


def test_programs_get_kubernetes_objects_with_status_and_generation(node: Node) -> None:
    made = json.loads(node.out("get", "deploy", "web", "-o", "json"))

    assert (made["apiVersion"], made["kind"], made["status"]["readyReplicas"]) == ("apps/v1", "Deployment", 3)
    created = datetime.fromisoformat(made["metadata"]["creationTimestamp"])
    assert created.timestamp() == int(CREATED_S)
    assert made["metadata"]["generation"] == made["status"]["observedGeneration"] == spec_generation(made["spec"])


def test_a_description_has_conditions_and_pods(node: Node) -> None:
    text = node.out("describe", "deploy/web")

    assert "CompletionsReached" in text
    assert "web-abc-x" in text
    assert "3 availableReplicas" in text
    assert re.search(r"^Created: +20\S+Z \(5d12h ago\)$", text, re.MULTILINE)


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
    (manifests / "bad.yaml").write_bytes(deployment(more="  paused: 3\n"))
    assert "spec.paused" in node.ctl("validate", "-f", str(manifests / "bad.yaml")).stderr


@pytest.mark.parametrize(
    "words",
    [
        "deploy/web --for=condition=Available",
        "ds log --for condition=available",
        "jobs/work --for=condition=Complete",
        "deploy/web --for=jsonpath={.status.readyReplicas}=3",
        "job/gone --for=delete",
    ],
)
def test_a_workload_is_waited_for(node: Node, words: str) -> None:
    assert node.out("wait", *words.split()).splitlines()[0].endswith(("condition met", "gone deleted"))


def test_what_a_workload_cannot_be_waited_for_is_said(node: Node) -> None:
    slow = node.ctl("wait", "deploy/web", "--for=delete", "--timeout", "0.3")
    other = node.ctl("wait", "deploy/web", "--for=condition=Complete")
    mixed = node.ctl("wait", "deploy/web", "web-abc-x", "--for=delete")
    missing = node.ctl("wait", "deploy/wob", "--for=condition=Available")

    assert (slow.returncode, "does not meet delete; " in slow.stderr) == (7, True)
    assert (other.returncode, "they have Available, Progressing" in other.stderr) == (2, True)
    assert (mixed.returncode, missing.returncode) == (2, 3)


def test_a_workload_is_explained_with_what_its_pods_wait_for(node: Node) -> None:
    node.put(PodState(
        namespace="default", name="web-abc-y", uid="v", phase="Pending", waits_for="a: pulling its image",
        labels=(("app", "web"), ("pod-template-hash", "abc")), owner=OWNER,
    ))  # fmt: skip
    lines = node.out("explain", "deploy/web").splitlines()

    assert lines[0] == "DEPLOYMENT default/web  successfully rolled out, 3 available"
    assert "- Complete is True: CompletionsReached: done" in lines
    assert lines[-1].startswith("- pod web-abc-y: Pending; waits for: a: pulling its image; see kepctl explain pod")
    assert node.out("explain", "job", "work").startswith("JOB default/work  1 succeeded")


def test_an_apply_waits_for_workloads(node: Node, manifests: Path) -> None:
    assert "deployment/default/web successfully rolled out" in node.out("apply", "-f", str(manifests), "--wait")


def test_a_watch_of_workloads_shows_each_change_under_one_header(node: Node, manifests: Path) -> None:
    command = [sys.executable, "-m", "agent.cli.start", "--endpoint", str(node.path), "get", "deploy", "-w"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        first = [watch.stdout.readline().split() for _ in range(2)]
        (manifests / "web.yaml").write_bytes(deployment(replicas=5))
        changed = watch.stdout.readline().split()
        watch.terminate()

    assert first[0][:2] == ["NAMESPACE", "NAME"]
    assert (first[1][2], changed[2]) == ("3/3", "3/5")


def test_a_pod_names_its_owner(node: Node) -> None:
    (owner,) = json.loads(node.out("get", "pod", "web-abc-x", "-o", "json"))["metadata"]["ownerReferences"]

    assert (owner["apiVersion"], owner["kind"], owner["name"], owner["uid"]) == ("apps/v1", "Deployment", "web", "o-1")
    assert "Deployment/web" in node.out(
        "get", "pods", "-o", "jsonpath={.items[0].metadata.ownerReferences[0].kind}/web"
    )


def test_events_of_a_workload_are_its_own(node: Node) -> None:
    node.events.events = [
        Event(id="e1", is_warning=False, reason="SuccessfulCreate", plane="pods", namespace="default",
                       object_name="web", object_kind="Deployment", message="Created pod: web-abc-x"),
        Event(id="e2", is_warning=False, reason="Started", plane="pods", namespace="default",
                       object_name="web", message="a pod of that name"),
    ]  # fmt: skip
    of_deployment, of_pod = rows(node, "events", "--for", "deploy/web"), rows(node, "events", "--for", "pod/web")

    assert [row[-5:] for row in of_deployment[1:]] == [
        ["SuccessfulCreate", "deployment/default/web", "Created", "pod:", "web-abc-x"]
    ]
    assert [row[-1] for row in of_pod[1:]] == ["name"]
    assert "Created pod: web-abc-x" in node.out("describe", "deploy/web")


def test_the_same_file_applied_after_a_restart_changes_nothing(node: Node, manifests: Path, tmp_path: Path) -> None:
    """As with kubectl: what the file does not speak of stays."""
    (mine,) = [one for one in yaml.safe_load_all((manifests / "web.yaml").read_text()) if one["kind"] == "Deployment"]
    mine["spec"]["template"]["metadata"].pop("annotations", None)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(mine))
    node.out("rollout", "restart", "deploy/web")
    unchanged = node.out("apply", str(path))
    path.write_text(yaml.safe_dump(mine | {"spec": mine["spec"] | {"replicas": 1}}))
    changed = node.out("apply", str(path))

    assert (unchanged, changed) == ("deployment/default/web unchanged\n", "deployment/default/web configured\n")
    assert "kubectl.kubernetes.io/restartedAt" in (manifests / "web.yaml").read_text()

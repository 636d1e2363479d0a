# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets and Jobs at work: their pods begin, change and end, and a restart of kepd changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from agent.model.pods.pod import PodOwner, PodSpec
from agent.model.pods.state import PodState
from agent.pods.plan.remembered import Memory, Record
from agent.pods.run.workloads.known import FirstSeen
from tests.fakes.jumping import by_the_wall, jumps
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import AT_ONCE, DISKS, Plane, Slow, running

__all__ = ["jumps"]

FILE = "/m/w.yaml"


def deployment(replicas: int = 3, image: str = "i", more: str = "") -> bytes:
    return f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers: [{{name: a, image: {image}, imagePullPolicy: IfNotPresent}}]
{more}""".encode()


def daemon_set(image: str = "i", more: str = "") -> bytes:
    text = deployment(image=image, more=more).decode()
    return text.replace("Deployment", "DaemonSet").replace("  replicas: 3\n", "").encode()


def job(more: str = "", policy: str = "Never", image: str = "i") -> bytes:
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: work}}
spec:
  template:
    spec:
      restartPolicy: {policy}
      containers: [{{name: a, image: {image}, imagePullPolicy: IfNotPresent}}]
{more}""".encode()


@pytest.fixture
def cri() -> Slow:
    made = Slow()
    made.registry.add("j")
    return made


def manifests(content: bytes) -> FakeManifestDirectory:
    return FakeManifestDirectory({FILE: content})


def pods(plane: Plane, image: str = "") -> list[PodState]:
    found = plane.runner.pods.items.values()
    return [one for one in found if image in ("", one.spec.containers[0].image) and not one.is_terminating]


def ready(plane: Plane, image: str = "") -> int:
    return sum(any(c.type == "Ready" and c.is_true for c in one.conditions) for one in pods(plane, image))


async def until_ready(plane: Plane, count: int, image: str = "") -> None:
    """All that are there, and no other."""
    await plane.until(
        lambda: ready(plane, image) == count == len(plane.runner.pods.items), f"{count} ready pods of {image}"
    )


def status(plane: Plane, kind: str = "Deployment", name: str = "web") -> dict[str, Any]:
    return dict(plane.runner.workloads.status((kind, "default", name)) or {})


async def exit_of(cri: Slow, pod: PodState, code: int) -> None:
    container = next(one for one in await cri.list_containers() if one.pod_sandbox_id == pod.sandbox_id)
    cri.exit(container.id, code)


async def test_a_deployment_makes_its_pods_with_names_and_labels_as_kubernetes_has_them(
    cri: Slow, tmp_path: Path
) -> None:
    async with running(cri, manifests(deployment()), tmp_path) as plane:
        await until_ready(plane, 3)
        shown = pods(plane)
        told = status(plane)
        events = [(one.object_kind, one.object_name, one.reason, one.message) for one in plane.events]

    owners = [one.owner for one in shown]
    assert {(one.kind, one.name) for one in owners if one is not None} == {("Deployment", "web")}
    for one in shown:
        assert ("Deployment", "web", "SuccessfulCreate", f"Created pod: {one.name}") in events
    revision = dict(shown[0].labels)["pod-template-hash"]
    assert {dict(one.labels)["app"] for one in shown} == {"web"}
    assert all(one.name.startswith(f"web-{revision}-") and len(one.name) == len(revision) + 10 for one in shown)
    assert (told["replicas"], told["updatedReplicas"], told["readyReplicas"], told["availableReplicas"]) == (3, 3, 3, 3)
    assert [(one["type"], one["status"]) for one in told["conditions"]] == [
        ("Available", "True"),
        ("Progressing", "True"),
    ]


async def test_a_change_of_the_template_replaces_pods_without_serving_with_fewer_than_allowed(
    cri: Slow, tmp_path: Path
) -> None:
    files = manifests(deployment(more="  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}\n"))
    least = []
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        put = plane.runner.pods.put
        plane.runner.pods.put = lambda key, pod: (put(key, pod), least.append(ready(plane)))  # type: ignore[method-assign]
        files.put(FILE, deployment(image="j", more="  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}\n"))
        await until_ready(plane, 3, "j")

    assert min(least) == 2


async def test_a_kepd_that_dies_in_the_middle_of_a_change_goes_on_with_it(cri: Slow, tmp_path: Path) -> None:
    """WL-3."""
    files = manifests(deployment())
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        before = {one.uid for one in pods(plane)}
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        assert {one.uid for one in pods(plane)} == before, "a restart alone makes and ends nothing"
        cri.may_stop.clear()
        files.put(FILE, deployment(image="j"))
        await plane.until(lambda: ready(plane, "j") > 0 and cri.stopping, "the change is under way")
    cri.may_stop.set()
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3, "j")

    assert not before & {one.uid for one in pods(plane)}


async def test_recreate_ends_all_before_it_begins_any(cri: Slow, tmp_path: Path) -> None:
    files = manifests(deployment(more="  strategy: {type: Recreate}\n"))
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 3)
        mixed = []
        put = plane.runner.pods.put
        plane.runner.pods.put = lambda key, pod: (  # type: ignore[method-assign]
            put(key, pod),
            mixed.append({one.spec.containers[0].image for one in plane.runner.pods.items.values()}),
        )
        files.put(FILE, deployment(image="j", more="  strategy: {type: Recreate}\n"))
        await until_ready(plane, 3, "j")

    assert {"i", "j"} not in mixed


async def test_scaling_changes_only_the_number_of_pods(cri: Slow, tmp_path: Path) -> None:
    files = manifests(deployment(2))
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 2)
        before = {one.uid for one in pods(plane)}
        files.put(FILE, deployment(4))
        await until_ready(plane, 4)
        assert before < {one.uid for one in pods(plane)}
        files.put(FILE, deployment(1))
        await until_ready(plane, 1)
        ended = [one.message for one in plane.events if one.reason == "SuccessfulDelete"]
        assert {one.uid for one in pods(plane)} < before, "the oldest stays"
        assert len([one for one in ended if one.startswith("Deleted pod: web-")]) == 3
        files.put(FILE, None)
        await plane.until(lambda: not plane.runner.pods.items, "all pods gone")


async def test_a_pod_that_is_deleted_is_made_again_and_a_faulty_manifest_changes_nothing(
    cri: Slow, tmp_path: Path
) -> None:
    files = manifests(deployment(2))
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 2)
        first = pods(plane)[0]
        spec = plane.runner.wants.by_key.get(first.key)
        assert spec is not None
        assert plane.runner.workloads.drop(spec)
        plane.runner.let_go(spec, None)
        await plane.until(lambda: first.key not in plane.runner.pods.items or first.is_terminating, "it ends")
        await plane.until(
            lambda: ready(plane) == 2 and first.uid not in {one.uid for one in pods(plane)}, "another in its place"
        )
        files.put(FILE, deployment(2).replace(b"replicas", b"replcas"))
        await plane.until(lambda: "not supported" in plane.message, "the fault is shown")
        assert ready(plane) == 2


async def test_a_daemon_set_has_one_pod_here_and_none_where_the_node_does_not_match(cri: Slow, tmp_path: Path) -> None:
    files = manifests(daemon_set())
    async with running(cri, files, tmp_path, labels={"disk": "ssd"}) as plane:
        await until_ready(plane, 1)
        assert pods(plane)[0].name.startswith("web-")
        assert status(plane, "DaemonSet")["numberAvailable"] == 1
        files.put(FILE, daemon_set("j"))
        await until_ready(plane, 1, "j")
        files.put(FILE, daemon_set("j", more="      nodeSelector: {disk: hdd}\n"))
        await plane.until(lambda: not plane.runner.pods.items, "no pod")
        told = status(plane, "DaemonSet")

    assert told["desiredNumberScheduled"] == 0
    assert "disk=hdd" in told["conditions"][0]["message"]


@by_the_wall
async def test_the_time_since_when_it_is_known_outlives_kepd_and_each_pod(cri: Slow, tmp_path: Path) -> None:
    """WL-6."""
    files, key = manifests(deployment(1)), ("Deployment", "default", "web")
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 1)
        first_s = plane.runner.workloads.created_s(key)
        files.put(FILE, deployment(1, image="j"))
        await until_ready(plane, 1, "j")
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 1, "j")
        since_s = plane.runner.workloads.created_s(key)
        made_s = pods(plane)[0].created_at_s
        files.put(FILE, None)
        await plane.until(lambda: not plane.runner.workloads.created_s(key), "it is forgotten with its manifest")

    assert 0 < first_s == since_s < made_s


def test_a_pod_that_knows_no_time_of_its_owner_tells_its_own() -> None:
    def record(created_s: float, first_seen_s: float) -> Record:
        owner = PodOwner(kind="Job", namespace="n", name="j", uid="u", revision="r", created_s=created_s)
        return Record(
            pod=PodSpec(namespace="n", name="p", uid="p", owner=owner), memory=Memory(first_seen_wall_s=first_seen_s)
        )

    seen, key = FirstSeen(), ("Job", "n", "j")
    seen.load([record(0.0, 7.0), record(5.0, 9.0), record(0.0, 8.0)])
    seen.follow([], {key}, 20.0)
    assert seen.of(key) == 5.0, "its file cannot be read for a while"
    seen.follow([], (), 20.0)
    seen.follow([key], (), 21.0)
    assert seen.of(key) == 21.0


async def test_a_job_counts_failures_and_successes_over_restarts_of_kepd(cri: Slow, tmp_path: Path) -> None:
    """WL-5."""
    files = manifests(job("  completions: 2\n"))
    async with running(cri, files, tmp_path, curve=AT_ONCE) as plane:
        await until_ready(plane, 1)
        await exit_of(cri, pods(plane)[0], 3)
        plane.runner.rounds.due.set()
        await plane.until(lambda: status(plane, "Job", "work")["failed"] == 1 and ready(plane) == 1, "another try")
    async with running(cri, files, tmp_path, curve=AT_ONCE) as plane:
        await plane.until(lambda: ready(plane) == 1, "it runs on")
        for done in (1, 2):
            await plane.until(lambda: ready(plane) == 1, "it runs")
            await exit_of(cri, next(one for one in pods(plane) if one.phase == "Running"), 0)
            plane.runner.rounds.due.set()
            await plane.until(
                lambda done=done: status(plane, "Job", "work")["succeeded"] == done, f"{done} have succeeded"
            )
    async with running(cri, files, tmp_path, curve=AT_ONCE) as plane:
        await plane.until(lambda: len(pods(plane)) == 3, "its pods are there")
        await plane.rounds()
        told = status(plane, "Job", "work")

    assert (told["active"], told["succeeded"], told["failed"]) == (0, 2, 1)
    assert [(one["type"], one["reason"]) for one in told["conditions"]] == [
        ("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached"),
    ]  # fmt: skip
    assert told["completionTime"] >= told["startTime"]


async def test_a_job_that_fails_too_often_is_failed_and_makes_no_more_pods(cri: Slow, tmp_path: Path) -> None:
    async with running(cri, manifests(job("  backoffLimit: 0\n")), tmp_path, curve=AT_ONCE) as plane:
        await until_ready(plane, 1)
        await exit_of(cri, pods(plane)[0], 1)
        plane.runner.rounds.due.set()
        await plane.until(lambda: status(plane, "Job", "work").get("conditions"), "an outcome")
        told = status(plane, "Job", "work")["conditions"][-1]
        await plane.rounds()
        count = len(plane.runner.pods.items)

    assert (told["type"], told["reason"], count) == ("Failed", "BackoffLimitExceeded", 1)


async def test_a_job_that_finished_goes_with_its_manifest_when_its_time_is_over(cri: Slow, tmp_path: Path) -> None:
    async with running(cri, manifests(job("  ttlSecondsAfterFinished: 0\n")), tmp_path) as plane:
        await until_ready(plane, 1)
        await exit_of(cri, pods(plane)[0], 0)
        plane.runner.rounds.due.set()
        await plane.until(lambda: not plane.runner.pods.items, "its pods are gone")
        await plane.until(lambda: not status(plane, "Job", "work"), "and its manifest")


async def test_a_job_that_is_suspended_ends_its_pods_and_goes_on_later(cri: Slow, tmp_path: Path) -> None:
    files = manifests(job())
    async with running(cri, files, tmp_path, curve=AT_ONCE) as plane:
        await until_ready(plane, 1)
        files.put(FILE, job("  suspend: true\n"))
        await plane.until(lambda: not plane.runner.pods.items, "its pod is gone")
        told = status(plane, "Job", "work")
        files.put(FILE, job())
        await until_ready(plane, 1)

    assert (told["failed"], told["conditions"][0]["type"]) == (0, "Suspended")


async def test_another_template_begins_a_job_anew_once_its_former_pods_are_gone(cri: Slow, tmp_path: Path) -> None:
    files = manifests(job())
    async with running(cri, files, tmp_path, curve=AT_ONCE) as plane:
        await until_ready(plane, 1)
        await exit_of(cri, pods(plane)[0], 0)
        plane.runner.rounds.due.set()
        await plane.until(lambda: status(plane, "Job", "work")["succeeded"] == 1, "it has succeeded")
        files.put(FILE, job(image="j"))
        await until_ready(plane, 1, "j")
        assert status(plane, "Job", "work")["succeeded"] == 0


async def test_a_disk_that_refuses_the_record_holds_the_job_up(cri: Slow, tmp_path: Path) -> None:
    """WL-5: nothing follows from a count that is not written."""
    files = manifests(job("  suspend: true\n"))
    async with running(cri, files, tmp_path, curve=AT_ONCE) as plane:
        await plane.until(lambda: "conditions" in status(plane, "Job", "work"), "it is known")
        DISKS[tmp_path].failure = OSError(28, "No space left on device")
        files.put(FILE, job())
        await plane.until(lambda: "conditions" not in status(plane, "Job", "work"), "it is read")
        await plane.rounds()
        assert not plane.runner.pods.items
        DISKS[tmp_path].failure = None
        files.put(FILE, job("  backoffLimit: 1\n"))
        await until_ready(plane, 1)


OLD_SORT = """apiVersion: v1
kind: ReplicationController
metadata: {name: web}
spec:
  replicas: COUNT
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: a, image: IMAGE, imagePullPolicy: IfNotPresent}]}
"""


@pytest.mark.parametrize("kind", ["ReplicationController", "ReplicaSet"])
async def test_what_keeps_a_number_of_pods_changes_none_that_is_there(cri: Slow, tmp_path: Path, kind: str) -> None:
    """Another template counts for those that are made from then on."""
    text = OLD_SORT.replace("v1\n", "apps/v1\n", 1).replace("  rep", "  selector: {matchLabels: {app: web}}\n  rep", 1)
    text = (text if kind == "ReplicaSet" else OLD_SORT).replace("ReplicationController", kind)

    def with_pods(count: int, image: str) -> bytes:
        return text.replace("COUNT", str(count)).replace("IMAGE", image).encode()

    files = FakeManifestDirectory({FILE: with_pods(2, "i")})
    async with running(cri, files, tmp_path) as plane:
        await until_ready(plane, 2)
        assert all(one.owner is not None and one.owner.kind == kind for one in pods(plane))
        assert {dict(one.labels)["app"] for one in pods(plane)} == {"web"}
        assert all(len(one.labels) == 1 for one in pods(plane))
        files.put(FILE, with_pods(3, "j"))
        await until_ready(plane, 3)
        assert sorted(one.spec.containers[0].image for one in pods(plane)) == ["i", "i", "j"]
        assert status(plane, kind, "web")["availableReplicas"] == 3
        assert plane.runner.workloads.revisions() == []
        files.put(FILE, with_pods(1, "j"))
        await until_ready(plane, 1)
        files.put(FILE, None)
        await plane.until(lambda: not plane.runner.pods.items and not DISKS[tmp_path].files, "nothing is left")

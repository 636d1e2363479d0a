# SPDX-License-Identifier: Apache-2.0
"""Deployments, DaemonSets and Jobs on real containers, as a user sees them with kepctl."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 1, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: IfNotPresent
        env: [{name: VERSION, value: "NUMBER"}]
        command: [sh, -c, "echo version $VERSION; sleep 1; touch /tmp/ready; while true; do sleep 1; done"]
        readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
"""
DAEMON_SET = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log}
spec:
  selector: {matchLabels: {app: log}}
  template:
    metadata: {labels: {app: log}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "NUMBER"]}]
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  completions: 2
  backoffLimit: 3
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      volumes: [{name: out, hostPath: {path: OUT}}]
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: IfNotPresent
        volumeMounts: [{name: out, mountPath: /out}]
        command: [sh, -c, "echo run >> /out/runs; if [ ! -e /out/failed ]; then touch /out/failed; exit 3; fi; sleep 2"]
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port, "reducedBackoff: true") as daemon:
        yield daemon


@pytest.fixture
def image(lab: Lab) -> str:
    return lab.push(Image(name="node/workloads"))


def apply(kepd: Kepd, text: str, image: str, **words: object) -> None:
    for word, value in {"IMAGE": image, **words}.items():
        text = text.replace(word, str(value))
    path = kepd.folder / "applied.yaml"
    path.write_text(text)
    done = kepd.ctl("apply", "-f", str(path))
    assert done.returncode == 0, f"{done.stderr}\n{kepd.log.read_text()[-4000:]}"


def status(kepd: Kepd, kind: str, name: str) -> dict[str, Any]:
    made = kepd.json("get", kind, name)
    now: dict[str, Any] = made.get("status") or {}
    return now if kind == "job" or now.get("observedGeneration") == made["metadata"]["generation"] else {}


def names(kepd: Kepd) -> set[str]:
    return {one["metadata"]["name"] for one in kepd.json("get", "pods")["items"]}


def ready(kepd: Kepd) -> int:
    return sum(
        any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])
        for pod in kepd.json("get", "pods")["items"]
    )


def is_rolled_out(kepd: Kepd, count: int) -> bool:
    now = status(kepd, "deployment", "web")
    return [now.get(name) for name in ("replicas", "updatedReplicas", "availableReplicas")] == [count] * 3


def test_a_deployment_changes_scales_and_ends_and_a_killed_kepd_goes_on(kepd: Kepd, image: str) -> None:
    """WL-2, WL-3."""
    apply(kepd, DEPLOYMENT, image, REPLICAS=3, NUMBER=1)
    done = kepd.ctl("rollout", "status", "deploy/web")
    assert "successfully rolled out, 3 available" in done.stdout, (done.stdout, done.stderr)
    first = names(kepd)
    assert "version 1" in kepd.ctl("logs", "deploy/web").stdout

    apply(kepd, DEPLOYMENT, image, REPLICAS=3, NUMBER=2)
    least = []
    kepd.wait(lambda: least.append(ready(kepd)) or names(kepd) - first, "the change has begun")
    assert kepd.process is not None
    os.kill(kepd.process.pid, signal.SIGKILL)
    kepd.process.wait()
    kepd.start("--planes", "pods").wait_ready()
    kepd.wait(lambda: is_rolled_out(kepd, 3), "the change has arrived")
    assert min(least) >= 2
    kepd.wait(lambda: len(names(kepd)) == 3, "no pod too many")
    assert not names(kepd) & first

    apply(kepd, DEPLOYMENT, image, REPLICAS=3, NUMBER=3)
    least.clear()
    kepd.wait(lambda: least.append(ready(kepd)) or is_rolled_out(kepd, 3), "another change has arrived")
    assert min(least) >= 2

    assert kepd.ctl("scale", "deploy/web", "--replicas", "1").returncode == 0
    kepd.wait(lambda: len(names(kepd)) == 1 and is_rolled_out(kepd, 1), "scaled")
    (last,) = names(kepd)
    assert kepd.ctl("delete", "pod", last).returncode == 0
    kepd.wait(lambda: len(names(kepd)) == 1 and last not in names(kepd) and is_rolled_out(kepd, 1), "made again")
    assert "Available" in kepd.ctl("describe", "deploy", "web").stdout
    assert kepd.ctl("delete", "deployment", "web").returncode == 0
    kepd.wait(lambda: not names(kepd), "gone with its Deployment")


def test_a_daemon_set_has_one_pod_which_a_change_replaces(kepd: Kepd, image: str) -> None:
    apply(kepd, DAEMON_SET, image, NUMBER=1000)
    kepd.wait(lambda: status(kepd, "ds", "log").get("numberAvailable") == 1, "available")
    before = names(kepd)
    apply(kepd, DAEMON_SET, image, NUMBER=2000)
    kepd.wait(lambda: len(names(kepd)) == 1 and names(kepd) != before, "replaced")
    done = kepd.ctl("rollout", "status", "ds/log")
    assert "successfully rolled out, 1 available" in done.stdout, (done.stdout, done.stderr)


def test_a_job_fails_once_is_tried_again_and_its_counts_survive_a_kill(
    kepd: Kepd, image: str, short_path: Path
) -> None:
    """WL-5."""
    out = short_path / "out"
    out.mkdir()
    apply(kepd, JOB, image, OUT=out)
    kepd.wait(lambda: status(kepd, "job", "work").get("failed") == 1, "the first try has failed")
    kepd.wait(lambda: status(kepd, "job", "work").get("succeeded") == 1, "one has succeeded")
    assert kepd.process is not None
    os.kill(kepd.process.pid, signal.SIGKILL)
    kepd.process.wait()
    kepd.start("--planes", "pods").wait_ready()
    kepd.wait(lambda: status(kepd, "job", "work").get("conditions"), "an outcome")
    told = status(kepd, "job", "work")

    assert (told["succeeded"], told["failed"], told["active"]) == (2, 1, 0)
    assert [(one["type"], one["reason"]) for one in told["conditions"]][-1:] == [("Complete", "CompletionsReached")]
    assert (out / "runs").read_text().splitlines() == ["run"] * 3
    assert "Complete" in kepd.ctl("get", "jobs").stdout
    assert kepd.ctl("delete", "job", "work").returncode == 0
    kepd.wait(lambda: not names(kepd), "its pods go with it")


STATEFUL_SET = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, annotations: {kubernetes.io/change-cause: "number NUMBER"}}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  updateStrategy: {rollingUpdate: {partition: PARTITION}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 65534}
      containers:
      - name: main
        image: IMAGE
        imagePullPolicy: IfNotPresent
        env: [{name: VERSION, value: "NUMBER"}]
        volumeMounts: [{name: data, mountPath: /data}]
        command: [sh, -c, "echo $(hostname) $VERSION >> /data/runs; touch /tmp/ready; while true; do sleep 1; done"]
        readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1}
"""


@pytest.fixture
def store(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    keys = f"claimDirectory: {short_path}/claims, nameSuffix: false"
    with pods_daemon(lab, short_path, free_port, keys) as daemon:
        yield daemon


def test_a_stateful_set_keeps_names_and_directories_over_changes_kills_and_undoing(
    store: Kepd, image: str, short_path: Path
) -> None:
    """WL-20, WL-21, WL-23, WL-25: its pods write as somebody who is not root."""

    def runs(ordinal: int) -> list[str]:
        return (short_path / f"claims/default/data-db-{ordinal}/runs").read_text().splitlines()

    def rolled_out() -> str:
        done = store.ctl("rollout", "status", "sts/db")
        assert done.returncode == 0, (done.stdout, done.stderr, store.log.read_text()[-3000:])
        return str(done.stdout)

    apply(store, STATEFUL_SET, image, NUMBER=1, PARTITION=0)
    assert "2 available" in rolled_out()
    assert names(store) == {"db-0", "db-1"}
    assert (runs(0), runs(1)) == (["db-0 1"], ["db-1 1"])
    apply(store, STATEFUL_SET, image, NUMBER=2, PARTITION=1)
    assert "1 keep the former template" in rolled_out()
    assert (runs(0), runs(1)) == (["db-0 1"], ["db-1 1", "db-1 2"])
    assert store.process is not None
    os.kill(store.process.pid, signal.SIGKILL)
    store.process.wait()
    store.start("--planes", "pods").wait_ready()
    assert store.ctl("delete", "pod", "db-0").returncode == 0
    store.wait(lambda: len(runs(0)) == 2, "it is made anew")
    rolled_out()
    assert runs(0) == ["db-0 1", "db-0 1"]
    told = store.ctl("rollout", "history", "sts/db").stdout
    assert told.splitlines()[1:] == ["REVISION  CHANGE-CAUSE", "1         number 1", "2         number 2"]
    done = store.ctl("rollout", "undo", "sts/db")
    assert "rolled back to revision 1" in done.stdout, done.stderr
    # The one below the partition has the former template already, and counts, as kubectl counts it.
    store.wait(lambda: runs(1)[-1] == "db-1 1", "the other goes back")
    rolled_out()
    assert "asks for 1Gi, which nothing enforces" in store.ctl("describe", "sts", "db").stdout
    assert store.ctl("delete", "sts", "db").returncode == 0
    store.wait(lambda: not names(store), "its pods go with it")
    assert len(runs(0)) == 2


def test_a_deployment_is_held_and_undone_with_the_values_of_its_variables(kepd: Kepd, image: str) -> None:
    """WL-23, WL-24."""
    for number in (1, 2):
        apply(kepd, DEPLOYMENT, image, REPLICAS=1, NUMBER=number)
        kepd.wait(lambda: is_rolled_out(kepd, 1), "it has arrived")
    assert "paused" in kepd.ctl("rollout", "pause", "deploy/web").stdout
    kepd.wait(lambda: len(names(kepd)) == 1, "the former pod is gone")
    before = names(kepd)
    apply(kepd, DEPLOYMENT.replace("spec:", "spec:\n  paused: true", 1), image, REPLICAS=1, NUMBER=3)
    kepd.wait(
        lambda: any(
            one["reason"] == "DeploymentPaused" for one in status(kepd, "deployment", "web").get("conditions", ())
        ),
        "it is held",
    )
    assert names(kepd) == before
    assert "is paused" in kepd.ctl("rollout", "undo", "deploy/web").stderr
    assert "resumed" in kepd.ctl("rollout", "resume", "deploy/web").stdout
    kepd.wait(lambda: is_rolled_out(kepd, 1) and names(kepd).isdisjoint(before), "it goes on")
    assert "has no revision 9; it has 1, 2, 3" in kepd.ctl("rollout", "undo", "deploy/web", "--to-revision", "9").stderr
    assert kepd.ctl("rollout", "undo", "deploy/web", "--to-revision", "1").returncode == 0
    assert "pod-template-hash" not in "".join(path.read_text() for path in kepd.manifests.glob("*.yaml"))
    assert "successfully rolled out" in kepd.ctl("rollout", "status", "deploy/web").stdout
    kepd.wait(lambda: len(names(kepd)) == 1, "the others are gone")
    (pod,) = names(kepd)
    assert "version 1" in kepd.ctl("logs", pod).stdout
    assert {one["metadata"]["name"] for one in kepd.json("get", "rs")["items"]} >= {pod.rpartition("-")[0]}

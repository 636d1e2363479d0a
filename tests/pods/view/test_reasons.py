# SPDX-License-Identifier: Apache-2.0
"""NU-03: of each everyday fault of a pod the first line has the cause and its own words; then follows what helps."""

from typing import Any

import pytest

from agent.model.finding import Finding
from agent.model.pods.state import Condition, ContainerState, PodState, ProbeWords, Termination
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from agent.pods.view.reasons import HAS_RIVALS, NO_RUNTIME, Times, pod_reasons, refused_manifest

NOW_S = 1000.0
TIMES = Times(now_s=NOW_S, due={"app": NOW_S + 38, "": NOW_S + 5})
PROBES = """{name: app, image: i, resources: {limits: {memory: 64Mi}},
  readinessProbe: {httpGet: {path: /ok, port: 80}, periodSeconds: 5}, livenessProbe: {tcpSocket: {port: 81}},
  startupProbe: {exec: {command: [cat, /up]}}}"""
SPEC = parse_objects(
    "m", f"{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {{containers: [{PROBES}]}}}}".encode(),
    NodeIdentity("n", None),
).pods[0].spec  # fmt: skip


def app(**fields: Any) -> ContainerState:
    return ContainerState(**{"name": "app", "image": "i", "id": "2", **fields})


def pod(*containers: ContainerState, **fields: Any) -> PodState:
    known = {"namespace": "default", "name": "web", "uid": "u", "phase": "Pending", "spec": SPEC}
    return PodState(**{**known, "containers": containers, **fields})


def waiting(reason: str, message: str) -> PodState:
    return pod(app(state="Waiting", reason=reason, message=message))


def crashed(**fields: Any) -> PodState:
    ended = Termination(**{"exit_code": 1, "reason": "Error", "id": "1", "finished_at_s": NOW_S - 3, **fields})
    return pod(app(state="Waiting", reason="CrashLoopBackOff", last=ended, restart_count=3, id="1"), phase="Running")


def running(kind: str, text: str, **fields: Any) -> PodState:
    return pod(
        app(state="Running", is_started=kind != "startup", complaint=ProbeWords("2", kind, text), **fields),
        phase="Running",
    )


def refused(reason: str, message: str) -> PodState:
    return pod(reason=reason, message=f"Pod was rejected: {message}")


PULL = 'Back-off pulling image "i": ErrImagePull: '
FAULTS = [
    (waiting("ErrImagePull", "i: not found"), "container app has no image: it cannot be pulled, i: i: not found",
     "it is pulled again in 38 s", "kepctl explain pull i"),
    (waiting("ImagePullBackOff", f"{PULL}tag 9 unknown"), "it cannot be pulled, i: tag 9 unknown", "pulled again",
     "kepctl explain pull i"),
    (waiting("ErrImagePull", "no space left"), "it cannot be pulled, i: no space left", "it is pulled again in 38 s",
     "kepctl explain pull i"),
    (waiting("RegistryUnavailable", "dial tcp: refused"), "its registry cannot be reached, i: dial tcp: refused",
     "pulled again", "kepctl explain pull i"),
    (waiting("ErrImageNeverPull", "not present"), "imagePullPolicy Never forbids to pull it: not present", "",
     "kepctl pull i"),
    (waiting("InvalidImageName", "bad"), '"i" is no name of an image: bad', "", "kepctl edit pod web"),
    (waiting("CreateContainerConfigError", 'configmap "x" not found'),
     'container app cannot be made as its manifest says: configmap "x" not found', "tried again in 38 s",
     "kepctl edit pod web"),
    (waiting("CreateContainerConfigError", "couldn't find key k in Secret default/s"), "key k in Secret", "tried again",
     "kepctl edit pod web"),
    (waiting("FailedMount", 'volume "v": /srv is not there'), "lacks a volume: volume", "tried again", "kepctl edit"),
    (waiting("RunContainerError", 'exec: "nope": not found in $PATH'), 'is not started by the runtime: exec: "nope"',
     "tried again in 38 s", "kepctl edit pod web"),
    (waiting("PostStartHookError", "exit code 3"), "the postStart hook of container app failed", "", "kepctl logs web"),
    (crashed(last_line="KeyError: 'DB'"), "container app ended with exit code 1, restarted 3 times: KeyError: 'DB'",
     "it is started again in 38 s, at 00:17:18 UTC", "kepctl logs web -c app"),
    (crashed(reason="OOMKilled", exit_code=137), "app was killed for memory", "started again", "kepctl logs"),
    (pod(app(name="job", state="Terminated", reason="OOMKilled", exit_code=137), phase="Running"), "job was killed for",
     "it is started again, each time after a longer pause", "kepctl logs"),
    (running("readiness", "HTTP probe failed with statuscode: 500"),
     "container app is not ready: its readiness probe fails (HTTP GET /ok on port 80): HTTP probe failed",
     "kepd asks every 5 s", "kepctl logs web -c app"),
    (running("liveness", "connection refused"), "its liveness probe fails (TCP port 81): connection refused",
     "after 3 failures in a row", "kepctl logs"),
    (running("liveness", "404", is_ready=True), "container app runs, but its liveness probe fails (TCP port 81): 404",
     "after 3 failures in a row", "kepctl logs"),
    (running("startup", "cat: /up: no such file"),
     "container app is not started: its startup probe fails (exec cat /up): cat: /up",
     "after 3 failures in a row", "kepctl logs"),
    (pod(app(state="Running", kind="init", name="first"), app(reason="PodInitializing")),
     "init container first has not ended yet", "without a limit", "kepctl logs web -c first"),
    (pod(app(state="Running", is_started=False, kind="sidecar"), app(name="b", reason="PodInitializing")),
     "container app is not started: its startup probe has not answered yet", "", "kepctl get events web"),
    (refused("OutOfcpu", "requested: 9000, used: 0"), "the node has not enough CPU left for it: requested: 9000",
     "begins as soon as", "kepctl top pods"),
    (refused("OutOfmemory", "requested"), "not enough memory left", "begins as soon as", "kepctl top pods"),
    (refused("OutOfpods", "110"), "as many pods as it may", "begins as soon as", "kepctl get pods"),
    (refused("NodePorts", "TCP 80 is used by default/a"), "is taken: TCP 80 is used by default/a", "begins", "kepctl"),
    (refused("NodeDrained", "root has drained the node"), "the node takes no pods: root", "begins", "kepctl uncordon"),
    (pod(problem="NetworkNotReady", message="cni is not there"), "the node has no network for pods: cni is not there",
     "tries again in 5 s", "kepctl doctor"),
    (pod(problem="FailedCreatePodSandBox", message="no bridge"), "does not make its sandbox: no bridge",
     "tries again in 5 s", "kepctl doctor"),
    (pod(problem="FailedCreatePodSandBox", message=f"{NO_RUNTIME}: Connection refused"),
     "the container runtime does not answer: Connection refused", "tries again in 5 s", "kepctl doctor"),
    (pod(waits_for="fetch r/i:1 for app"), "container app waits for its image r/i:1", "as soon as the image is there",
     "kepctl explain pull r/i:1"),
    (pod(problem="ClaimUnallocatable", message="no gpu"), "a claim of it gets no device of this node: no gpu",
     "tries again", "kepctl explain claim --pod default/web"),
    (pod(app(state="Running", is_ready=True, is_started=True), phase="Running", message=f"{HAS_RIVALS}: /m/b.yaml:1"),
     "another manifest has its name too, and is ignored: /m/b.yaml:1", "stays in force", "kepctl validate /m/b.yaml"),
    (pod(app(reason="ErrImagePull", image="r/i", message="401 Unauthorized"), missing_secrets=("login",)),
     "r/i, and there is no Secret login to pull it with: 401", "pulled again in 38 s", "kepctl explain pull r/i"),
    (pod(phase="Unknown", reason="Unknown", waits_for="the container runtime"), "the container runtime does not answer",
     "asks it again", "kepctl doctor"),
    (pod(app(state="Running"), is_terminating=True, waits_for="preStop hook of app, running for 9 s"),
     "it ends, and waits for preStop hook of app, running for 9 s", "is killed", "kepctl timeline web"),
    (pod(app(state="Running", is_ready=True, is_started=True), phase="Running", file="/m/w.yaml",
         message="its last good manifest is in force: /m/w.yaml:3: spec: unknown field"),
     "its manifest has a fault, and the last good one stays in force: /m/w.yaml:3", "reads the file again",
     "kepctl validate /m/w.yaml"),
    (pod(app(state="Terminated", exit_code=4, last_line="no disk"), phase="Failed"),
     "container app ended with exit code 4: no disk", "it is not tried again", "kepctl logs web"),
]  # fmt: skip


@pytest.mark.parametrize(("state", "first", "follows", "helps"), FAULTS, ids=lambda one: str(one)[:40])
def test_the_cause_comes_first_with_words_what_follows_and_what_helps(
    state: PodState, first: str, follows: str, helps: str
) -> None:
    reason = next(pod_reasons(state, TIMES))

    assert first in reason.line
    assert follows in reason.next
    assert reason.command.startswith(helps)


def test_what_ended_a_container_is_told_while_it_runs_again() -> None:
    """A liveness probe ended it: exit code 137 alone says nothing."""
    words = ProbeWords("1", "liveness", "HTTP probe failed with statuscode: 500")
    last = Termination(exit_code=137, reason="Error", id="1", finished_at_s=NOW_S - 20)
    again = app(state="Running", is_ready=True, is_started=True, last=last, complaint=words, restart_count=1)
    state = pod(again, phase="Running")

    (reason,) = pod_reasons(state, TIMES)
    assert reason.line.startswith("container app was ended because its liveness probe failed: HTTP probe failed")
    assert reason.command == "kepctl logs -p web -c app"
    assert not list(pod_reasons(state, Times(now_s=NOW_S + 1000)))


def test_a_pod_that_is_not_there_has_the_fault_of_the_manifest_that_may_be_its() -> None:
    findings = [
        Finding("/m/web.yaml:3", "spec.containers[0].imag", "is not known"),
        Finding("/m/web2.yaml:1", "", "bad"),
    ]
    reason = refused_manifest(findings, "web")

    assert reason is not None
    assert reason.line.endswith("so it does not begin: /m/web.yaml:3: spec.containers[0].imag: is not known")
    assert reason.command == "kepctl validate /m/web.yaml"
    assert refused_manifest(findings, "we") is None


def test_a_pod_that_is_well_has_no_reason() -> None:
    ready = (Condition(type="Ready", is_true=True),)
    assert not list(pod_reasons(pod(app(state="Running", is_ready=True, is_started=True), conditions=ready), TIMES))

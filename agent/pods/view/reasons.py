# SPDX-License-Identifier: Apache-2.0
"""Why a pod is not as its manifest wants it: the cause, its own words, what kepd does next, and the command that helps.

Lists, descriptions, explanations and commands that wait for a pod all show these reasons. The most important one comes
first. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from agent.model.finding import MOST_FAULTS, Finding
from agent.model.pods.container_fields import Container, Probe
from agent.model.pods.state import RUNNING, TERMINATED, WAITING, ContainerState, PodState, Termination
from agent.model.reason import Reason, quoted

ENDED_PHASES = ("Succeeded", "Failed")
# What passes by itself, a step after the other.
PASSING = ("", "ContainerCreating", "PodInitializing", "RestartingAllContainers")
NO_RUNTIME = "the container runtime does not answer"
HAS_RIVALS = "another manifest has its name too, and is ignored"
FETCHES = "fetch "
IMAGE_BACKOFF = 'Back-off pulling image "'
LASTING_S = 600.0
"""How long a container that runs again is asked why it ended."""
REFUSED: Mapping[str, tuple[str, str]] = {
    "OutOfcpu": ("the node has not enough CPU left for it", "kepctl top pods -A"),
    "OutOfmemory": ("the node has not enough memory left for it", "kepctl top pods -A"),
    "OutOfpods": ("the node has as many pods as it may", "kepctl get pods -A"),
    "NodePorts": ("a port that it asks for on the node is taken", "kepctl get pods -A"),
    "NodeAffinity": ("its manifest asks for another node", "kepctl describe node"),
    "NodeDrained": ("the node takes no pods", "kepctl uncordon"),
    "NodeShutdown": ("the node is shutting down", "kepctl status"),
    "Terminated": ("the node was shutting down", "kepctl status"),
    "Evicted": ("the node ended it, for something ran short", "kepctl explain eviction"),
    "Preempting": ("it ended to make room for a critical pod", "kepctl get pods -A"),
    "DeadlineExceeded": ("it ran longer than its activeDeadlineSeconds", ""),
}
PROBLEMS: Mapping[str, str] = {
    "FailedMount": "one of its volumes cannot be mounted",
    "NetworkNotReady": "the node has no network for pods",
    "FailedCreatePodSandBox": "the runtime does not make its sandbox",
    "FailedKillPod": "the runtime does not end its sandbox",
    "ClaimUnallocatable": "a claim of it gets no device of this node",
    "ClaimError": "a claim of it cannot be used",
    "FailedPrepareDynamicResources": "a driver did not prepare its devices",
    "CDINotSupported": "the runtime does not give devices to containers",
    "UnexpectedAdmissionError": "a device plugin did not give it a device",
}
PROBLEM_HELP: Mapping[str, str] = {
    "NetworkNotReady": "kepctl doctor",
    "FailedCreatePodSandBox": "kepctl doctor",
    "FailedPrepareDynamicResources": "kepctl get drivers",
}
NEVER_MADE: Mapping[str, str] = {
    "CreateContainerConfigError": "cannot be made as its manifest says",
    "CreateContainerError": "is not created by the runtime",
    "RunContainerError": "is not started by the runtime",
    "StartError": "is not started by the runtime",
    "FailedMount": "lacks a volume",
    "ImageInspectError": "has an image that the runtime cannot look at",
    "ErrImageNeverPull": "has no image on this node, and imagePullPolicy Never forbids to pull it",
    "SignatureValidationFailed": "has an image whose signature is not accepted",
    "RegistryUnavailable": "has no image: its registry cannot be reached",
    "ErrImagePull": "has no image: it cannot be pulled",
    "ImagePullBackOff": "has no image: it cannot be pulled",
}
OF_IMAGES = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed")


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Now by the clock on the wall, and when a container (empty: the pod) is tried again."""

    now_s: float
    due: Mapping[str, float] = msgspec.field(default_factory=dict)

    def until(self, name: str) -> str:
        at_s = self.due.get(name)
        if at_s is None:
            return ""
        return f"in {max(at_s - self.now_s, 0):.0f} s, at {datetime.fromtimestamp(at_s, UTC):%H:%M:%S} UTC"


def pod_reasons(pod: PodState, times: Times | None = None) -> Iterator[Reason]:
    """Without `times` what stays as it is while nothing happens. None for a pod that is well."""
    yield from _of_the_whole(pod, times)
    is_over = pod.phase in ENDED_PHASES or pod.is_terminating or pod.reason in REFUSED
    if not is_over:
        ordered = sorted(pod.containers, key=lambda one: one.kind == "main")
        found = [_of_container(pod, one, times) for one in ordered if one.kind != "ephemeral"]
        yield from filter(None, found)
        gates = next((one for one in pod.conditions if one.type == "Ready" and not one.is_true), None)
        if gates is not None and gates.reason == "ReadinessGatesNotReady":
            yield Reason(cause="it waits for a readiness gate that nothing on this node sets", words=gates.message)
        if pod.waits_for.startswith(FETCHES) and not pod.problem and not any(found):
            image, _, container = pod.waits_for.partition(";")[0].removeprefix(FETCHES).partition(" for ")
            yield Reason(
                cause=f"container {container} waits for its image {image}",
                next="it starts as soon as the image is there",
                command=f"kepctl explain pull {image}",
                image=image,
            )
        elif pod.waits_for and not pod.problem and not any(found):
            yield Reason(cause=f"it waits for {pod.waits_for}", command=f"kepctl get events {_target(pod)}")
    if pod.message.startswith("its last good manifest is in force"):
        yield Reason(
            cause="its manifest has a fault, and the last good one stays in force",
            words=pod.message.partition(": ")[2],
            next="kepd reads the file again when it changes",
            command=f"kepctl validate {pod.file}",
        )
    if pod.message.startswith(HAS_RIVALS):
        rivals = pod.message.partition(": ")[2]
        yield Reason(
            cause=HAS_RIVALS,
            words=rivals,
            next="the first one stays in force; another name, or another namespace, lets both run",
            command=f"kepctl validate {rivals.partition(':')[0]}",
        )


def refused_manifest(findings: Iterable[Finding], name: str) -> Reason | None:
    """Of a pod that is not there, where a manifest that may be its has a fault."""
    word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
    mine = [one for one in findings if word.search(str(one))]
    if not mine:
        return None
    return Reason(
        cause="its manifest cannot be used, so it does not begin",
        words="; ".join(map(str, mine[:MOST_FAULTS])),
        next="kepd reads the file again when it changes",
        command=f"kepctl validate {mine[0].where.partition(':')[0]}",
    )


def _problem_help(pod: PodState) -> str:
    return f"kepctl explain claim --pod {pod.key}" if "Claim" in pod.problem else f"kepctl describe pod {_target(pod)}"


def _of_the_whole(pod: PodState, times: Times | None) -> Iterator[Reason]:
    until = times.until("") if times is not None else ""
    if pod.phase == "Unknown":
        yield Reason(
            cause=f"{NO_RUNTIME}, so nobody knows how it is",
            next="kepd asks it again and again; what runs goes on",
            command="kepctl doctor",
        )
    elif pod.is_terminating:
        yield Reason(
            cause=f"it ends, and waits for {pod.waits_for}" if pod.waits_for else "it ends",
            next="what has not ended when its grace is over is killed",
            command=f"kepctl timeline {_target(pod)}",
        )
    elif pod.reason in REFUSED:
        cause, command = REFUSED[pod.reason]
        is_waiting = pod.phase == "Pending"
        ends = "it begins as soon as that has changed" if is_waiting else "it is not tried again as it is"
        words = pod.message.removeprefix("Pod was rejected: ")
        yield Reason(cause=cause, words=words, next=ends, command=command or f"kepctl describe pod {_target(pod)}")
    elif pod.phase == "Failed":
        yield _failed(pod)
    elif pod.problem:
        cause, words = PROBLEMS.get(pod.problem, "it cannot begin"), pod.message
        if words.startswith(NO_RUNTIME):
            cause, _, words = words.partition(": ")
        yield Reason(
            cause=cause,
            words=quoted(words),
            next=f"kepd tries again {until}" if until else "kepd tries again by itself",
            command=PROBLEM_HELP.get(pod.problem) or _problem_help(pod),
        )


def _failed(pod: PodState) -> Reason:
    bad = [one for one in pod.containers if one.state == TERMINATED and one.exit_code]
    if pod.reason or not bad:
        what = f"it has failed: {pod.reason}" if pod.reason else "it has failed"
        return Reason(cause=what, words=quoted(pod.message), command=f"kepctl describe pod {_target(pod)}")
    first = bad[0]
    return Reason(
        cause=f"container {first.name} {_told_end(pod, first, first.end)}",
        words=_last_words(first.message, first.last_line),
        next=f"it is not tried again: restartPolicy is {pod.spec.restart_policy}",
        command=_logs(pod, first),
        container=first.name,
    )


def _of_container(pod: PodState, one: ContainerState, times: Times | None) -> Reason | None:
    if one.state == WAITING:
        return _waiting(pod, one, times)
    if one.state == TERMINATED:
        is_done = one.exit_code == 0 and (one.kind == "init" or pod.spec.restart_policy != "Always")
        return None if is_done else _ended(pod, one, one.end, times)
    if one.state == RUNNING and one.kind == "init":
        return Reason(
            cause=f"init container {one.name} has not ended yet, and the others wait for it",
            next="kepd waits for it without a limit of time",
            command=_logs(pod, one),
            container=one.name,
        )
    # What liveness says against one that is ready counts as well: it is about to be ended.
    if one.state == RUNNING and (not one.is_ready or _is_doubted(one)) and (reason := _unready(pod, one)) is not None:
        return reason
    is_fresh = times is not None and one.last is not None and times.now_s - one.last.finished_at_s < LASTING_S
    if is_fresh and one.last is not None and (one.last.exit_code or _complaint_of(one, one.last.id)):
        ended = _ended(pod, one, one.last, None)
        return replace(ended, cause=f"{ended.cause}, and runs again", next="", command=_logs(pod, one, is_last=True))
    return None


def _waiting(pod: PodState, one: ContainerState, times: Times | None) -> Reason | None:
    until = times.until(one.name) if times is not None else ""
    if one.reason in PASSING:
        return None
    if one.reason == "CrashLoopBackOff" and one.last is not None:
        return _ended(pod, one, one.last, times)
    again = f"it is tried again {until}" if until else "it is tried again by itself, later and later"
    if one.reason == "PostStartHookError":
        words = one.complaint.text if one.complaint is not None else quoted(one.message)
        cause = f"the postStart hook of container {one.name} failed, so the container is ended"
        return Reason(cause=cause, words=words, next=again, command=_logs(pod, one), container=one.name)
    if one.reason == "InvalidImageName":
        cause = f'container {one.name}: "{one.image}" is no name of an image'
        return Reason(cause=cause, words=quoted(one.message), command=f"kepctl edit pod {_target(pod)}")
    what = NEVER_MADE.get(one.reason, f"does not run ({one.reason})")
    if one.reason in OF_IMAGES:
        what, again = f"{what}, {one.image}", again.replace("tried", "pulled")
        if pod.missing_secrets:
            what += f", and there is no Secret {', '.join(pod.missing_secrets)} to pull it with"
    commands = {"ErrImageNeverPull": f"kepctl pull {one.image}"}
    command = f"kepctl explain pull {one.image}" if one.reason in OF_IMAGES else f"kepctl edit pod {_target(pod)}"
    return Reason(
        cause=f"container {one.name} {what}",
        words=_without_backoff(quoted(one.message)),
        next=again,
        command=commands.get(one.reason, command),
    )


def _ended(pod: PodState, one: ContainerState, last: Termination, times: Times | None) -> Reason:
    until = times.until(one.name) if times is not None else ""
    if until:
        follows = f"it is started again {until}"
    elif one.state == WAITING or (one.state == TERMINATED and _starts_again(pod, one, last)):
        follows = "it is started again, each time after a longer pause"
    else:
        follows = f"it is not started again: restartPolicy is {pod.spec.restart_policy}"
    return Reason(
        cause=f"container {one.name} {_told_end(pod, one, last)}",
        words=_last_words(last.message, last.last_line),
        next=follows,
        command=_logs(pod, one),
        container=one.name,
    )


def _starts_again(pod: PodState, one: ContainerState, last: Termination) -> bool:
    own = next((given.restart_policy for given in _all(pod) if given.name == one.name), "")
    policy = own or pod.spec.restart_policy
    return policy != "Never" and (policy == "Always" or bool(last.exit_code))


def _told_end(pod: PodState, one: ContainerState, last: Termination) -> str:
    times = f", restarted {one.restart_count} times" if one.restart_count else ""
    complaint = _complaint_of(one, last.id)
    if complaint:
        return f"was ended because its {complaint}{times}"
    if last.reason == "OOMKilled":
        limit = one.resources.limits.get("memory", "") or pod.resources.limits.get("memory", "")
        return f"was killed for memory{f', its limit is {limit}' if limit else ''}{times}"
    if last.reason in NEVER_MADE:
        return f"{NEVER_MADE[last.reason]}{times}"
    return f"ended with exit code {last.exit_code}{times}"


def _complaint_of(one: ContainerState, instance: str) -> str:
    """What ended an instance, if a probe or a hook did."""
    found = one.complaint
    if found is None or found.instance != instance or found.kind == "readiness":
        return ""
    return f"{_of_what(found.kind)} failed: {found.text}"


def _of_what(kind: str) -> str:
    return "postStart hook" if kind == "postStart" else f"{kind} probe"


def _is_doubted(one: ContainerState) -> bool:
    return one.complaint is not None and one.complaint.instance == one.id and one.complaint.kind == "liveness"


def _unready(pod: PodState, one: ContainerState) -> Reason | None:
    fields = next((given for given in _all(pod) if given.name == one.name), Container())
    found = one.complaint if one.complaint is not None and one.complaint.instance == one.id else None
    kind = found.kind if found is not None else "readiness" if one.is_started else "startup"
    probes = {
        "readiness": fields.readiness_probe, "liveness": fields.liveness_probe, "startup": fields.startup_probe,
    }  # fmt: skip
    probe = probes.get(kind)
    if probe is None:
        return None
    follows = {
        "readiness": f"kepd asks every {probe.period_s} s; until it answers, Services send it nothing",
        "liveness": f"after {probe.failures} failures in a row it is ended and started again",
        "startup": f"after {probe.failures} failures in a row it is ended and started again",
    }
    does = "fails" if found is not None else "has not answered yet"
    state = "runs, but" if one.is_ready else f"is not {'started' if kind == 'startup' else 'ready'}:"
    return Reason(
        cause=f"container {one.name} {state} its {kind} probe {does} ({_asked(probe)})",
        words=found.text if found is not None else "",
        next=follows[kind],
        command=_logs(pod, one) if found is not None else f"kepctl get events {_target(pod)}",
    )


def _all(pod: PodState) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from pod.spec.init_containers


def _asked(probe: Probe) -> str:
    """What it does, in a word or two."""
    if probe.http_get is not None:
        return f"HTTP GET {probe.http_get.path or '/'} on port {probe.http_get.port}"
    if probe.tcp_socket is not None:
        return f"TCP port {probe.tcp_socket.port}"
    if probe.grpc is not None:
        return f"gRPC port {probe.grpc.port}"
    return f"exec {quoted(' '.join(probe.exec.command))}" if probe.exec is not None else "no question"


def _last_words(message: str, last_line: str) -> str:
    """What it wrote for its end, else what its log ends with."""
    return quoted(message) or last_line


def _without_backoff(text: str) -> str:
    if not text.startswith(IMAGE_BACKOFF):
        return text
    return text.partition('": ')[2].removeprefix("ErrImagePull: ")


def _target(pod: PodState) -> str:
    return pod.name if pod.namespace == "default" else f"{pod.name} -n {pod.namespace}"


def _logs(pod: PodState, one: ContainerState, *, is_last: bool = False) -> str:
    """The log that has the words: of the instance before where the newest has begun anew."""
    return f"kepctl logs {'-p ' if is_last else ''}{_target(pod)} -c {one.name}"

# SPDX-License-Identifier: Apache-2.0
"""What people are shown of a pod: states of containers, phase, conditions, and what it waits for."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from agent.model.finding import printable
from agent.model.pods.container_fields import Resources
from agent.model.pods.fields import Projection, Volume
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.pods.state import (
    RUNNING,
    TERMINATED,
    WAITING,
    Condition,
    ContainerState,
    NamedPort,
    PodState,
    Termination,
    VolumeState,
)
from agent.pods.plan.remembered import ContainerMemory, Memory
from agent.pods.plan.start_steps import WaitingContainer
from agent.pods.plan.stop import blockers_of, kill_time_s
from agent.pods.plan.stop_state import ContainerEnding, HookPhase, Stop
from agent.pods.plan.work import EndingAlone, Launching, MakingSandbox, Work
from agent.pods.runtime.observed import Instance, SeenPod, Stage, left_container
from agent.pods.runtime.qos import qos_class
from agent.pods.view.reasons import pod_reasons

# How pods end that the node itself gave up.
DISRUPTIONS = ("Evicted", "Terminated", "Preempting")
MOST_MESSAGE_BYTES = 12 << 10
REASONS = {128: "StartError", 255: "Unknown"}


class Look(msgspec.Struct, frozen=True, kw_only=True):
    pod: PodSpec
    seen: SeenPod
    memory: Memory
    waiting: Sequence[WaitingContainer] = ()
    waits_for: str = ""
    message: str = ""
    is_terminating: bool = False
    deletion: tuple[float, int] = (0.0, 0)
    host_ips: tuple[str, ...] = ()
    is_restarting_all: bool = False
    more_conditions: tuple[Condition, ...] = ()
    missing_secrets: tuple[str, ...] = ()


def pod_status(look: Look, *, is_seen: bool = True) -> PodState:
    """One that the runtime was not asked about yet is as its record says, or `Unknown`."""
    pod, seen, memory = look.pod, look.seen, look.memory
    containers = tuple(
        replace(_container(look, one), resources=_with_requests(memory.of(one.name).resources or one.fields.resources))
        for one in pod.containers
    )
    added = [left_container(one) for one in seen.ephemerals if one.name not in pod.by_name]
    active = seen.active
    sandbox = active or (seen.sandboxes[0] if seen.sandboxes else None)
    outcome = memory.outcome
    phase = _phase(pod, seen, memory, containers) if is_seen else "Unknown"
    phase = outcome.phase if outcome is not None else phase
    reasons = (memory.message if memory.reason else "", outcome.message if outcome is not None else "", look.message)
    state = PodState(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        phase=phase,
        reason=outcome.reason if outcome is not None else "" if is_seen else phase,
        message=printable("; ".join(text for text in reasons if text)),
        waits_for=printable(look.waits_for),
        ip=_address(look),
        host_ips=look.host_ips,
        sandbox_id=sandbox.id if sandbox is not None else "",
        name_servers=sandbox.name_servers if sandbox is not None else "",
        created_at_s=memory.first_seen_wall_s,
        is_terminating=look.is_terminating,
        deletion_at_s=look.deletion[0],
        deletion_grace_s=look.deletion[1],
        qos=qos_class(pod),
        file=printable(pod.file),
        conditions=_conditions(look, phase, containers),
        containers=(*containers, *(_container(look, one) for one in added)),
        resources=_with_requests(pod.spec.resources),
        labels=pod.labels,
        annotations=pod.annotations,
        spec=pod.spec,
        manifest_name=pod.manifest_name,
        owner=pod.owner,
        given=pod.given,
        volumes=volumes_of(pod),
        ports=named_ports(pod),
        missing_secrets=look.missing_secrets,
        problem=memory.reason,
    )
    return replace(state, cause=next((one.line for one in pod_reasons(state)), ""))


def _with_requests(given: Resources) -> Resources:
    """A request that is missing is the limit."""
    return replace(given, requests={**given.limits, **given.requests})


def _address(look: Look) -> str:
    active = look.seen.active
    if active is not None and active.is_host_network and look.host_ips:
        return look.host_ips[0]
    return (active.ip or "") if active is not None else ""


def _container(look: Look, one: ContainerSpec) -> ContainerState:
    seen = look.seen.newest(one.name)
    memory = look.memory.of(one.name)
    if seen is None:
        return _never_made(look, one, memory)
    known = memory.of(seen.id)
    is_running = seen.stage is Stage.RUNNING
    is_started = is_running and known.is_started
    state, reason, message = _word(look, one, seen, memory)
    if one.kind is ContainerKind.INIT:
        # It has done what it is there for, which a kubelet calls ready.
        is_ready = state == TERMINATED and seen.exit_code == 0
    else:
        is_ready = is_started and known.is_ready
    last = _last(look, one, seen, is_shown=state == TERMINATED)
    most_bytes = MOST_MESSAGE_BYTES // len(look.pod.containers)
    return ContainerState(
        name=one.name,
        image=one.image,
        kind=one.kind.value,
        id=seen.id,
        state=state,
        reason=reason,
        message=_last_words(message, most_bytes) if state == TERMINATED else printable(message),
        exit_code=seen.exit_code if state == TERMINATED else 0,
        started_at_s=seen.started_wall_s if state != WAITING else 0.0,
        finished_at_s=seen.finished_wall_s if state == TERMINATED else 0.0,
        restart_count=seen.attempt,
        is_ready=is_ready,
        is_started=is_started,
        image_id=seen.image_id,
        stop_signal=seen.stop_signal,
        last=last,
        last_line=seen.last_line if state == TERMINATED else "",
        complaint=memory.complaint,
    )


def _never_made(look: Look, one: ContainerSpec, memory: ContainerMemory) -> ContainerState:
    if one.kind is not ContainerKind.MAIN and one.name in look.memory.passed:
        # Its instance is collected; that it was done is known.
        is_init = one.kind is ContainerKind.INIT
        return ContainerState(
            name=one.name, image=one.image, kind=one.kind.value, state=TERMINATED, reason="Completed", is_ready=is_init
        )
    reason = memory.reason or ("RestartingAllContainers" if look.is_restarting_all else _creating(look))
    return ContainerState(
        name=one.name, image=one.image, kind=one.kind.value, reason=reason, message=printable(memory.message)
    )


def _creating(look: Look) -> str:
    return "PodInitializing" if look.pod.spec.init_containers else "ContainerCreating"


def _word(look: Look, one: ContainerSpec, seen: Instance, memory: ContainerMemory) -> tuple[str, str, str]:
    if seen.stage is Stage.RUNNING:
        return RUNNING, "", ""
    if look.is_restarting_all and one.kind is not ContainerKind.EPHEMERAL:
        return WAITING, "RestartingAllContainers", ""
    if seen.stage is Stage.CREATED:
        return WAITING, memory.reason or _creating(look), memory.message
    if seen.stage is Stage.UNKNOWN:
        return RUNNING, "ContainerStateUnknown", ""
    is_waiting = any(waiting.name == one.name for waiting in look.waiting)
    is_over = look.is_terminating or look.memory.outcome is not None
    if not is_over and memory.post_start is HookPhase.FAILED and memory.instance == seen.id:
        return WAITING, "PostStartHookError", memory.message
    if not is_over and memory.reason:
        return WAITING, memory.reason, memory.message
    if not is_over and is_waiting and memory.may_restart(look.pod, one, seen):
        pod = look.pod
        text = f"back-off {_pause(look, one)} restarting failed container={one.name} pod={pod.full_name}"
        return WAITING, "CrashLoopBackOff", text
    if not is_over and memory.renewed == seen.id:
        return WAITING, _creating(look), ""
    return TERMINATED, _reason_of(seen), seen.message


def _pause(look: Look, one: ContainerSpec) -> str:
    until_s = next((waiting.until_s for waiting in look.waiting if waiting.name == one.name), None)
    ended = look.seen.newest(one.name)
    if until_s is None or ended is None:
        return "0s"
    minutes, seconds = divmod(round(until_s - ended.finished_s), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _reason_of(ended: Instance) -> str:
    """As the runtime says, else by the exit code."""
    if ended.reason:
        return ended.reason
    return REASONS.get(ended.exit_code, "Error") if ended.exit_code else "Completed"


def _last_words(text: str, most_bytes: int) -> str:
    """All containers of a pod have 12 KiB, each its even share. Lines stay lines."""
    cut = text.encode("utf-8", "replace")[:most_bytes].decode("utf-8", "ignore")
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in cut)


def _termination(ended: Instance, most_bytes: int) -> Termination:
    return Termination(
        exit_code=ended.exit_code,
        reason=_reason_of(ended),
        message=_last_words(ended.message, most_bytes),
        started_at_s=ended.started_wall_s,
        finished_at_s=ended.finished_wall_s,
        id=ended.id,
        last_line=ended.last_line,
    )


def _last(look: Look, one: ContainerSpec, newest: Instance, *, is_shown: bool) -> Termination | None:
    """The end before the state that is shown."""
    ended = [other for other in look.seen.instances if other.name == one.name and other.stage is Stage.ENDED]
    if is_shown:
        ended = [other for other in ended if other is not newest]
    return _termination(ended[0], MOST_MESSAGE_BYTES // len(look.pod.containers)) if ended else None


def _phase(pod: PodSpec, seen: SeenPod, memory: Memory, containers: Sequence[ContainerState]) -> str:
    inits = [one for one in pod.containers if one.kind is ContainerKind.INIT]
    mains = [one for one in pod.containers if one.kind is ContainerKind.MAIN]
    if not memory.is_initialised and any(one.name not in memory.passed for one in inits):
        ended = [(one, seen.newest(one.name)) for one in inits]
        is_lost = any(it and not it.has_succeeded and _has_ended(pod, memory, one, it) for one, it in ended)
        return "Failed" if is_lost else "Pending"
    instances = [(one, seen.newest(one.name)) for one in mains]
    if any(it is None or it.stage is Stage.CREATED for _, it in instances):
        return "Pending"
    if any(one.state == RUNNING for one in containers if one.kind != ContainerKind.INIT):
        return "Running"
    if not all(it and _has_ended(pod, memory, one, it) for one, it in instances):
        return "Running"
    return "Succeeded" if all(it and it.has_succeeded for _, it in instances) else "Failed"


def _has_ended(pod: PodSpec, memory: Memory, one: ContainerSpec, instance: Instance) -> bool:
    """For good: neither its own policy and rules nor the pod's start it again."""
    return instance.stage is Stage.ENDED and not memory.of(one.name).may_restart(pod, one, instance)


def _conditions(look: Look, phase: str, containers: Sequence[ContainerState]) -> tuple[Condition, ...]:
    active = look.seen.active
    has_network = active is not None and (bool(active.ip) or active.is_host_network)
    ready = _readiness(phase, containers)
    gates = look.pod.spec.readiness_gates
    pod_ready = ready
    if ready.is_true and gates:
        text = "; ".join(
            f'corresponding condition of pod readiness gate "{one.condition_type}" does not exist.' for one in gates
        )
        pod_ready = Condition(type="Ready", is_true=False, reason="ReadinessGatesNotReady", message=text)
    return (
        Condition(type="PodReadyToStartContainers", is_true=has_network),
        _initialised(look, phase, containers),
        replace(pod_ready, type="Ready"),
        ready,
        Condition(type="PodScheduled", is_true=True),
        *((Condition(type="AllContainersRestarting", is_true=True),) if look.is_restarting_all else ()),
        *look.more_conditions,
        *_disruption(look),
    )


def _disruption(look: Look) -> tuple[Condition, ...]:
    """It was the node that ended the pod, not the pod's own work."""
    ended = look.memory.outcome or look.memory.ending_as
    if ended is None or ended.reason not in DISRUPTIONS:
        return ()
    return (Condition(type="DisruptionTarget", is_true=True, reason="TerminationByKubelet", message=ended.message),)


def _initialised(look: Look, phase: str, containers: Sequence[ContainerState]) -> Condition:
    waiting = [one.name for one in containers if one.kind != ContainerKind.MAIN and one.name not in look.memory.passed]
    if look.memory.is_initialised or not waiting or phase == "Succeeded":
        return Condition(type="Initialized", is_true=True, reason="PodCompleted" if phase == "Succeeded" else "")
    text = f"containers with incomplete status: [{' '.join(waiting)}]"
    return Condition(type="Initialized", is_true=False, reason="ContainersNotInitialized", message=text)


def _readiness(phase: str, containers: Sequence[ContainerState]) -> Condition:
    if phase in ("Succeeded", "Failed"):
        reason = "PodCompleted" if phase == "Succeeded" else "PodFailed"
        return Condition(type="ContainersReady", is_true=False, reason=reason)
    unready = [one.name for one in containers if one.kind != ContainerKind.INIT and not one.is_ready]
    if not unready:
        return Condition(type="ContainersReady", is_true=True)
    text = f"containers with unready status: [{' '.join(unready)}]"
    return Condition(type="ContainersReady", is_true=False, reason="ContainersNotReady", message=text)


def volumes_of(pod: PodSpec) -> tuple[VolumeState, ...]:
    return tuple(
        VolumeState(name=one.name, source=printable(_source(one)), mounts=tuple(_mounts(pod, one.name)))
        for one in pod.spec.volumes
    )


def _mounts(pod: PodSpec, volume: str) -> Iterator[str]:
    for container in pod.containers:
        for mount in container.fields.volume_mounts:
            if mount.name == volume:
                yield printable(f"{container.name}:{mount.mount_path}") + (" (ro)" if mount.read_only else "")


def _source(one: Volume) -> str:
    if one.host_path is not None:
        return f"hostPath {one.host_path.path}"
    if one.persistent_volume_claim is not None:
        return f"persistentVolumeClaim {one.persistent_volume_claim.claim_name}"
    if one.config_map is not None:
        return f"configMap {one.config_map.name}"
    if one.secret is not None:
        return f"secret {one.secret.secret_name}"
    if one.image is not None:
        return f"image {one.image.reference}"
    if one.downward_api is not None:
        return "downwardAPI"
    if one.projected is not None:
        return f"projected {', '.join(_projected(source) for source in one.projected.sources)}"
    medium = one.empty_dir.medium if one.empty_dir is not None else ""
    return f"emptyDir in {medium}" if medium else "emptyDir"


def _projected(source: Projection) -> str:
    if source.config_map is not None:
        return f"configMap {source.config_map.name}"
    if source.secret is not None:
        return f"secret {source.secret.name}"
    return "downwardAPI" if source.downward_api is not None else "of another kind"


def named_ports(pod: PodSpec) -> tuple[NamedPort, ...]:
    return tuple(
        NamedPort(name=port.name, port=port.container_port)
        for container in pod.containers
        for port in container.fields.ports
        if port.name
    )


def why_starting(waiting: Sequence[WaitingContainer], works: Iterable[Work], problem: str, now_s: float) -> str:
    parts = [problem] if problem else []
    for work in works:
        match work:
            case Launching(name) if not problem:
                parts.append(f"{name} to start")
            case EndingAlone(name):
                parts.append(f"{name} to end")
            case MakingSandbox():
                parts.append("its sandbox")
            case _:
                pass
    for one in waiting:
        if one.why == "activeDeadlineSeconds" or (problem and not one.name):
            continue
        left = f", again in {max(one.until_s - now_s, 0):.0f} s" if one.until_s is not None else ""
        parts.append(f"{one.name}: {one.why}{left}" if one.name else f"{one.why}{left}")
    return "; ".join(dict.fromkeys(parts))


def why_stopping(stop: Stop, now_s: float) -> str:
    parts = [text for one in stop.containers if (text := _why(stop, one, now_s))]
    left_s = stop.deadline_s - now_s
    parts.append(f"{left_s:.0f} s of its grace left" if left_s > 0 else "its grace is over")
    return "; ".join(parts)


def _why(stop: Stop, one: ContainerEnding, now_s: float) -> str:
    if one.is_starting:
        return f"{one.name} to be restarted, others need it"
    if not one.is_running:
        return ""
    if one.hook_phase is HookPhase.RUNNING:
        return f"preStop hook of {one.name}, running for {now_s - (one.hook_began_s or now_s):.0f} s"
    if one.killed_s is not None:
        return f"{one.name} to be killed"
    if one.signalled_s is not None:
        return f"{one.name} to end, killed in {max(kill_time_s(stop, one) - now_s, 0):.0f} s"
    blockers = blockers_of(stop, one.name)
    return f"{one.name}'s turn after {', '.join(blockers)}" if blockers else ""

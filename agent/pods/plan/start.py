# SPDX-License-Identifier: Apache-2.0
"""What has to be done next so that a pod runs as its manifest says, or is over as it says.

Sandbox loss (SBX), the order of init containers, sidecars and mains (STA), restarts and their pauses (RST), the end of
a pod whose work is done. Planning again after any step, also after a crash, goes on where the state shows;
planning what is as wanted gives nothing. Never: restarts anything because kepd did.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec, container_hash
from agent.pods.plan.remembered import RENEWING, Memory
from agent.pods.plan.restart import RESTART_ALL, matching_action
from agent.pods.plan.start_steps import (
    BeginStop,
    EndContainer,
    Finish,
    Launch,
    MakeSandbox,
    RestartAll,
    Settle,
    Situation,
    StartPlan,
    StartRules,
    StartStep,
    WaitingContainer,
)
from agent.pods.plan.stop_state import HookPhase, Trigger
from agent.pods.plan.work import Work, is_pod_at_work
from agent.pods.runtime.observed import Instance, SeenPod, SeenSandbox, Stage

TINY_S = 1e-6
BEFORE_START = (HookPhase.NONE, HookPhase.RUNNING, HookPhase.CANCELLED)
NO_WORK: frozenset[Work] = frozenset()


def plan_start(
    pod: PodSpec, seen: SeenPod, memory: Memory, now_s: float, rules: StartRules, *, works: frozenset[Work] = NO_WORK
) -> StartPlan:
    at = Situation(pod, seen, memory, works, rules, now_s)
    if memory.outcome is not None:
        return StartPlan()
    if overdue := _deadline(at):
        return overdue
    if needs_sandbox(pod, seen):
        return _sandbox(at)
    if ended := _conclusion(at):
        return StartPlan((ended,))
    if is_pod_at_work(at.works):
        return StartPlan()
    ends = tuple(_faults(at))
    restart_all = _restart_all(at)
    if restart_all is not None:
        return StartPlan((restart_all,))
    settles = tuple(_unsettled(at))
    launches = _Launches(at, busy={*at.busy, *(one.name for one in ends), *(one.name for one in settles)})
    launches.plan()
    return StartPlan((*ends, *settles, *launches.steps), (*launches.waiting, *_deadline_wait(at)))


def note_progress(pod: PodSpec, seen: SeenPod, memory: Memory) -> Memory:
    """Keep what the runtime shows of the start's progress: instances are collected, this is not. Only the
    active sandbox is evidence."""
    active = seen.active
    if active is None:
        return memory
    memory = memory.in_sandbox(active.id)
    passed = set(memory.passed)
    entries = [one for one in pod.containers if one.kind is not ContainerKind.MAIN]
    for one in pod.containers:
        instance = seen.newest(one.name, active.id)
        if instance is None:
            continue
        known = memory.of(one.name).of(instance.id)
        if one.kind is ContainerKind.INIT:
            is_passed = known.has_done_its_work(instance)
        elif one.kind is ContainerKind.SIDECAR:
            is_passed = known.is_started
        else:
            is_passed = instance.stage is Stage.ENDED or known.post_start not in BEFORE_START
        if is_passed:
            passed.add(one.name)
    mains = [seen.newest(one.name, active.id) for one in pod.containers if one.kind is ContainerKind.MAIN]
    # One that was only created may have been so ahead of its turn.
    has_main = any(one is not None and one.stage is not Stage.CREATED for one in mains)
    is_initialised = memory.is_initialised or has_main or (all(one.name in passed for one in entries) and bool(entries))
    if passed == memory.passed and is_initialised == memory.is_initialised:
        return memory
    return replace(memory, passed=frozenset(passed), is_initialised=is_initialised)


def needs_sandbox(pod: PodSpec, seen: SeenPod) -> bool:
    active = seen.active
    if active is None or sum(one.is_ready for one in seen.sandboxes) > 1:
        return True
    if active.is_host_network != pod.spec.host_network:
        return True
    return not pod.spec.host_network and active.ip == ""


def _sandbox(at: Situation) -> StartPlan:
    newest = at.seen.sandboxes[0] if at.seen.sandboxes else None
    if newest is not None and _is_over_without_sandbox(at):
        return StartPlan((_final(at),))
    if not at.is_idle:
        return StartPlan()
    if at.seen.running:
        return StartPlan((BeginStop(Trigger.COMPLETE, "sandbox", float(at.pod.grace_s)),))
    if at.memory.retry_s > at.now_s + TINY_S:
        return StartPlan((), (WaitingContainer("", at.memory.message or "the sandbox", at.memory.retry_s),))
    inits = {one.name for one in at.pod.containers if one.kind is not ContainerKind.MAIN}
    removes = tuple(one.id for one in at.seen.instances if one.name in inits)
    attempt = max((one.attempt for one in at.seen.sandboxes), default=-1) + 1
    return StartPlan((MakeSandbox(attempt, tuple(one.id for one in at.seen.sandboxes), removes),))


def _is_over_without_sandbox(at: Situation) -> bool:
    if at.seen.running:
        return False
    policy = at.pod.spec.restart_policy
    if policy == "Never":
        return any(not one.is_ephemeral for one in at.seen.instances)
    mains = [at.seen.newest(one.name) for one in _mains(at)]
    return policy == "OnFailure" and bool(mains) and all(one is not None and at.is_done(one) for one in mains)


def _mains(at: Situation) -> list[ContainerSpec]:
    return [one for one in at.pod.containers if one.kind is ContainerKind.MAIN]


def _final(at: Situation) -> StartStep:
    """Stop what is left, at least the sandbox, then say how it ended."""
    if at.seen.running or at.seen.active is not None:
        return BeginStop(Trigger.COMPLETE, "completed", float(at.pod.grace_s))
    return Finish(final_phase(at.pod, at.seen, at.rules.keystone))


def final_phase(pod: PodSpec, seen: SeenPod, keystone: str = "") -> str:
    """Of a pod in which nothing runs any more: mains count, sidecars never do."""
    if keystone and (stone := seen.newest(keystone)) is not None:
        return "Succeeded" if stone.has_succeeded else "Failed"
    mains = [seen.newest(one.name) for one in pod.containers if one.kind is ContainerKind.MAIN]
    return "Succeeded" if all(one is not None and one.has_succeeded for one in mains) else "Failed"


def _conclusion(at: Situation) -> StartStep | None:
    """And the failures that end a pod."""
    if any(name in at.busy for name in (one.name for one in _mains(at))):
        return None
    if _has_failed_init(at) or _has_restarted_too_often(at):
        return _final(at)
    stone = at.instance(at.rules.keystone) if at.rules.keystone else None
    if stone is not None and stone.stage is Stage.ENDED and at.memory.of(stone.name).renewed != stone.id:
        return _final(at)
    for one in _mains(at):
        ended = at.instance(one.name) or _kept_success(at, one)
        if ended is None or ended.stage is not Stage.ENDED:
            return None
        if at.may_restart(one, ended):
            return None
    return _final(at)


def _kept_success(at: Situation, main: ContainerSpec) -> Instance | None:
    """What exited 0 in an earlier sandbox is not started again under OnFailure."""
    known = at.seen.newest(main.name)
    is_kept = (
        known is not None and not known.is_ephemeral and at.is_done(known) and at.pod.spec.restart_policy == "OnFailure"
    )
    return known if is_kept else None


def _has_failed_init(at: Situation) -> bool:
    if at.memory.is_initialised:
        return False
    for one in at.pod.containers:
        ended = at.instance(one.name) if one.kind is ContainerKind.INIT else None
        if ended is None or ended.stage is not Stage.ENDED or at.is_done(ended) or one.name in at.busy:
            continue
        if not at.may_restart(one, ended):
            return True
    return False


def _has_restarted_too_often(at: Situation) -> bool:
    most = at.rules.most_restarts
    if most is None:
        return False
    instances = [at.instance(one.name) for one in at.pod.containers if one.kind is not ContainerKind.INIT]
    ended = [one for one in instances if one is not None and one.stage is Stage.ENDED]
    ended = [one for one in ended if at.memory.of(one.name).renewed != one.id]
    window_s = at.rules.restart_window_s
    if not window_s:
        return any(one.attempt >= most for one in ended)
    backoffs = [(at.memory.of(one.name).backoff, one.finished_s) for one in ended]
    return any(one.restarts_since(one.ended_s(finished_s) - window_s) >= most for one, finished_s in backoffs)


def _faults(at: Situation) -> Iterator[EndContainer]:
    """Containers that have to end for a fault of their own, all at once."""
    for one in at.pod.containers:
        seen = at.instance(one.name)
        if seen is None or not seen.is_running or one.name in at.busy:
            continue
        failing = at.memory.of(one.name).failing
        is_changed = bool(seen.hash) and seen.hash != container_hash(one.fields)
        if failing is not None and failing.instance == seen.id:
            grace_s = at.pod.grace_s if failing.grace_s is None else failing.grace_s
            yield EndContainer(seen, failing.message, grace_s, is_changed or failing.cause in RENEWING)
        elif seen.stage is Stage.UNKNOWN:
            text = f"Container {one.name} is in unknown state, try killing it"
            yield EndContainer(seen, text, at.pod.grace_s, is_changed)
        elif is_changed:
            text = f"Container {one.name} definition changed, will be restarted"
            yield EndContainer(seen, text, at.pod.grace_s, is_renewed=True)
    for one_left in _leaving(at):
        if one_left.name not in at.busy:
            text = f"Container {one_left.name} is no longer in the manifest, will be ended"
            yield EndContainer(one_left, text, at.pod.grace_s)


def _leaving(at: Situation) -> list[Instance]:
    """What the manifest has no longer; ephemeral containers it never had."""
    return [one for one in at.seen.running if one.name not in at.pod.by_name and not one.is_ephemeral]


def _unsettled(at: Situation) -> Iterator[Settle]:
    for one in at.pod.containers:
        seen = at.instance(one.name)
        if seen is None or seen.stage is not Stage.RUNNING or one.name in at.busy:
            continue
        known = at.memory.of(one.name).of(seen.id)
        # The last is what earlier versions made of a hook that was cut off.
        is_left = known.post_start is HookPhase.OK and not known.is_started and one.fields.startup_probe is None
        if (known.post_start in (HookPhase.NONE, HookPhase.CANCELLED) or is_left) and known.failing is None:
            yield Settle(seen)


def _restart_all(at: Situation) -> RestartAll | None:
    for one in at.pod.containers:
        ended = at.instance(one.name)
        if ended is None or ended.stage is not Stage.ENDED or at.memory.of(one.name).killed == ended.id:
            continue
        if matching_action(one.fields, ended.exit_code) == RESTART_ALL and at.is_idle:
            # One that ends again and again is waited for as any other; the launches say how long.
            due_s = at.memory.of(one.name).backoff.due_s(ended.finished_s, at.rules.curve)
            if due_s <= at.now_s + TINY_S:
                return RestartAll(one.name, ended.finished_s)
    return None


def _deadline(at: Situation) -> StartPlan | None:
    limit_s = at.pod.spec.active_deadline_seconds
    if limit_s is None or at.now_s + TINY_S < at.memory.first_seen_s + limit_s:
        return None
    if at.seen.running or not at.is_idle or at.seen.active is not None:
        return StartPlan((BeginStop(Trigger.COMPLETE, "deadline", float(at.pod.grace_s)),))
    text = "Pod was active on the node longer than the specified deadline"
    return StartPlan((Finish("Failed", "DeadlineExceeded", text),))


def _deadline_wait(at: Situation) -> tuple[WaitingContainer, ...]:
    limit_s = at.pod.spec.active_deadline_seconds
    return () if limit_s is None else (WaitingContainer("", "activeDeadlineSeconds", at.memory.first_seen_s + limit_s),)


class _Launches:
    def __init__(self, at: Situation, busy: set[str]) -> None:
        self._at = at
        self._busy = busy
        self._active: SeenSandbox | None = at.seen.active
        self._leaving = [one.name for one in _leaving(at)]
        self.steps: list[Launch] = []
        self.waiting: list[WaitingContainer] = []

    def plan(self) -> None:
        if not self._at.memory.is_initialised and not self._inits():
            return
        if self._at.memory.is_initialised:
            for one in self._at.pod.containers:
                if one.kind is ContainerKind.SIDECAR:
                    self._keep_up(one)
        self._mains()

    def _inits(self) -> bool:
        """The entries in their order; whether all are done."""
        for one in self._at.pod.containers:
            if one.kind is ContainerKind.MAIN:
                break
            if not self._is_done(one):
                # Sidecars before it are kept up meanwhile.
                return False
        return True

    def _is_done(self, one: ContainerSpec) -> bool:
        seen = self._at.instance(one.name)
        if one.kind is ContainerKind.INIT:
            if one.name in self._at.memory.passed or (seen is not None and self._at.is_done(seen)):
                return True
            self._keep_up(one)
            return False
        self._keep_up(one)
        is_started = seen is not None and seen.is_running and self._at.memory.of(one.name).of(seen.id).is_started
        if is_started or (one.name in self._at.memory.passed and not self._is_last_before_next(one)):
            return True
        self.waiting.append(WaitingContainer("", f"{one.name} to be started"))
        return False

    def _is_last_before_next(self, one: ContainerSpec) -> bool:
        listed = [other for other in self._at.pod.containers if other.kind is not ContainerKind.MAIN]
        place = listed.index(one)
        later = listed[place + 1] if place + 1 < len(listed) else None
        return later is None or self._at.instance(later.name) is None

    def _mains(self) -> None:
        """One after the other; one that cannot start holds no other up."""
        is_graph = bool(self._at.rules.needs)
        for one in self._at.pod.containers:
            if one.kind is not ContainerKind.MAIN:
                continue
            is_first_start = one.name not in self._at.memory.passed and not self._at.memory.of(one.name).reason
            if is_first_start and one.name in self._busy and not is_graph:
                self.waiting.append(WaitingContainer("", f"{one.name} to be started"))
                return
            if self._keep_up(one) and is_first_start and not is_graph:
                return

    def _keep_up(self, one: ContainerSpec) -> bool:
        """Start it if it does not run and should; True if it is being started now."""
        seen = self._at.instance(one.name)
        if one.name in self._busy or (seen is not None and seen.is_running) or self._active is None:
            return False
        if seen is None and _kept_success(self._at, one) is not None and one.kind is ContainerKind.MAIN:
            return False
        if seen is None and self._leaving:
            # It may come after what leaves, or in its place.
            self.waiting.append(WaitingContainer(one.name, f"{', '.join(self._leaving)} to end"))
            return False
        if missing := self._missing(one):
            self.waiting.append(WaitingContainer(one.name, missing))
            return False
        due_s, why = self._due_s(one, seen)
        if due_s is None:
            return False
        if due_s > self._at.now_s + TINY_S:
            self.waiting.append(WaitingContainer(one.name, why, due_s))
            return False
        unstarted = tuple(
            other.id for other in self._at.seen.instances if other.name == one.name and other.stage is Stage.CREATED
        )
        ended_s = seen.finished_s if seen is not None and seen.stage is Stage.ENDED else None
        # What never started was no attempt, and its name is free when it is gone.
        kept = [other for other in self._at.seen.instances if other.id not in unstarted]
        attempt = SeenPod((), tuple(kept)).next_attempt(one.name)
        self.steps.append(Launch(one.name, attempt, self._active.id, unstarted, ended_s))
        self._busy.add(one.name)
        return True

    def _due_s(self, one: ContainerSpec, seen: Instance | None) -> tuple[float | None, str]:
        """When it may start and what it waits for; None if it must not."""
        memory = self._at.memory.of(one.name)
        retry_s = memory.retry_s if memory.reason else 0.0
        if seen is None or seen.stage is Stage.CREATED:
            return retry_s, memory.message
        if not self._at.may_restart(one, seen):
            return None, ""
        due_s = memory.backoff.due_s(seen.finished_s, self._at.rules.curve)
        return max(due_s, retry_s), "back-off"

    def _missing(self, one: ContainerSpec) -> str:
        """The first need that is not met."""
        for need in self._at.rules.needs.get(one.name, ()):
            if need.name in self._at.memory.passed and self._at.pod.by_name[need.name].kind is ContainerKind.INIT:
                # It has started and completed, and may have been collected since.
                continue
            other = self._at.instance(need.name)
            memory = self._at.memory.of(need.name).of(other.id) if other is not None else None
            is_met = (
                other is not None
                and memory is not None
                and {
                    "started": other.is_running and memory.is_started,
                    "ready": other.is_running and memory.is_ready,
                    "completed": self._at.is_done(other),
                }[need.condition]
            )
            if not is_met:
                return f"{need.name} to be {need.condition}"
        return ""

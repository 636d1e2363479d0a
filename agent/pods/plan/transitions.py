# SPDX-License-Identifier: Apache-2.0
"""What becomes of the memory of a pod when somebody wants it to end, to begin anew, or to be tried again at once.

People, manifests, evictions and the node's end come here; who is asked changes nothing else. Pure.
"""

from collections.abc import Callable, Collection, Iterable

import msgspec
from msgspec.structs import replace

from agent.model.pods.pod import PodSpec
from agent.pods.plan.remembered import (
    ContainerMemory,
    Failing,
    Memory,
    PodOutcome,
    begun_anew,
    without_outdated,
    without_problem,
)
from agent.pods.plan.scarcity.victims import EVICTED
from agent.pods.plan.stop_state import Stop, shortened
from agent.pods.runtime.observed import Instance, SeenPod

EVICTIONS_KEPT = 10
DEADLINE_TEXT = "Pod was active on the node longer than the specified deadline"
DEADLINE = PodOutcome(phase="Failed", reason="DeadlineExceeded", message=DEADLINE_TEXT)
SOURCE_PROBLEMS = ("CreateContainerConfigError", "FailedMount", "ErrImagePull", "ImagePullBackOff")
DEVICE_PROBLEMS = (
    "ClaimUnallocatable", "ClaimError", "FailedPrepareDynamicResources", "CDINotSupported", "UnexpectedAdmissionError",
)  # fmt: skip


class Removal(msgspec.Struct, frozen=True):
    """That a pod ends for good: within how long (None where that is not said), since when, and why."""

    grace_s: float | None = None
    began_s: float = 0.0
    cause: str = "removed"


def removed(before: Removal | None, pod: PodSpec, grace_s: float | None, cause: str, now_s: float) -> Removal:
    """A later wish may only shorten."""
    wanted_s = float(pod.grace_s) if grace_s is None else grace_s
    if before is None:
        return Removal(wanted_s, now_s, cause)
    is_shorter = before.grace_s is None or wanted_s < before.grace_s
    return Removal(wanted_s if is_shorter else before.grace_s, before.began_s, cause)


def deletion(
    removal: Removal | None, pod: PodSpec, stop: Stop | None, now_s: float, wall_s: float
) -> tuple[float, int]:
    """As wall time when the grace of its removal is over, and the grace; zeros for a pod that is not removed."""
    if removal is None:
        return 0.0, 0
    grace_s = float(pod.grace_s) if removal.grace_s is None else removal.grace_s
    until_s = stop.deadline_s if stop is not None else (removal.began_s or now_s) + grace_s
    return wall_s + until_s - now_s, int(grace_s)


def edited(memory: Memory, before: PodSpec, pod: PodSpec) -> Memory:
    """The manifest is another: what was wrong with the last one is tried again."""
    memory = without_outdated(memory, before, pod)
    return _each(memory, memory.containers, without_problem)


def tried_again(memory: Memory, reasons: Collection[str], *, is_anew: bool) -> Memory:
    """What failed for one of these reasons waits no longer; where `is_anew`, its pauses begin from the shortest."""

    def again(known: ContainerMemory) -> ContainerMemory:
        if known.reason not in reasons:
            return known
        return replace(known, retry_s=0.0, pause_s=0.0 if is_anew else known.pause_s)

    memory = _each(memory, memory.containers, again)
    if memory.reason not in reasons:
        return memory
    return replace(memory, retry_s=0.0, pause_s=0.0 if is_anew else memory.pause_s)


def without_backoff(memory: Memory, names: Iterable[str]) -> Memory:
    """Of containers and of the pod; how often they restarted is forgotten as well."""
    memory = _each(memory, names, lambda one: replace(without_problem(one), backoff=replace(one.backoff, restarts=0)))
    return replace(memory, reason="", message="", pause_s=0.0, retry_s=0.0)


def asked_to_restart(memory: Memory, instances: Iterable[Instance]) -> Memory:
    """Containers end with hooks and grace, and start again; the policy decides nothing here."""
    for one in instances:
        failing = Failing(instance=one.id, cause="asked", message=f"Container {one.name} is restarted on request")
        memory = memory.changed(one.name, lambda known, new=failing: replace(known.of(new.instance), failing=new))  # type: ignore[misc]
    return memory


def evicted(memory: Memory, now_s: float) -> Memory:
    return replace(memory, evictions=(*memory.evictions, now_s)[-EVICTIONS_KEPT:])


def evicted_as(message: str) -> PodOutcome:
    return PodOutcome(phase="Failed", reason=EVICTED, message=message)


def hurried(memory: Memory, cause: str, grace_s: float, outcome: PodOutcome, now_s: float) -> Memory:
    """One that ends already has to hurry. Grace 0 is no force here; and what would have begun anew in another sandbox
    does not."""
    if memory.stop is None:
        return memory
    memory = replace(memory, stop=shortened(memory.stop, max(grace_s, 1.0), now_s))
    return replace(memory, stop_cause=cause, ending_as=outcome) if memory.stop_cause == "sandbox" else memory


def shortened_for_good(memory: Memory, cause: str, grace_s: float, now_s: float) -> Memory:
    """An end that goes on is now one after which nothing is left."""
    if memory.stop is None:
        return memory
    return replace(memory, stop=shortened(memory.stop, grace_s, now_s), stop_cause=cause, ending_as=None)


def revived(memory: Memory, pod: PodSpec, seen: SeenPod, reason: str) -> Memory | None:
    """What the node ended for this reason begins anew, as after a reboot; one that still ends does when it has ended.
    None for one that does not."""
    ended = memory.outcome or memory.ending_as
    if ended is None or ended.reason != reason or pod.spec.restart_policy == "Never":
        return None
    if memory.outcome is None:
        return replace(memory, stop_cause="sandbox", ending_as=None)
    return begun_anew(memory, {one.name: one.id for one in reversed(seen.instances)})


def ended_alone(memory: Memory, name: str, ended: Instance | None) -> Memory:
    """One container has ended for a fault of its own."""
    memory = memory.with_stop(name, None)
    if ended is None:
        return memory
    return memory.changed(name, lambda one: replace(one, killed=ended.id, failing=None))


def over(memory: Memory, outcome: PodOutcome | None) -> Memory:
    """The end of the whole pod is done; without an outcome it begins again in another sandbox."""
    if outcome is None:
        return replace(memory, stop=None, stop_cause="")
    return replace(memory, stop=None, stop_cause="", outcome=outcome, ending_as=None)


def without_pod_problem(memory: Memory) -> Memory:
    return replace(memory, reason="", message="")


def _each(memory: Memory, names: Iterable[str], change: Callable[[ContainerMemory], ContainerMemory]) -> Memory:
    for name in tuple(names):
        memory = memory.changed(name, change)
    return memory

# SPDX-License-Identifier: Apache-2.0
"""Which pods end so that a critical one may begin, as a kubelet chooses them.

BestEffort pods go before Burstable ones, and Guaranteed ones last; within a class the pods that together come nearest
to what is missing, and of two that come equally near the one that asks for less. No critical pod ends, and none at all
where ending all others would not be enough. Pods that end already count as gone. Pure.
"""

from collections.abc import Mapping, Sequence

import msgspec

from agent.model.pods.pod import PodSpec
from agent.pods.plan.admit import AskedResources, Capacity, asked_by
from agent.pods.plan.drain import CLASSES, priority_of
from agent.pods.plan.remembered import PodOutcome

CRITICAL_PRIORITY = CLASSES["system-cluster-critical"]
REASON = "Preempting"
MESSAGE = "Preempted in order to admit critical pod"
OUTCOME = PodOutcome(phase="Failed", reason=REASON, message=MESSAGE)
CPU, MEMORY, PODS = "cpu", "memory", "pods"

# What is still missing, by resource; what is not missing has no entry.
Missing = Mapping[str, int]


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has a place."""

    uid: str
    asked: AskedResources
    qos: str = "BestEffort"
    is_critical: bool = False
    is_ending: bool = False


def is_critical(pod: PodSpec) -> bool:
    return priority_of(pod.spec) >= CRITICAL_PRIORITY


def plan_preemption(pod: PodSpec, there: Sequence[Occupant], capacity: Capacity) -> tuple[str, ...]:
    """Uids of the pods to end, those that lose least first; none where nothing, or nothing that helps, can end."""
    staying = [one for one in there if not one.is_ending]
    candidates = sorted((one for one in staying if not one.is_critical), key=lambda one: one.uid)
    missing = _missing(asked_by(pod), staying, capacity)
    if not is_critical(pod) or not missing or _without(missing, candidates):
        return ()
    best_effort, burstable, guaranteed = (
        [one for one in candidates if one.qos == qos] for qos in ("BestEffort", "Burstable", "Guaranteed")
    )
    last = _nearest(guaranteed, _without(missing, best_effort + burstable))
    then = _nearest(burstable, _without(missing, best_effort + last))
    first = _nearest(best_effort, _without(missing, then + last))
    return tuple(one.uid for one in (*first, *then, *last))


def _amounts(asked: AskedResources) -> dict[str, int]:
    return {CPU: asked.milli_cpus, MEMORY: asked.memory_bytes, PODS: 1}


def _missing(wanted: AskedResources, staying: Sequence[Occupant], capacity: Capacity) -> Missing:
    room = {CPU: capacity.milli_cpus, MEMORY: capacity.memory_bytes, PODS: capacity.pods}
    used = {name: sum(_amounts(one.asked)[name] for one in staying) for name in room}
    short = {name: used[name] + amount - room[name] for name, amount in _amounts(wanted).items() if amount}
    return {name: amount for name, amount in short.items() if amount > 0}


def _without(missing: Missing, gone: Sequence[Occupant]) -> Missing:
    left = {name: amount - sum(_amounts(one.asked)[name] for one in gone) for name, amount in missing.items()}
    return {name: amount for name, amount in left.items() if amount > 0}


def _nearest(pods: Sequence[Occupant], missing: Missing) -> list[Occupant]:
    """As many as are needed, which is certain to be enough."""
    left, chosen = list(pods), list[Occupant]()
    while missing and left:
        best = min(left, key=lambda one: (_distance(one, missing), one.asked.memory_bytes, one.asked.milli_cpus))
        left.remove(best)
        chosen.append(best)
        missing = _without(missing, [best])
    return chosen


def _distance(one: Occupant, missing: Missing) -> float:
    """Squares of the shares that would still be missing; more than what is missing counts as exact."""
    amounts = _amounts(one.asked)
    return sum((max(amount - amounts[name], 0) / amount) ** 2 for name, amount in missing.items())

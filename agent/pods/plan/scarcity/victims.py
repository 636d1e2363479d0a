# SPDX-License-Identifier: Apache-2.0
"""Which pod ends when the node runs out of something, what is said of it, and who may begin or come back meanwhile.

Who uses more than it asked for goes first, then who matters less, then whom no budget guards, then who is furthest
above what it asked for; of two that are equal the one that started last. Critical pods stay, and so does who has next
to nothing of what is short. A pod whose use is unknown goes last. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto

import msgspec

from agent.model.pods.pod import PodSpec
from agent.model.quantity import binary_quantity
from agent.pods.plan.admit import PREFIX, AdmissionRefusal

EVICTED = "Evicted"
LOW = "The node was low on resource: "
HARD_GRACE_S = 1.0
LEAST_BYTES = 1 << 20
REASON = "NodeUnderPressure"
MEMORY_TAINT = "node.kubernetes.io/memory-pressure"
FIRST_PAUSE_S = 10.0
THRASHING, THRASHING_S = 3, 3600.0


class ContainerShare(msgspec.Struct, frozen=True, kw_only=True):
    """Of one container, by resource: what it uses and what it asked for."""

    name: str
    used: Mapping[str, int] = msgspec.field(default_factory=dict)
    requested: Mapping[str, int] = msgspec.field(default_factory=dict)


class PossibleVictim(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of ours that is not over. `used` is by signal, for what counts depends on where a runtime keeps layers;
    what is unknown is missing. `leaving_s` is since when it ends for want of something."""

    uid: str
    key: str
    priority: int = 0
    is_critical: bool = False
    is_ending: bool = False
    leaving_s: float | None = None
    started_s: float = 0.0
    grace_s: float = 30.0
    used: Mapping[str, int] = msgspec.field(default_factory=dict)
    requested: Mapping[str, int] = msgspec.field(default_factory=dict)
    containers: tuple[ContainerShare, ...] = ()
    guard: str = ""
    """Why a budget would keep it; a node that is short cannot."""


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    key: str
    signal: str
    kind: str
    grace_s: float
    message: str
    guard: str = ""


def resource_of(signal: str) -> str:
    """As messages call it."""
    name, _, what = signal.partition(".")
    if name in ("memory", "pid"):
        return {"memory": "memory", "pid": "pids"}[name]
    return "inodes" if what == "inodesFree" else "ephemeral-storage"


def order_of_victims(signal: str, pods: Sequence[PossibleVictim]) -> list[PossibleVictim]:
    """All that may end for it, the first to go first."""
    resource = resource_of(signal)
    least = LEAST_BYTES if resource in ("memory", "ephemeral-storage") else 1

    def rank(one: PossibleVictim) -> tuple[bool, bool, int, bool, int, float, str]:
        used, requested = one.used.get(signal), one.requested.get(resource, 0)
        excess = (used or 0) - requested
        # Nobody asks for inodes or processes.
        is_over = excess > 0 or resource in ("inodes", "pids")
        return used is None, not is_over, one.priority, bool(one.guard), -excess, -one.started_s, one.key

    may_end = [one for one in pods if not one.is_critical and not one.is_ending]
    return sorted((one for one in may_end if one.used.get(signal, least) >= least), key=rank)


def choose_victim(
    signal: str, kind: str, pods: Sequence[PossibleVictim], line: int, available: int, most_grace_s: float | None
) -> Victim | None:
    """Without `most_grace_s` it is urgent."""
    first = next(iter(order_of_victims(signal, pods)), None)
    if first is None:
        return None
    grace_s = HARD_GRACE_S if most_grace_s is None else min(first.grace_s, most_grace_s)
    message = victim_message(signal, first, line, available)
    return Victim(
        uid=first.uid, key=first.key, signal=signal, kind=kind, grace_s=grace_s, message=message, guard=first.guard
    )


def victim_message(signal: str, pod: PossibleVictim, line: int, available: int) -> str:
    resource = resource_of(signal)
    shown = binary_quantity if resource in ("memory", "ephemeral-storage") else str
    parts = [f"{LOW}{resource}. ", f"Threshold quantity: {shown(line)}, available: {shown(available)}. "]
    for one in pod.containers:
        used, requested = one.used.get(resource), one.requested.get(resource, 0)
        if used is not None and used > requested:
            text = f"Container {one.name} was using {shown(used)}, request is {shown(requested)}, "
            parts.append(f"{text}has larger consumption of {resource}. ")
    return "".join(parts)


class ReturnState(Enum):
    MAY = auto()
    WAITS = auto()
    THRASHING = auto()


def refused_by(conditions: Collection[str], pod: PodSpec, qos: str, *, is_critical: bool) -> AdmissionRefusal | None:
    """As a kubelet admits: for want of memory only those that ask for none are kept away."""
    if is_critical or not conditions:
        return None
    others = sorted(set(conditions) - {"MemoryPressure"})
    if not others and (qos != "BestEffort" or _tolerates_pressure(pod)):
        return None
    listed = ", ".join(others or ["MemoryPressure"])
    return AdmissionRefusal(REASON, f"{PREFIX}The node had condition: [{listed}]")


def _tolerates_pressure(pod: PodSpec) -> bool:
    """The taint of memory pressure has no value. What is no toleration tolerates nothing."""
    listed = pod.spec.tolerations
    return isinstance(listed, list) and any(isinstance(one, Mapping) and _tolerates(one) for one in listed)


def _tolerates(one: Mapping[str, object]) -> bool:
    is_everything = not one.get("key") and one.get("operator") == "Exists"
    is_valued = one.get("operator") != "Exists" and one.get("value")
    is_of_memory = one.get("key") == MEMORY_TAINT and one.get("effect") in (None, "", "NoSchedule") and not is_valued
    return is_everything or is_of_memory


def return_of(evictions_s: Sequence[float], now_s: float, longest_s: float) -> ReturnState:
    """The pause grows with each eviction."""
    recent = [evicted_s for evicted_s in evictions_s if now_s - evicted_s < THRASHING_S]
    if len(recent) >= THRASHING:
        return ReturnState.THRASHING
    if not recent:
        return ReturnState.MAY
    pause_s = min(FIRST_PAUSE_S * 2 ** (len(recent) - 1), longest_s)
    return ReturnState.MAY if now_s - recent[-1] >= pause_s else ReturnState.WAITS

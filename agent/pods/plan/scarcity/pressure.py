# SPDX-License-Identifier: Apache-2.0
"""What pressure on the node means for pods that want to begin, or to come back. Pure."""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto

from agent.model.pods.pod import PodSpec
from agent.pods.plan.admit import PREFIX, Refusal

REASON = "NodeUnderPressure"
MEMORY_TAINT = "node.kubernetes.io/memory-pressure"
FIRST_PAUSE_S = 10.0
THRASHING, THRASHING_S = 3, 3600.0


class ReturnState(Enum):
    MAY = auto()
    WAITS = auto()
    THRASHING = auto()


def refused_by(conditions: Collection[str], pod: PodSpec, qos: str, *, is_critical: bool) -> Refusal | None:
    """As a kubelet admits: for want of memory only those that ask for none are kept away."""
    if is_critical or not conditions:
        return None
    others = sorted(set(conditions) - {"MemoryPressure"})
    if not others and (qos != "BestEffort" or _tolerates_pressure(pod)):
        return None
    listed = ", ".join(others or ["MemoryPressure"])
    return Refusal(REASON, f"{PREFIX}The node had condition: [{listed}]")


def _tolerates_pressure(pod: PodSpec) -> bool:
    """The taint of memory pressure has no value. What is no toleration tolerates nothing."""
    listed = pod.spec.tolerations
    return isinstance(listed, list) and any(isinstance(one, Mapping) and _tolerates(one) for one in listed)


def _tolerates(one: Mapping[str, object]) -> bool:
    is_everything = not one.get("key") and one.get("operator") == "Exists"
    is_valued = one.get("operator") != "Exists" and one.get("value")
    is_of_memory = one.get("key") == MEMORY_TAINT and one.get("effect") in (None, "", "NoSchedule") and not is_valued
    return is_everything or is_of_memory


def return_of(evictions_wall_s: Sequence[float], now_wall_s: float, longest_s: float) -> ReturnState:
    """The pause grows with each eviction; a clock that was set back does not lengthen it."""
    recent = [one for one in evictions_wall_s if 0 <= now_wall_s - one < THRASHING_S]
    if len(recent) >= THRASHING:
        return ReturnState.THRASHING
    if not recent:
        return ReturnState.MAY
    pause_s = min(FIRST_PAUSE_S * 2 ** (len(recent) - 1), longest_s)
    return ReturnState.MAY if now_wall_s - recent[-1] >= pause_s else ReturnState.WAITS

# SPDX-License-Identifier: Apache-2.0
"""Which pods a drain may end now, by the budgets that guard them.

The count is that of Kubernetes. A pod is healthy if it is ready and does not end. For `minAvailable` as a number, all
pods that the budget selects are expected; for shares and `maxUnavailable`, as many as their owners want, so pods
without an owner count for none. A pod that has not begun, is over or ends already needs no leave. Where several
budgets guard a pod, each has to allow it; Kubernetes always refuses such a pod. Leave is given one by one: a pod that
has it counts as missing for the next.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from agent.pods.manifest.selecting import selects
from agent.pods.workloads.budget import Budget
from agent.pods.workloads.validation import share
from agent.pods.workloads.workload import Key


class GuardedPod(msgspec.Struct, frozen=True, kw_only=True):
    """`is_idle`: it has not begun, or is over."""

    uid: str
    key: str
    namespace: str = "default"
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    owner: Key | None = None
    is_ready: bool = False
    is_idle: bool = False
    is_ending: bool = False


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    expected: int = 0
    desired: int = 0
    healthy: int = 0

    @property
    def allowed(self) -> int:
        return max(self.healthy - self.desired, 0) if self.expected > 0 else 0


def guards(budget: Budget, pod: GuardedPod) -> bool:
    return budget.selector is not None and budget.namespace == pod.namespace and selects(budget.selector, pod.labels)


def state_of(budget: Budget, pods: Iterable[GuardedPod], scales: Mapping[Key, int]) -> BudgetState:
    """`scales`: how many pods their owners want."""
    own = [one for one in pods if guards(budget, one)]
    owners = {one.owner for one in own if one.owner is not None}
    expected = sum(scales.get(owner, 0) for owner in owners)
    if budget.max_unavailable is not None:
        most = _of(budget.max_unavailable, expected)
        desired = max(expected - most, 0)
    elif isinstance(budget.min_available, int):
        expected, desired = len(own), budget.min_available
    else:
        desired = _of(budget.min_available or 0, expected)
    healthy = sum(one.is_ready and not one.is_ending for one in own)
    return BudgetState(expected=expected, desired=desired, healthy=healthy)


def _of(value: int | str, whole: int) -> int:
    """Shares are rounded up."""
    return share(value, whole, is_up=True) or 0


def kept_back(
    uids: Sequence[str], budgets: Iterable[Budget], pods: Sequence[GuardedPod], scales: Mapping[Key, int]
) -> dict[str, str]:
    """Of those who should end, in this order, who may not, and why."""
    by_uid = {one.uid: one for one in pods}
    spare = {one.key: state_of(one, pods, scales) for one in budgets}
    known = {one.key: one for one in budgets}
    kept = {}
    for uid in uids:
        pod = by_uid.get(uid)
        if pod is None or pod.is_idle or pod.is_ending:
            continue
        own = [known[key] for key in spare if guards(known[key], pod)]
        why = next((text for one in own if (text := _why_kept(one, spare[one.key], pod))), "")
        if why:
            kept[uid] = why
        elif pod.is_ready:
            for one in own:
                state = spare[one.key]
                spare[one.key] = msgspec.structs.replace(state, healthy=state.healthy - 1)
    return kept


def _why_kept(budget: Budget, state: BudgetState, pod: GuardedPod) -> str:
    if not pod.is_ready and (budget.ends_unhealthy or state.healthy >= state.desired > 0):
        return ""
    if state.allowed > 0:
        return ""
    pods = "pod" if state.desired == 1 else "pods"
    text = f"{budget.text} wants {state.desired} healthy {pods}, and there are {state.healthy}"
    return text if state.expected else f"{text}; none of its pods has an owner whose number could be counted"

# SPDX-License-Identifier: Apache-2.0
"""PodDisruptionBudgets over the pods of this node, as they are now (plan/disruption.py)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agent.model.pods.pod import PodSpec
from agent.model.pods.state import PodState
from agent.model.refused import Refused
from agent.pods.plan.disruption import GuardedPod, kept_back, state_of
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.workloads.budget import Budget
from agent.pods.workloads.workload import Key, Workload

OVER = ("Succeeded", "Failed", "Pending")


class Kept(Protocol):
    keepers: Mapping[str, PodWorker]

    def state_of(self, pod: PodSpec) -> PodState | None: ...


class Budgets:
    def __init__(self, host: Kept, workloads: Callable[[], Mapping[Key, Workload]]) -> None:
        self._host, self._workloads = host, workloads
        self._known: Mapping[Key, Budget] = {}
        self._leaving: set[str] = set()

    def follow(self, budgets: Mapping[Key, Budget]) -> None:
        self._known = budgets

    def kept_back(self, uids: Sequence[str]) -> dict[str, str]:
        """Of those who should end, in this order, who may not, and why."""
        return kept_back(uids, self._known.values(), self._pods(), self._scales()) if self._known else {}

    def give_leave(self, uid: str) -> None:
        """It counts as one that ends from now on. Raises Refused where a budget keeps it."""
        why = self.kept_back([uid]).get(uid)
        if why is not None:
            raise Refused("budget", f"it may not be evicted: {why}")
        self._leaving.add(uid)

    def take_back(self, uid: str) -> None:
        """It did not end after all, or is gone."""
        self._leaving.discard(uid)

    def status(self, key: Key) -> Mapping[str, Any] | None:
        budget = self._known.get(key)
        if budget is None:
            return None
        state = state_of(budget, self._pods(), self._scales())
        is_allowed = state.allowed > 0
        condition = {
            "type": "DisruptionAllowed",
            "status": "True" if is_allowed else "False",
            "reason": "SufficientPods" if is_allowed else "InsufficientPods",
            "message": f"{state.healthy} of at least {state.desired} pods are healthy",
            "observedGeneration": budget.generation,
        }
        return {
            "observedGeneration": budget.generation,
            "currentHealthy": state.healthy,
            "desiredHealthy": state.desired,
            "disruptionsAllowed": state.allowed,
            "expectedPods": state.expected,
            "conditions": [condition],
        }

    def _scales(self) -> dict[Key, int]:
        return {key: one.rules.most_pods for key, one in self._workloads().items()}

    def _pods(self) -> list[GuardedPod]:
        return [self._guarded(keeper.run) for keeper in self._host.keepers.values()]

    def _guarded(self, run: LivePod) -> GuardedPod:
        pod, state = run.pod, self._host.state_of(run.pod)
        return GuardedPod(
            uid=pod.uid,
            key=pod.key,
            namespace=pod.namespace,
            labels=dict(pod.labels),
            owner=pod.owner.key if pod.owner is not None else None,
            is_ready=state is not None and any(one.type == "Ready" and one.is_true for one in state.conditions),
            is_idle=run.memory.outcome is not None or state is None or state.phase in OVER,
            is_ending=run.is_ending or run.is_removed or pod.uid in self._leaving,
        )

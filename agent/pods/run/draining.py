# SPDX-License-Identifier: Apache-2.0
"""Ends all pods of the node, as plan/drain.py plans it. A drain that is cancelled leaves pods that end ending."""

from collections.abc import Sequence

import structlog

from agent.pods.plan.drain import (
    Candidate,
    EndPod,
    Group,
    ShutdownRules,
    begin_drain,
    groups_for,
    plan_drain,
    priority_of,
)
from agent.pods.plan.record import SHUTDOWN_REASON
from agent.pods.plan.remembered import PodOutcome
from agent.pods.run.containment import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.run.runner import PodRunner

log = structlog.get_logger(plane="pods")

SHUTDOWN = PodOutcome(
    phase="Failed", reason=SHUTDOWN_REASON, message="Pod was terminated in response to imminent node shutdown."
)
POLL_S = 0.1


class Drainer:
    def __init__(self, runner: PodRunner, context: PodDependencies) -> None:
        self._runner = runner
        self._context = context

    async def drain_for(self, by: str, groups: Sequence[Group], most_s: float) -> list[str]:
        """As someone asked: no new pods until the node is uncordoned."""
        await self._runner.cordon(by, most_s)
        return await self.drain("drain", groups, most_s)

    async def drain_before_shutdown(self, rules: ShutdownRules) -> list[str]:
        await self._runner.listed()
        return await self.drain("shutdown", groups_for(self._candidates(), rules))

    async def drain(self, why: str, groups: Sequence[Group], most_s: float = 0.0) -> list[str]:
        """End everything; the names of the pods that were up, in the order of their turns."""
        await self._runner.listed()
        clock = self._context.clock
        drain = begin_drain(self._candidates(), groups, most_s)
        log.info("node_drain_started", why=why, pods=len(drain.candidates), waves=len(drain.waves))
        while True:
            now_s = clock.now_s()
            plan = plan_drain(drain, self._ended(drain.candidates), now_s)
            drain = plan.then
            for step in plan.steps:
                self._end(step)
            if plan.is_over:
                left = [one.key for one in drain.candidates if one.uid not in self._ended((one,))]
                log.info("node_drain_finished", why=why, left=left)
                return [one.key for one in drain.candidates]
            until_s = plan.wake_s if plan.wake_s is not None else now_s + POLL_S
            await clock.sleep(min(max(until_s - now_s, 0.0), POLL_S))

    def _candidates(self) -> list[Candidate]:
        runs = [keeper.run for keeper in self._runner.keepers.values() if keeper.run.memory.outcome is None]
        return [
            Candidate(
                uid=run.pod.uid, key=run.pod.key, priority=priority_of(run.pod.spec), grace_s=float(run.pod.grace_s)
            )
            for run in runs
        ]

    def _ended(self, candidates: Sequence[Candidate]) -> set[str]:
        keepers = self._runner.keepers
        return {
            one.uid for one in candidates if one.uid not in keepers or keepers[one.uid].run.memory.outcome is not None
        }

    def _end(self, step: EndPod) -> None:
        keeper = self._runner.keepers.get(step.uid)
        if keeper is not None:
            log.info("pod_shutdown_planned", pod=step.key, grace_s=step.grace_s)
            with contained(step.key, "end it"):
                keeper.end("shutdown", step.grace_s, SHUTDOWN)

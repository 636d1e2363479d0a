# SPDX-License-Identifier: Apache-2.0
"""A daemon that somebody runs by hand tells how its pods fare, and ends them before itself, as if their manifests were
taken away."""

from contextlib import suppress

import structlog

from agent.kit.plane import LastWork, PlaneUnit
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.feed import FeedLagged
from agent.model.pods.state import PodState
from agent.pods.run.runner import PodRunner

log = structlog.get_logger(plane="pods")

# What removing them takes beside their grace.
TO_REMOVE_S = 10.0
POLL_S = 0.05


def pods_at_end(runner: PodRunner, clock: Clock) -> PlaneUnit:
    def longest_s() -> float:
        if not runner.rounds.listed.is_set():
            return 0.0
        return TO_REMOVE_S + max((float(keeper.run.pod.grace_s) for keeper in runner.keepers.values()), default=0.0)

    async def end() -> None:
        runner.set_shutting_down(is_so=True)
        for keeper in list(runner.keepers.values()):
            keeper.remove()
        while runner.keepers:
            await clock.sleep(POLL_S)

    async def run(report: Report) -> None:
        report.ready("pods end with this daemon")
        told: dict[str, str] = {}
        while True:
            with suppress(FeedLagged):
                async for change in runner.pods.follow():
                    if change.item is not None:
                        _tell(change.item, told)

    return PlaneUnit("by-hand", run, last=LastWork(end, longest_s))


def _tell(state: PodState, told: dict[str, str]) -> None:
    """Once for each word that its column STATUS has."""
    key = f"{state.namespace}/{state.name}"
    if state.status != told.get(key):
        told[key] = state.status
        log.info("pod_status_changed", pod=key, status=state.status, ip=state.ip, message=state.message)

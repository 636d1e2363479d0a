# SPDX-License-Identifier: Apache-2.0
"""Whether the container runtime answers, and what it is: the line `runtime` on the board.

Looks often while the runtime is away, seldom while it is there, and at once when a listener lost a stream.
Never: fails. A node without a runtime is a state, not an error.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog
from msgspec.structs import replace

from agent.drivers.cri.driver import CriRuntime
from agent.model.component import Report
from agent.model.runtime_error import RuntimeCallFailed, Unavailable
from agent.model.runtime_features import RuntimeFacts, RuntimeFeatures

log = structlog.get_logger(plane="daemon")

CALL_LIMIT_S = 3.0
CALLS = 6
PAUSE_AWAY_S = 1.0
PAUSE_THERE_S = 10.0
NOT_TRIED = "not tried yet"


class RuntimeWatch:
    """Keeps `facts`. `connected` is set while the runtime answers."""

    def __init__(self, runtime: CriRuntime, endpoint: str, now_s: Callable[[], float]) -> None:
        self.facts = RuntimeFacts(endpoint, message=NOT_TRIED)
        self.connected = asyncio.Event()
        self._runtime = runtime
        self._now_s = now_s
        self._hurry = asyncio.Event()
        self._features = RuntimeFeatures()
        # They hear why it does not answer, and nothing once it does.
        self.listeners: list[Callable[[str], None]] = []

    def look_again(self) -> None:
        self._hurry.set()

    async def features(self) -> RuntimeFeatures:
        """What the runtime can do, as of the last time it came; waits for the first."""
        if not self.facts.name:
            await self.connected.wait()
        return self._features

    def note_event_source(self, source: str) -> None:
        self.facts = replace(self.facts, event_source=source)

    async def run(self, report: Report) -> None:
        while True:
            # All calls are bounded; a look that lasts longer than all of them is stuck, and the watchdog shall know.
            report.busy_until(self._now_s() + CALLS * CALL_LIMIT_S)
            await self._look(report)
            report.busy_until(None)
            pause_s = PAUSE_THERE_S if self.connected.is_set() else PAUSE_AWAY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()

    async def _look(self, report: Report) -> None:
        is_hurried = self._hurry.is_set()
        self._hurry.clear()
        try:
            version = await self._runtime.version(deadline_s=CALL_LIMIT_S)
            status = await self._runtime.status(deadline_s=CALL_LIMIT_S)
            if is_hurried or not self.connected.is_set():
                await self._learn()
        except RuntimeCallFailed as error:
            self._lost(report, f"does not answer: {error.details}")
            return
        unready = [condition for condition in status.conditions if not condition.status]
        found = replace(
            self.facts, name=version.runtime_name, version=version.runtime_version, is_connected=True, message=""
        )
        if not self.connected.is_set():
            log.info("runtime_connected", endpoint=found.endpoint, runtime=found.name, version=found.version, v=0)
        self.facts = found
        self.connected.set()
        self._tell("")
        blocking = [condition for condition in unready if condition.type in ("RuntimeReady", "NetworkReady")]
        if blocking:
            report.degraded("; ".join(f"{one.type}: {one.message or one.reason}" for one in blocking))
        else:
            report.ready(f"{found.name} {found.version}")

    async def _learn(self) -> None:
        """What it can do. One that answers and does not say is as good as one that can do little."""
        try:
            self._features = await self._runtime.features(deadline_s=CALL_LIMIT_S)
        except Unavailable:
            raise
        except RuntimeCallFailed as error:
            log.warning(
                "runtime_features_unknown", error=str(error), effect="the API server refuses what this needs to read"
            )

    def _lost(self, report: Report, message: str) -> None:
        is_news = self.facts.is_connected or self.facts.message == NOT_TRIED
        log.warning("runtime_lost", endpoint=self.facts.endpoint, error=message, v=0 if is_news else 3)
        self.facts = replace(self.facts, is_connected=False, message=message)
        self.connected.clear()
        report.degraded(f"{self.facts.endpoint} {message}")
        self._tell(f"the container runtime {message}")

    def _tell(self, problem: str) -> None:
        for listener in self.listeners:
            listener(problem)

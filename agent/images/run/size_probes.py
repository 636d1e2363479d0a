# SPDX-License-Identifier: Apache-2.0
"""Sizes of pulls that wait or run: asked of registries, or seen once a manifest is there.

Owns: which flights are asked about, a few at a time, each once. Never: starts a pull or keeps what it learned.
Source of behaviour: IMG-S10.
"""

import asyncio
from collections.abc import Callable, Collection

from agent.images.queue.plan import PullPlan, WaitReason
from agent.images.queue.queue import PullQueue
from agent.images.run.intake import Ready
from agent.images.run.requests import PullRequests
from agent.images.run.sizes import Sizes
from agent.images.run.watcher import ProgressWatcher

__all__ = ["SizeProbes"]

MOST_PROBES = 3


class SizeProbes:
    """Works on the puller's own queue, in the puller's loop. `learned` is called when a size has come."""

    def __init__(
        self,
        queue: PullQueue,
        requests: PullRequests,
        watcher: ProgressWatcher,
        sizes: Sizes,
        learned: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._requests = requests
        self._watcher = watcher
        self._sizes = sizes
        self._learned = learned
        self._asked: set[int] = set()

    def note_running(self, numbers: Collection[int]) -> None:
        """What a pull of unknown size fetches is known once its manifest is there; limits by size count it then."""
        for number in numbers:
            flight = self._queue.flights.get(number)
            progress = self._watcher.progress(number)
            if flight is not None and flight.size_bytes is None and progress is not None and progress.total_bytes:
                self._queue.set_size(number, progress.total_bytes)

    def ask(self, group: asyncio.TaskGroup, plan: PullPlan) -> None:
        """Ask for sizes of pulls that wait anyway."""
        self._asked &= self._queue.flights.keys()
        if not self._sizes.can_ask or self._queue.rules.size_rate is None:
            return
        for waiting in plan.waiting:
            flight = self._queue.flights.get(waiting.flight)
            if flight is None or flight.size_bytes is not None or flight.number in self._asked:
                continue
            if len(self._asked) >= MOST_PROBES or waiting.why.reason is WaitReason.REGISTRY_HOLD:
                return
            self._asked.add(flight.number)
            asks = self._requests.asks(flight.members)
            group.create_task(self._probe(flight.number, asks[0].ready), name=f"size-probe:{flight.number}")

    async def _probe(self, number: int, ready: Ready) -> None:
        size_bytes = await self._sizes.ask(ready)
        flight = self._queue.flights.get(number)
        if size_bytes is None:
            return  # stays among the asked ones, so that it is asked once only
        self._asked.discard(number)
        if flight is not None and not flight.is_running:
            self._queue.set_size(number, size_bytes)
        self._learned()

# SPDX-License-Identifier: Apache-2.0
"""Registries that are left alone after a failure, and the node while it makes room for what did not fit."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from agent.images.queue.errors import MEANINGS, Deed, PullFailure
from agent.images.queue.flights import SharedPull
from agent.images.queue.plan import NODE
from agent.images.queue.queue import PullQueue
from agent.images.run.collector import ImageCollector
from agent.images.settings import ImageSettings
from agent.model.clock import Clock
from agent.model.runtime.proxy_report import HoldReport

log = structlog.get_logger(plane="images")

DISK_HOLD_S = 600.0


class PullHolds:
    """`changed` is called when pulls may start again."""

    def __init__(self, queue: PullQueue, collector: ImageCollector, changed: Callable[[], None], clock: Clock) -> None:
        self._queue = queue
        self._collector = collector
        self._changed = changed
        self._clock = clock
        # Since when, and why.
        self._causes: dict[str, tuple[float, str]] = {}

    def reports(self) -> Sequence[HoldReport]:
        """Registries that are left alone, and the node while it makes room."""
        now_s, found = self._clock.now_s(), []
        causes, self._causes = self._causes, {}
        for scope, until_s in self._queue.holds.items():
            if until_s > now_s:
                since_s, why = self._causes[scope] = causes.get(scope, (now_s, ""))
                of_node = scope == NODE
                found.append(
                    HoldReport(
                        id="node" if of_node else scope,
                        method="PullImage",
                        reason="disk" if of_node else "registry",
                        held_s=now_s - since_s,
                        ends_in_s=until_s - now_s,
                        why=why,
                    )
                )
        return found

    def release(self, scope: str) -> bool:
        was_held = self._queue.release(scope)
        self._changed()
        return was_held

    def begin(
        self, flight: SharedPull, failure: PullFailure, settings: ImageSettings, group: asyncio.TaskGroup | None
    ) -> None:
        now_s = self._clock.now_s()
        if settings.is_like_kubelet:
            return
        if failure.hold_s is not None:
            self._queue.hold(flight.registry, now_s + failure.hold_s)
            self._causes[flight.registry] = (now_s, failure.text)
        if MEANINGS[failure.error_class].deed is Deed.MAKE_ROOM and group is not None:
            self._queue.hold(NODE, now_s + DISK_HOLD_S)
            self._causes[NODE] = (now_s, failure.text)
            group.create_task(self._make_room(flight), name="images-make-room")

    async def _make_room(self, flight: SharedPull) -> None:
        """Pulls go on when it is done, with room or without: the one that failed waits for its back-off, and others may
        be smaller."""
        try:
            why = await self._collector.make_room(flight.key.reference, flight.size_bytes)
            if why:
                log.warning("image_pull_has_no_room", image=flight.key.reference, why=why)
        finally:
            self.release(NODE)

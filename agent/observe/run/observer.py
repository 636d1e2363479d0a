# SPDX-License-Identifier: Apache-2.0
"""Follows what happens to containers between two samples: which there are, and which lose memory.

    run
    ├── events of the runtime: the lists are looked at again with the next sample; a kill counts at once
    ├── signals of the kernel: the counter of one container is read
    ├── ends: the pods plane tells of each end of its containers, with the reason
    └── records: counts of kills are written when they have changed

Costs nothing but these while nobody reads.
"""

import asyncio
from collections.abc import AsyncIterator

import structlog

from agent.model.component import Report
from agent.model.pods.state import TERMINATED, PodState
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.runtime.event import EventKind, RuntimeEvent, RuntimeEvents
from agent.observe.run.collector import Collector
from agent.observe.run.container_registry import Roster
from agent.observe.run.oom_book import OomBook
from agent.observe.run.oom_watch import OomWatch
from agent.observe.sample.node_sample import NodeFigures

log = structlog.get_logger(plane="observe")

OOM_KILLED = "OOMKilled"


class Observer:
    """`ends` are the states of pods that changed."""

    def __init__(
        self,
        collector: Collector,
        roster: Roster,
        book: OomBook,
        events: RuntimeEvents,
        ends: AsyncIterator[PodState],
        watch: OomWatch,
    ) -> None:
        self._watch = watch
        self._collector = collector
        self._roster = roster
        self._book = book
        self._events = events
        self._ends = ends
        self._changed = asyncio.Event()
        collector.saw = self._saw
        collector.ooms = book.count

    async def run(self, report: Report) -> None:
        await self._book.load()
        report.ready("reads when it is asked")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_events(group), name="observe-events")
            group.create_task(self._follow_ends(), name="observe-ends")
            group.create_task(self._keep_records(), name="observe-records")
            group.create_task(self._watch.run(self._book, self._changed.set), name="observe-oom-watch")

    def _saw(self, node: NodeFigures) -> None:
        memory = node.memory
        share = memory.available / memory.total if memory.available is not None and memory.total else None
        self._book.look(share)
        self._book.look_at_node(node.oom_kills)
        if not self._roster.is_stale:
            self._book.forget()
        self._changed.set()

    async def _follow_events(self, group: asyncio.TaskGroup) -> None:
        async for event in self._events.listen():
            await self._heard(event, group)

    async def _heard(self, event: RuntimeEvent, group: asyncio.TaskGroup) -> None:
        if event.kind is not EventKind.CREATED:
            self._roster.is_stale = True
            self._watch.due()
        if event.kind is not EventKind.OOM:
            return
        # The counter and the limit are still there, unless the container died of it.
        try:
            await self._collector.look_at(event.container_id)
        except (RuntimeCallFailed, OSError) as error:
            log.warning("container_not_looked_at", error=str(error))
        self._book.heard(event.container_id)
        group.create_task(self._watch.tell_later(event.container_id, self._book), name="observe-oom-told")
        self._changed.set()

    async def _follow_ends(self) -> None:
        async for pod in self._ends:
            for one in pod.containers:
                if one.state == TERMINATED and one.reason == OOM_KILLED:
                    self._book.ended(pod, one.name, one.id)
                elif one.last is not None and one.last.reason == OOM_KILLED and one.last.id:
                    self._book.ended(pod, one.name, one.last.id)
            self._changed.set()

    async def _keep_records(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._book.save()

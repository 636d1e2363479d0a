# SPDX-License-Identifier: Apache-2.0
"""Events of this node: the last ones, counted where they repeat, kept over restarts in the file `events.ring`.

Telling never waits and never fails; the file is written now and then and at the end.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import structlog
from msgspec.structs import replace

from agent.kit.configuration import write_atomically
from agent.model.allowance import CallerMeter, Share
from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.feed import Feed
from agent.model.finding import printable
from agent.model.text.json_text import decode_json

log = structlog.get_logger(plane="daemon")

FILE = "events.ring"
TEXTS = ("reason", "message", "namespace", "object_name", "container")
SAVE_S = 60.0
# New events of one object; those that repeat an earlier one are only counted.
OF_OBJECT = "events"
METERED = {OF_OBJECT: Share(25, 1 / 300)}


def _printable(event: Event) -> Event:
    values = {name: getattr(event, name) for name in TEXTS}
    wrong = {name: printable(value) for name, value in values.items() if not value.isprintable()}
    return replace(event, **wrong) if wrong else event


class EventRing:
    def __init__(self, state_directory: Path, size: int, wall_s: Callable[[], float]) -> None:
        self.events: Feed[Event] = Feed()
        self._path = state_directory / FILE
        self._size = size
        self._wall_s = wall_s
        self._by_sameness: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._ids = count(1)
        self._saved_version = self.events.version
        self._meter = CallerMeter(METERED)

    def tell(self, event: Event) -> None:
        """What a tenant, registry or runtime wrote becomes printable here, before anything keeps or shows it."""
        event = _printable(event)
        now_s = self._wall_s()
        known_id = self._by_sameness.get(event.sameness)
        known = self.events.items.get(known_id) if known_id else None
        if known is not None:
            self._put(replace(known, count=known.count + 1, last_seen_s=now_s))
            return
        if self._may_tell(event, now_s):
            self._put(replace(event, id=f"e{next(self._ids)}", first_seen_s=now_s, last_seen_s=now_s))

    def _may_tell(self, event: Event, now_s: float) -> bool:
        """An object that says something else all the time must not drive out what others have to say."""
        key = (event.plane, event.namespace, event.object_kind, event.object_name)
        return not event.object_name or not self._meter.take(key, OF_OBJECT, now_s, refuses=True)

    def _put(self, event: Event) -> None:
        self._by_sameness[event.sameness] = event.id
        self._by_sameness.move_to_end(event.sameness)
        self.events.put(event.id, event)
        while len(self._by_sameness) > self._size:
            _, oldest = self._by_sameness.popitem(last=False)
            self.events.remove(oldest)

    def shed(self) -> None:
        """Memory is short: the newest quarter stays."""
        for _ in range(len(self._by_sameness) * 3 // 4):
            _, oldest = self._by_sameness.popitem(last=False)
            self.events.remove(oldest)
        self._meter = CallerMeter(METERED)

    def load(self) -> None:
        """What an earlier process left. A damaged file is an empty one: events are no state."""
        try:
            kept = decode_json(self._path.read_bytes(), list[Event])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("event_ring_unreadable", path=str(self._path), error=str(error))
            return
        for event in kept[-self._size :]:
            self._put(replace(event, id=f"e{next(self._ids)}"))
        self._saved_version = self.events.version

    def save(self) -> None:
        if self.events.version == self._saved_version:
            return
        self._saved_version = self.events.version
        kept = [self.events.items[event_id] for event_id in self._by_sameness.values()]
        try:
            write_atomically(self._path, msgspec.json.encode(kept))
        except OSError as error:
            log.warning("event_ring_not_saved", error=str(error))

    async def run(self, report: Report, clock: Clock) -> None:
        report.ready(f"{len(self.events.items)} events kept")
        try:
            while True:
                await clock.sleep(SAVE_S)
                await asyncio.to_thread(self.save)
        finally:
            self.save()

# SPDX-License-Identifier: Apache-2.0
"""How large images are: what earlier pulls taught, what a manifest shows, and what a registry says when it is asked.

Registries are asked for pulls that wait anyway, a few at a time and each once. A guess only orders the queue, and what
is lost is learnt again.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec

from agent.images.ports import SizeProbe
from agent.images.queue.plan import PullPlan, WaitReason
from agent.images.queue.queue import PullQueue
from agent.images.run.pulling.intake import NeededPull
from agent.images.run.pulling.requests import PullRequests
from agent.images.run.pulling.watcher import ProgressWatcher
from agent.images.run.state import StateFile
from agent.images.settings import ImageSettings
from agent.model.clock import Clock
from agent.model.images.reference import ReferenceInvalid, parse_reference

MOST_REMEMBERED = 2000
MOST_PROBES = 3
PROBE_S = 10.0
SAVE_S = 10.0


class SizeRecord(msgspec.Struct, frozen=True, gc=False):
    """Compressed bytes, and when that was so."""

    size_bytes: int
    at_s: float


class SizeMemory:
    """Sizes by repository and by exact name, the oldest forgotten first."""

    def __init__(self, records: Mapping[str, SizeRecord] | None = None) -> None:
        self._records = dict(sorted((records or {}).items(), key=lambda item: item[1].at_s))

    @property
    def records(self) -> Mapping[str, SizeRecord]:
        return self._records

    def guess(self, repo: str, reference: str) -> int | None:
        """The size of exactly this, else of the latest of its repository."""
        record = self._records.get(reference) or self._records.get(repo)
        return record.size_bytes if record else None

    def learn(self, repo: str, reference: str, size_bytes: int, now_s: float) -> None:
        if size_bytes <= 0:
            return
        for key in (repo, reference):
            self._records.pop(key, None)
            self._records[key] = SizeRecord(size_bytes, now_s)
        while len(self._records) > MOST_REMEMBERED:
            del self._records[next(iter(self._records))]


class Sizes:
    def __init__(
        self,
        queue: PullQueue,
        requests: PullRequests,
        watcher: ProgressWatcher,
        file: StateFile[dict[str, SizeRecord]],
        probe: SizeProbe | None,
        *,
        settings: Callable[[], ImageSettings],
        learned: Callable[[], None],
        clock: Clock,
    ) -> None:
        self.memory = SizeMemory()
        self._queue = queue
        self._requests = requests
        self._watcher = watcher
        self._file = file
        self._probe = probe
        self._settings = settings
        self._learned = learned
        self._clock = clock
        self._asked: set[int] = set()
        self._saved: dict[str, SizeRecord] = {}

    async def load(self) -> None:
        self.memory = SizeMemory(await self._file.load() or {})
        self._saved = dict(self.memory.records)

    async def keep(self) -> None:
        while True:
            await self._clock.sleep(SAVE_S)
            await self.save()

    async def save(self) -> None:
        records = dict(self.memory.records)
        if records != self._saved:
            await self._file.save(records)
            self._saved = records

    def guess(self, image: str) -> int | None:
        try:
            reference = parse_reference(image)
        except ReferenceInvalid:
            return None
        return self.memory.guess(reference.repo, str(reference))

    async def known(self, ready: NeededPull) -> int | None:
        reference = ready.reference
        known = self.memory.guess(reference.repo, str(reference))
        if known is None and self._settings().keys.size_probe == "always":
            await self._ask(ready)
            known = self.memory.guess(reference.repo, str(reference))
        return known

    def note_running(self, numbers: Collection[int]) -> None:
        """What a pull of unknown size fetches is known once its manifest is there; limits by size count it then."""
        for number in numbers:
            flight = self._queue.flights.get(number)
            progress = self._watcher.progress(number)
            if flight is not None and flight.size_bytes is None and progress is not None and progress.total_bytes:
                self._queue.set_size(number, progress.total_bytes)

    def ask_for(self, plan: PullPlan, group: asyncio.TaskGroup) -> None:
        self._asked &= self._queue.flights.keys()
        can_ask = self._probe is not None and self._settings().keys.size_probe != "off"
        if not can_ask or self._queue.rules.size_rate is None:
            return
        for waiting in plan.waiting:
            flight = self._queue.flights.get(waiting.flight)
            if flight is None or flight.size_bytes is not None or flight.number in self._asked:
                continue
            if len(self._asked) >= MOST_PROBES or waiting.why.reason is WaitReason.REGISTRY_HOLD:
                return
            self._asked.add(flight.number)
            asks = self._requests.asks(flight.members)
            group.create_task(self._learn(flight.number, asks[0].ready), name=f"size-probe:{flight.number}")

    async def _learn(self, number: int, ready: NeededPull) -> None:
        size_bytes = await self._ask(ready)
        flight = self._queue.flights.get(number)
        if size_bytes is None:
            return  # stays among the asked ones, so that it is asked once only
        self._asked.discard(number)
        if flight is not None and not flight.is_running:
            self._queue.set_size(number, size_bytes)
        self._learned()

    async def _ask(self, ready: NeededPull) -> int | None:
        """What the registry says. None: it could not say, or must not be asked."""
        reference = ready.reference
        if self._probe is None or reference.asked_host in self._settings().keys.size_probe_except:
            return None
        credentials = ready.lookup.credentials
        try:
            async with asyncio.timeout(PROBE_S):
                size_bytes = await self._probe.size_bytes(str(reference), credentials[0] if credentials else None)
        except TimeoutError:
            return None
        if size_bytes is not None:
            self.memory.learn(reference.repo, str(reference), size_bytes, self._clock.wall_s())
        return size_bytes

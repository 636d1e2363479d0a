# SPDX-License-Identifier: Apache-2.0
"""How large images are: what earlier pulls taught, and what a registry says when it is asked.

Owns: the memory of sizes with its file, and the question to the registry with its deadline.
Never: decides when to ask; the puller does, for pulls that wait anyway. What is lost is learnt again.
Source of behaviour: IMG-S08 to IMG-S10.
"""

import asyncio
from collections.abc import Callable

from agent.images.ports import SizeProbe
from agent.images.queue.size_memory import SizeMemory, SizeRecord
from agent.images.run.intake import Ready
from agent.images.run.state import StateFile
from agent.images.settings import ImageSettings
from agent.model.clock import Clock

__all__ = ["Sizes"]

PROBE_S = 10.0
SAVE_S = 10.0


class Sizes:
    def __init__(
        self,
        file: StateFile[dict[str, SizeRecord]],
        probe: SizeProbe | None,
        settings: Callable[[], ImageSettings],
        clock: Clock,
    ) -> None:
        self.memory = SizeMemory()
        self._file = file
        self._probe = probe
        self._settings = settings
        self._clock = clock
        self._saved: dict[str, SizeRecord] = {}

    @property
    def can_ask(self) -> bool:
        """Whether registries may be asked at all."""
        return self._probe is not None and self._settings().keys.size_probe != "off"

    async def load(self) -> None:
        self.memory = SizeMemory(await self._file.load() or {})
        self._saved = dict(self.memory.records)

    async def keep(self) -> None:
        """Write what was learnt, not more often than now and then; what is lost is learnt again."""
        while True:
            await self._clock.sleep(SAVE_S)
            await self.save()

    async def save(self) -> None:
        records = dict(self.memory.records)
        if records != self._saved:
            await self._file.save(records)
            self._saved = records

    async def known(self, ready: Ready) -> int | None:
        reference = ready.reference
        known = self.memory.guess(reference.repo, str(reference))
        if known is None and self._settings().keys.size_probe == "always":
            await self.ask(ready)
            known = self.memory.guess(reference.repo, str(reference))
        return known

    async def ask(self, ready: Ready) -> int | None:
        """Ask the registry. None: it could not, or shall not, say."""
        reference = ready.reference
        if self._probe is None or reference.registry in self._settings().keys.size_probe_except:
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

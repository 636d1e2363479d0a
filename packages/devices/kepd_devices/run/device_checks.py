# SPDX-License-Identifier: Apache-2.0
"""Whether kepd's own devices are well: each that has a command for it is asked, now and then.

    due → asked, a few at a time → judged → a change is reported to holders and to the allocator

One that hangs is ended after its time, and delays no other but by its place. Without such devices nothing wakes up.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable

import structlog

from agent.model.clock import Clock, rung
from kepd_devices.local.claim_files import own_results
from kepd_devices.plan.records import ClaimRecord
from kepd_devices.run.drivers.local_driver import LocalDriver

log = structlog.get_logger(plane="devices")

MOST_AT_ONCE = 4
# A device that comes and goes is told of no more often.
TELL_AGAIN_S = 60.0
Key = tuple[str, str]


class DeviceChecks:
    def __init__(
        self,
        drivers: Collection[LocalDriver],
        records: Callable[[], Iterable[ClaimRecord]],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when the health of a device is another one."""
        self._drivers = {one.name: one for one in drivers}
        self._records = records
        self._clock = clock
        self._changed = changed
        self._places = asyncio.Semaphore(MOST_AT_ONCE)
        self._due_s: dict[Key, float] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._told_s: dict[Key, float] = {}
        self._bell = asyncio.Event()

    def ring(self) -> None:
        """There may be others to ask now."""
        self._bell.set()

    async def run(self) -> None:
        """Until cancelled; commands that run are ended."""
        try:
            while True:
                self._bell.clear()
                await rung(self._bell, self._clock, self._begin())
        finally:
            running = list(self._running.values())
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _begin(self) -> float | None:
        """Those that are due; when another is, None if that is not known."""
        now_s = self._clock.now_s()
        asked = {(name, it): each for name, one in self._drivers.items() for it, each in one.devices.probes().items()}
        self._due_s = {key: self._due_s.get(key, now_s) for key in asked}
        self._told_s = {key: at_s for key, at_s in self._told_s.items() if now_s - at_s < TELL_AGAIN_S}
        for key, period_s in asked.items():
            if key not in self._running and self._due_s[key] <= now_s:
                self._running[key] = asyncio.create_task(self._check(*key, period_s), name=f"health of {key[1]}")
        return min((due_s for key, due_s in self._due_s.items() if key not in self._running), default=None)

    async def _check(self, name: str, device: str, period_s: float) -> None:
        """The next time counts from its end."""
        driver, key = self._drivers[name], (name, device)
        try:
            async with self._places:
                if await driver.check(device):
                    self._tell(driver, device)
                    self._changed()
        finally:
            self._due_s[key] = self._clock.now_s() + period_s
            self._running.pop(key, None)
            self._bell.set()

    def _tell(self, driver: LocalDriver, device: str) -> None:
        why = driver.devices.unhealthy.get(device, "")
        log.warning("device_health_changed", driver=driver.name, device=device, why=why or "well again")
        key = (driver.name, device)
        if not why or key in self._told_s:
            return
        self._told_s[key] = self._clock.now_s()
        for record in self._records():
            if any(one.device == device for one in own_results(record, driver.name)):
                driver.tell_unhealthy(record, device)

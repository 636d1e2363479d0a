# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's limit where auto_limit.py says while `images.maxParallelPulls` is `auto`.

Never: touches a limit that was set by a number, in the configuration or by hand.
"""

from typing import Protocol

import structlog

from agent.images.queue.auto_limit import AutoLimit, AutoSample, Pressure, next_limit, read_pressure
from agent.images.run.puller import Puller
from agent.model.clock import Clock

log = structlog.get_logger(plane="images")

SAMPLE_S = 5.0


class PressureSource(Protocol):
    """What the kernel says about waiting for the node's disk and memory, in its words; empty where it says nothing."""

    def texts(self) -> tuple[str, str]: ...


class AutoLimiter:
    """`state` is what was decided last."""

    def __init__(self, puller: Puller, pressure: PressureSource, *, clock: Clock) -> None:
        self._puller = puller
        self._pressure = pressure
        self._clock = clock
        self.state = AutoLimit()

    async def run(self) -> None:
        while True:
            await self._clock.sleep(SAMPLE_S)
            if self._puller.settings.is_limit_auto:
                self._sample()

    def _sample(self) -> None:
        puller = self._puller
        is_short = puller.is_short_of_slots
        # Without pulls the disk's troubles are not of our making.
        pressure = read_pressure(*self._pressure.texts()) if is_short or puller.rate_bytes_s else Pressure()
        before = self.state
        self.state = next_limit(before, AutoSample(SAMPLE_S, is_short, puller.rate_bytes_s, pressure))
        if self.state.limit != before.limit:
            log.info("pull_limit_tuned", limit=self.state.limit, before=before.limit, why=self.state.why)
        # A reload begins with the first guess; what was found out holds.
        if puller.settings.queue.max_parallel != self.state.limit:
            puller.tune(self.state.limit)

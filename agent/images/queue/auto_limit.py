# SPDX-License-Identifier: Apache-2.0
"""Finds how many pulls may run, with `maxParallelPulls: auto`.

One more per minute of waiting work as long as that brought more bytes and the disk is calm, half as many when the disk
or the memory is short.
"""

import msgspec
from msgspec.structs import replace

LEAST, MOST, FIRST = 1, 8, 3
STEP_S = 60.0
SETTLE_S = 10.0
GROWTH = 1.05
CALM_IO, BUSY_IO = 20.0, 40.0


class Pressure(msgspec.Struct, frozen=True):
    """Shares of the last 10 s in percent: some task waited for the disk, all tasks waited for memory."""

    io_some: float = 0.0
    memory_full: float = 0.0


class AutoSample(msgspec.Struct, frozen=True):
    """What was seen since the last sample. `has_waiting`: pulls wait that another slot would help."""

    duration_s: float
    has_waiting: bool
    rate_bytes_s: float
    pressure: Pressure


class AutoLimit(msgspec.Struct, frozen=True):
    """The limit, and what was measured since it was last thought about. `last_rate` None: nothing to compare with."""

    limit: int = FIRST
    waited_s: float = 0.0
    done_bytes: float = 0.0
    last_rate: float | None = None
    quiet_s: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        return f"{self.limit} pulls at once: {self.why or 'first guess'}"


def next_limit(now: AutoLimit, sample: AutoSample) -> AutoLimit:
    quiet_s = max(0.0, now.quiet_s - sample.duration_s)
    why = _trouble(sample.pressure)
    if why:
        if quiet_s or now.limit == LEAST:
            return replace(now, waited_s=0.0, done_bytes=0.0, last_rate=None, quiet_s=quiet_s)
        return AutoLimit(max(LEAST, now.limit // 2), quiet_s=SETTLE_S, why=why)
    if not sample.has_waiting:
        return replace(now, quiet_s=quiet_s)
    waited_s = now.waited_s + sample.duration_s
    done_bytes = now.done_bytes + sample.rate_bytes_s * sample.duration_s
    if waited_s < STEP_S:
        return replace(now, waited_s=waited_s, done_bytes=done_bytes, quiet_s=quiet_s)
    rate = done_bytes / waited_s
    has_grown = now.last_rate is None or rate >= GROWTH * now.last_rate
    is_raised = has_grown and sample.pressure.io_some < CALM_IO and now.limit < MOST
    why = f"pulls wait, and {rate / 1e6:.1f} MB/s come in" if is_raised else now.why
    return AutoLimit(now.limit + is_raised, last_rate=rate, why=why)


def _trouble(pressure: Pressure) -> str:
    if pressure.io_some >= BUSY_IO:
        return f"tasks waited for the disk {pressure.io_some:.0f}% of the time"
    if pressure.memory_full > 0:
        return f"all tasks waited for memory {pressure.memory_full:.0f}% of the time"
    return ""


def read_pressure(io: str, memory: str) -> Pressure:
    """From /proc/pressure/io and memory. A kernel without them, or with other words in them, presses nothing."""
    return Pressure(_average(io, "some"), _average(memory, "full"))


def _average(text: str, kind: str) -> float:
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [kind]:
            found = dict(word.partition("=")[::2] for word in words[1:]).get("avg10", "")
            try:
                return float(found)
            except ValueError:
                return 0.0
    return 0.0

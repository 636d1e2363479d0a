# SPDX-License-Identifier: Apache-2.0
"""Turns of the event loop that are so long that others wait, and whose work they were.

A turn is one step of one task, or one callback. It belongs to whom `WORK` names in its context, else to its task: the
tasks of pods, plugins and units have their names. Time in which this thread waited for a processor does not count.
"""

from asyncio import events
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import structlog

from agent.api.peer import WORK
from agent.model.finding import Advice, printable

log = structlog.get_logger(plane="daemon")

HELD_S = 0.1
# For doctor: a slow machine has a few that are a little longer.
TOLD_S, TOLD_COUNT = 1.0, 10
MOST_NAMES = 20
LONGEST_NAME = 200
# Microseconds that it ran and that it waited, then how often.
SCHEDULED = Path("/proc/thread-self/schedstat")


class Holder(msgspec.Struct):
    count: int = 0
    longest_s: float = 0.0


def waited_s() -> float:
    """For how long this thread has waited for a processor, since it began; 0 where the kernel does not count."""
    try:
        return int(SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class LongTurns:
    """Of the daemon's loop."""

    def __init__(self, waited: Callable[[], float] = waited_s, now: Callable[[], float] = perf_counter) -> None:
        self._waited, self._now = waited, now
        self._waited_s = waited()
        self.holders: dict[str, Holder] = {}

    def watch(self) -> Callable[[], None]:
        """Every turn of this process from now on; returns what ends that."""
        handles: Any = events.Handle
        # asyncio has no hook for it.
        whole, now = handles._run, self._now  # noqa: SLF001

        def run(handle: Any) -> None:  # noqa: ANN401 - a handle of asyncio
            began_s = now()
            whole(handle)
            if (took_s := now() - began_s) >= HELD_S:
                self.note(handle, took_s)

        def end() -> None:
            handles._run = whole  # noqa: SLF001

        handles._run = run  # noqa: SLF001
        return end

    def tick(self, *, is_ready: bool = True) -> None:
        """Called every few seconds, for what a long turn waited is counted since then. While the daemon
        starts, imports make turns long, and no caller waits yet: those are forgotten."""
        self._waited_s = self._waited()
        if not is_ready:
            self.holders.clear()

    def note(self, handle: Any, took_s: float) -> None:  # noqa: ANN401 - a handle of asyncio
        before_s, self._waited_s = self._waited_s, self._waited()
        waited_s = min(self._waited_s - before_s, took_s)
        if took_s - waited_s < HELD_S:
            return
        name = printable(name_of(handle))[:LONGEST_NAME]
        holder = self.holders.pop(name, Holder())
        holder.count += 1
        holder.longest_s = max(holder.longest_s, took_s - waited_s)
        self.holders[name] = holder
        while len(self.holders) > MOST_NAMES:
            del self.holders[next(iter(self.holders))]
        log.warning("event_loop_held", by=name, held_s=round(took_s - waited_s, 3), count=holder.count)

    async def advice(self) -> Sequence[Advice]:
        """For `kepctl doctor`."""
        return [
            Advice(
                subject=f"kepd loop {name}",
                found=f"{holder.longest_s * 1000:.0f} ms at once, {holder.count} times above {HELD_S * 1000:.0f} ms",
                wanted=f"below {HELD_S * 1000:.0f} ms",
                text="everything else of kepd waited meanwhile: probes, pods, Services and callers",
                is_note=True,
            )
            for name, holder in reversed(self.holders.items())
            if holder.longest_s >= TOLD_S or holder.count >= TOLD_COUNT
        ]


def name_of(handle: Any) -> str:  # noqa: ANN401 - a handle of asyncio
    context, work = handle._context, handle._callback  # noqa: SLF001
    if context is not None and (name := str(context.get(WORK, ""))):
        return name
    task = getattr(work, "__self__", None)
    if task is not None and hasattr(task, "get_name"):
        return f"task {task.get_name()}"
    return f"callback {getattr(work, '__qualname__', type(work).__qualname__)}"

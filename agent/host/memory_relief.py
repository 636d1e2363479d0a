# SPDX-License-Identifier: Apache-2.0
"""What kepd gives up when its memory is nearly used up: history and lists, and never its work.

Each minute, short or not, pages that are free go back to the kernel: work of a moment must not be held for weeks.

At the limit of its control group the kernel ends the process, or keeps it busy with taking pages back. Before that, old
events and what is known of pods that are gone are dropped, free pages go back to the kernel, and lists are refused to
callers other than root, until there is room again. Pods, pulls, rules and the proxy go on.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.finding import Advice

log = structlog.get_logger(plane="daemon")

LOOKS_EVERY_S = 2.0
GIVES_BACK_EVERY_S = 60.0
SHEDS_EVERY_S = 30.0
SHORT, ENOUGH = 0.85, 0.75
"""Of the limit."""
# What version 1 of control groups shows where there is no limit is larger than any machine.
NO_LIMIT = 1 << 50
MIB = 1 << 20


class MemoryUsage(msgspec.Struct, frozen=True):
    """Bytes in use, without caches of files that the kernel takes back first; and the limit."""

    used: int
    limit: int


class GroupMemory:
    """The memory of this process's control group, in either version."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._groups = root / "sys/fs/cgroup"
        self._membership = root / "proc/self/cgroup"

    def look(self) -> MemoryUsage | None:
        """None where there is no limit, or nothing to be read."""
        try:
            for line in self._membership.read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if "memory" in controllers.split(","):
                    return self._read(
                        self._groups / "memory", path, "memory.usage_in_bytes", ("memory.limit_in_bytes",)
                    )
                if not controllers and (self._groups / "cgroup.controllers").exists():
                    return self._read(self._groups, path, "memory.current", ("memory.high", "memory.max"))
        except (OSError, ValueError):
            pass
        return None

    def _read(self, top: Path, path: str, used: str, limits: Sequence[str]) -> MemoryUsage | None:
        """In a container the path is that of the node, and the group lies at the top."""
        folder = top / path.lstrip("/")
        if not (folder / used).exists():
            folder = top
        known = [int(text) for name in limits if (text := (folder / name).read_text().strip()) != "max"]
        limit = min(known, default=NO_LIMIT)
        if limit >= NO_LIMIT:
            return None
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        caches = {name: int(value) for name, value in lines}
        cache = caches.get("total_inactive_file", caches.get("inactive_file", 0))
        return MemoryUsage(max(int((folder / used).read_text()) - cache, 0), limit)


class MemoryRelief:
    """`sheds` are called at most twice a minute while memory is short; `is_short` is for those who may refuse work."""

    def __init__(
        self,
        look: Callable[[], MemoryUsage | None],
        sheds: Sequence[Callable[[], None]],
        tell: Callable[[Event], None],
        clock: Clock,
        give_back: Callable[[], None],
    ) -> None:
        self._look = look
        self._give_back = give_back
        self._sheds = sheds
        self._tell = tell
        self._clock = clock
        self._usage: MemoryUsage | None = None
        self._shed_at_s: float | None = None
        self.is_short = False

    async def run(self, report: Report) -> None:
        self._usage = self._look()
        report.ready("no limit" if self._usage is None else f"at most {self._usage.limit // MIB} MiB")
        given_back_at_s = self._clock.now_s()
        while True:
            await self._clock.sleep(LOOKS_EVERY_S)
            self._usage = self._look()
            self._judge(self._usage)
            if self._clock.now_s() - given_back_at_s >= GIVES_BACK_EVERY_S:
                given_back_at_s = self._clock.now_s()
                self._give_back()

    def _judge(self, usage: MemoryUsage | None) -> None:
        part = usage.used / usage.limit if usage is not None else 0.0
        was_short = self.is_short
        self.is_short = part >= (ENOUGH if was_short else SHORT)
        if usage is not None and self.is_short:
            if not was_short:
                self._say(usage)
            self._shed()
        elif was_short:
            log.info("memory_suffices_again")

    def _say(self, usage: MemoryUsage) -> None:
        text = (
            f"kepd uses {usage.used // MIB} of {usage.limit // MIB} MiB: it drops old events and history, and refuses "
            "lists to all but root until there is room; MemoryHigh of its unit or the limit of its pod allows more"
        )
        log.warning("memory_short", used_bytes=usage.used, limit_bytes=usage.limit)
        self._tell(Event(is_warning=True, reason="MemoryShort", message=text, plane="daemon"))

    def _shed(self) -> None:
        now_s = self._clock.now_s()
        if self._shed_at_s is None or now_s - self._shed_at_s >= SHEDS_EVERY_S:
            self._shed_at_s = now_s
            for shed in self._sheds:
                shed()

    async def advice(self) -> Sequence[Advice]:
        """For `kepctl doctor`."""
        usage = self._usage
        if not self.is_short or usage is None:
            return []
        found, wanted = (f"{size // MIB} MiB" for size in (usage.used, int(usage.limit * SHORT)))
        text = "lists are refused to all but root, and old events and history are dropped"
        return [Advice(subject="kepd memory", found=found, wanted=f"below {wanted}", text=text)]

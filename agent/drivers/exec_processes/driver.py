# SPDX-License-Identifier: Apache-2.0
"""Ends what somebody ran in a container by exec and no longer waits for: no runtime does, it only closes the streams.

Such a process stands in the container's control group and its parent does not, as the container's first process, which
has number 1 in its pid namespace and is never touched.
"""

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

PATIENCE_S, LOOK_S = 2.0, 0.05
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# A start is known to a hundredth of a second.
SLACK_S = 0.05
PARENT, START = 1, 19


class _Process(msgspec.Struct, frozen=True):
    pid: int
    parent: int
    start_ticks: int
    argv: tuple[str, ...]
    is_first: bool


class ExecProcesses:
    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    async def end(self, container_id: str, command: Sequence[str], since_s: float) -> bool:
        """End what was started by this command since then, a wall time, with all that it has started: TERM, then KILL.
        False: there is none. A shell may have become another program, so the only one of that time counts too."""
        group = await asyncio.to_thread(self._group, container_id)
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        since_ticks = (since_s - SLACK_S - booted_s) * TICKS_A_SECOND
        begun = [
            one
            for one in group.values()
            if one.parent not in group and not one.is_first and one.start_ticks >= since_ticks
        ]
        alike = [one for one in begun if one.argv == tuple(command)]
        if not alike and len(begun) != 1:
            return False
        first = min(alike or begun, key=lambda one: one.start_ticks)
        left = _tree(group, [first])
        _signal(left, signal.SIGTERM)
        until_s = time.monotonic() + PATIENCE_S
        # What the kernel holds ends when it lets go, and nobody waits for that here.
        while left and time.monotonic() < until_s + PATIENCE_S:
            if time.monotonic() > until_s:
                _signal(left, signal.SIGKILL)
            await asyncio.sleep(LOOK_S)
            group = await asyncio.to_thread(self._group, container_id)
            left = _tree(group, _alive(group, left))
        return True

    def _group(self, container_id: str) -> Mapping[int, _Process]:
        """All processes of a container, by pid."""
        found = {}
        for folder in self._proc.glob("[0-9]*"):
            # It may end while it is looked at.
            with suppress(OSError, ValueError):
                if container_id in (folder / "cgroup").read_text("utf-8", "replace"):
                    found[int(folder.name)] = _read(folder)
        return found


def _read(folder: Path) -> _Process:
    fields = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    status = (folder / "status").read_text("utf-8", "replace")
    numbers = next((line.split() for line in status.splitlines() if line.startswith("NSpid:")), ["1"])
    argv = (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    return _Process(int(folder.name), int(fields[PARENT]), int(fields[START]), tuple(argv), numbers[-1] == "1")


def _tree(group: Mapping[int, _Process], tops: Sequence[_Process]) -> list[_Process]:
    """They and their descendants, which a shell leaves behind when it is killed, and of which it may make more."""
    found = list(tops)
    for one in found:
        found += [other for other in group.values() if other.parent == one.pid and other not in found]
    return found


def _alive(now: Mapping[int, _Process], before: Sequence[_Process]) -> list[_Process]:
    """Those that are still the same; a pid may have been given to another by now."""
    return [one for one in before if (seen := now.get(one.pid)) is not None and seen.start_ticks == one.start_ticks]


def _signal(processes: Sequence[_Process], number: signal.Signals) -> None:
    for one in processes:
        with suppress(ProcessLookupError):
            os.kill(one.pid, number)

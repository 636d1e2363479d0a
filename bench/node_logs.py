# SPDX-License-Identifier: Apache-2.0
"""Logs of the node: how soon they come, and what 64 MiB of them take.

The journal is made for it by systemd-journal-remote. What a call takes is measured where the daemon hands its parts to
the API.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from agent.drivers.node_logs.files import LogFiles
from agent.drivers.node_logs.programs import Programs
from agent.model.nodes.log import LogReader, LogRequest
from agent.observe.run.node_logs import LogRules, NodeLogs
from tests.observe.journals import MICROS, Entry, write_journal

Row = tuple[str, float, str, str]
ROOT = LogReader(0, is_root=True)
UNIT = "kubelet.service"
LINE = b"x" * 127
LINES = (64 << 20) // (len(LINE) + 1)
ROUNDS = 20
FOLLOWED = 10
LOOK_S = 0.002


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def first_line_s(logs: NodeLogs, request: LogRequest) -> float:
    begun = time.monotonic()
    async with aclosing(logs.stream(request, ROOT)) as parts:
        await anext(parts)
        return time.monotonic() - begun


async def whole(logs: NodeLogs, request: LogRequest) -> tuple[float, float, int]:
    """Time, memory added at most, and bytes."""
    before, most, size = resident_mib(), 0.0, 0
    begun = time.monotonic()
    async with aclosing(logs.stream(request, ROOT)) as parts:
        async for part in parts:
            size += len(part.lines)
            most = max(most, resident_mib() - before)
    return time.monotonic() - begun, most, size


async def follow_s(logs: NodeLogs, request: LogRequest, folder: Path) -> list[float]:
    """From when a line was written until it came."""
    found = []
    async with aclosing(logs.stream(request, ROOT)) as parts:
        await anext(parts)
        for number in range(FOLLOWED):
            coming = asyncio.ensure_future(anext(parts))
            await asyncio.sleep(0.3 + number * 0.02)
            begun = time.monotonic()
            if request.file:
                with (folder / request.file).open("ab") as file:
                    file.write(LINE + b"\n")
            else:
                now = [Entry(time.time_ns() // 1000, UNIT, LINE)]
                await asyncio.to_thread(write_journal, folder, now, f"f{number}.journal")
            await coming
            found.append(time.monotonic() - begun)
    return found


async def lateness(logs: NodeLogs, request: LogRequest) -> float:
    late: list[float] = []

    async def look() -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(LOOK_S)
            late.append(time.monotonic() - begun - LOOK_S)

    looking = asyncio.create_task(look())
    await whole(logs, request)
    looking.cancel()
    return max(late)


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "syslog").write_bytes((LINE + b"\n") * LINES)
        begun_us = 1_750_000_000 * MICROS
        write_journal(folder / "journal", [Entry(begun_us + number, UNIT, LINE) for number in range(LINES)])
        rules = LogRules(journal=f"{folder}/journal", directories=(place,), most_bytes=1 << 30)
        logs = NodeLogs(LogFiles, Programs(), lambda: rules, lambda: datetime.now(UTC))
        for what, request, written in (
            ("the journal", LogRequest(units=(UNIT,), output="cat"), folder / "journal"),
            ("a file", LogRequest(file="syslog"), folder),
        ):
            yield from asyncio.run(_rows(logs, what, request, written))
        (folder / "hostile").write_bytes((b"a" * 5000 + b"!\n") * 100)
        hostile = NodeLogs(LogFiles, Programs(), lambda: replace(rules, run_s=3.0), lambda: datetime.now(UTC))
        late = asyncio.run(lateness(hostile, LogRequest(file="hostile", grep=r"(a|aa)*(\1)*x$")))
        yield "the event loop late while a hostile pattern runs, worst", late * 1000, "ms", "< 50"


async def _rows(logs: NodeLogs, what: str, request: LogRequest, written: Path) -> list[Row]:
    firsts = [await first_line_s(logs, request) for _ in range(ROUNDS)]
    all_ = replace(request, since_us=0) if request.units else replace(request, tail=100_000)
    took, added, size = await whole(logs, all_)
    late = await follow_s(logs, replace(request, follow=True, tail=1), written)
    per_64 = took * (64 << 20) / size
    return [
        (f"logs of {what}: first line, median", statistics.median(firsts) * 1000, "ms", "≤ 100"),
        (f"logs of {what}: {size / (1 << 20):.0f} MiB, as of 64", per_64, "s", "≤ 3"),
        (f"logs of {what}: resident memory added meanwhile", added, "MiB", "≤ 2"),
        (f"logs of {what}: a new line to a follower, worst", max(late), "s", "≤ 0.5"),
    ]

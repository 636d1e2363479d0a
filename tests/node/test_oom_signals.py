# SPDX-License-Identifier: Apache-2.0
"""This kernel's word that a group ran out of memory, and that a file of control groups changed (OOM-03)."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.drivers.oom_signals.driver import OomSignals
from agent.observe.kernel.hierarchies import UNIFIED, Hierarchies, read_mounts

pytestmark = [pytest.mark.node, pytest.mark.timeout(60)]

GROWS = "import time; held = bytearray(200 << 20); time.sleep(60)"


def hierarchies() -> Hierarchies:
    return read_mounts(Path("/proc/self/mountinfo").read_text())


@pytest.fixture
def groups() -> Iterator[dict[str, Path]]:
    """One with a limit of 20 MiB where memory is counted, and one in the unified hierarchy."""
    known, name = hierarchies(), f"/kepd-oom-{uuid.uuid4().hex[:8]}"
    found = {one: Path(folder) for one in ("memory", UNIFIED) if (folder := known.folder(one, name)) is not None}
    for path in found.values():
        path.mkdir()
    legacy, unified = found.get("memory"), found.get(UNIFIED)
    if legacy is not None:
        (legacy / "memory.limit_in_bytes").write_text(str(20 << 20))
    elif unified is not None:
        (unified / "memory.max").write_text(str(20 << 20))
        (unified / "memory.swap.max").write_text("0")
    yield found
    for path in found.values():
        if path.exists():
            path.rmdir()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def grow(group: Path) -> int:
    """A child of this group that wants more than there is; its end."""
    entry = f"open('{group}/cgroup.procs', 'w').write('0'); "
    return subprocess.run([sys.executable, "-c", entry + GROWS], check=False, capture_output=True).returncode


async def told(signals: OomSignals) -> frozenset[str]:
    async with asyncio.timeout(30):
        return await signals.woken()


async def test_a_kill_is_told_of_and_the_counter_has_it_soon(groups: dict[str, Path]) -> None:
    """OOM-03: where this node counts memory; and the removal of the group is told of as well, with version 1."""
    group = groups.get("memory") or groups[UNIFIED]
    file = group / ("memory.oom_control" if "memory" in groups else "memory.events")
    signals = OomSignals()
    signals.keep({"a": str(file), "gone": f"{group}/none/{file.name}"})
    assert signals.watched == 1
    try:
        end = await asyncio.to_thread(grow, group)
        woken = await told(signals)
        for _ in range(100):
            if "oom_kill 1" in file.read_text():
                break
            await asyncio.sleep(0.01)
        assert (woken, end) == ({"a"}, -9)
        assert "oom_kill 1" in file.read_text()
        if "memory" in groups:
            group.rmdir()
            assert await told(signals) == {"a"}
    finally:
        signals.close()


async def test_a_changed_file_of_the_unified_hierarchy_is_told_of(groups: dict[str, Path]) -> None:
    """OOM-03: as the file of events is; by another that this kernel has without controllers."""
    if UNIFIED not in groups:
        pytest.fail("this kernel has no unified hierarchy mounted")
    signals = OomSignals()
    signals.keep({"a": str(groups[UNIFIED] / "cgroup.events")})
    child = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        (groups[UNIFIED] / "cgroup.procs").write_text(str(child.pid))
        assert await told(signals) == {"a"}
        signals.keep({})
        child.kill()
        await child.wait()
        await asyncio.sleep(0.05)
        assert signals.watched == 0
        assert not signals._woken
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        signals.close()


async def test_what_is_watched_has_a_bound_and_nothing_stays_open(groups: dict[str, Path]) -> None:
    before = descriptors()
    group = groups.get("memory") or groups[UNIFIED]
    file = str(group / ("memory.oom_control" if "memory" in groups else "memory.events"))
    signals = OomSignals(most=5)
    signals.keep({str(number): file for number in range(50)})
    assert signals.watched <= 5
    signals.keep({"1": file, "x": file})
    assert signals.watched <= 2
    signals.close()
    await asyncio.sleep(0)

    assert signals.watched == 0
    assert descriptors() <= before + 1

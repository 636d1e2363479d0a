# SPDX-License-Identifier: Apache-2.0
"""What this kernel says when memory runs short (EVN-11)."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from agent.drivers.pressure.alarm import MemoryAlarm
from agent.observe.kernel.hierarchies import read_mounts

pytestmark = pytest.mark.node

MIB = 1 << 20


def root() -> Path | None:
    hierarchies = read_mounts(Path("/proc/self/mountinfo").read_text())
    folder = hierarchies.folder("memory", "/") if hierarchies.version == 1 else None
    return Path(folder) if folder else None


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_more_memory_in_use_rings_and_what_was_armed_before_does_not() -> None:
    """With version 1 of control groups; version 2 has pressure alone."""
    alarm, place, before = MemoryAlarm(), root(), descriptors()
    alarm.arm(place, 64 << 40)
    alarm.arm(place, 32 * MIB)
    try:
        held = b"x" * (256 * MIB)
        if place is not None:
            async with asyncio.timeout(30):
                await alarm.rung()
        assert len(held) == 256 * MIB
    finally:
        alarm.disarm()

    assert descriptors() <= before + 1, "the loop keeps one of its own"


async def test_pressure_rings_and_a_trigger_that_the_kernel_ends_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection with urgent data is the kernel's word here."""
    listener = socket.create_server(("127.0.0.1", 0))
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    opened = os.open
    monkeypatch.setattr(
        os, "open", lambda path, *more: os.dup(ours.fileno()) if path == tmp_path else opened(path, *more)
    )
    alarm = MemoryAlarm(tmp_path)
    alarm.arm(None, None)
    monkeypatch.undo()
    theirs.send(b"!", socket.MSG_OOB)
    async with asyncio.timeout(30):
        await alarm.rung()
    for one in (theirs, ours, listener):
        one.close()
    alarm.disarm()
    alarm.disarm()


async def test_without_pressure_and_groups_nothing_rings(tmp_path: Path) -> None:
    alarm = MemoryAlarm(tmp_path / "none")
    alarm.arm(tmp_path, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await alarm.rung()
    alarm.disarm()

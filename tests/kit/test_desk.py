# SPDX-License-Identifier: Apache-2.0
"""Work for a process of its own: it ends with its deadline, its memory or its asker, and the next is served."""

import asyncio
import os
import time

import pytest

from agent.kit.desk import ProcessDesk
from agent.model.desk import DeskFailed


def backwards(given: bytes) -> bytes:
    return given[::-1]


def endless(_: bytes) -> bytes:
    while True:
        pass


def greedy(_: bytes) -> bytes:
    return b"x" * (8 << 30)


def wrong(_: bytes) -> bytes:
    raise ValueError("no such thing")


def process(_: bytes) -> bytes:
    return f"{os.getpid()} {sorted(os.environ)}".encode()


def asleep(_: bytes) -> bytes:
    time.sleep(60)
    return b""


async def test_work_is_answered_by_one_process_after_the_other_and_failures_are_told() -> None:
    """NP-4."""
    desk = ProcessDesk()
    large = os.urandom(5_000_000)
    assert await desk.ask(backwards, large, 20) == large[::-1]
    first = await desk.ask(process, b"", 20)
    with pytest.raises(DeskFailed, match="has failed: ValueError: no such thing"):
        await desk.ask(wrong, b"", 20)
    with pytest.raises(DeskFailed, match=r"takes longer than 0\.2 s"):
        await desk.ask(endless, b"", 0.2)
    with pytest.raises(DeskFailed, match=r"MemoryError|has ended"):
        await desk.ask(greedy, b"", 20)
    second = await desk.ask(process, b"", 20)
    await desk.end()

    assert first.split()[0] != second.split()[0]
    assert b"PYTHONPATH" in first
    assert b"HOME" not in first


async def test_who_no_longer_waits_takes_the_process_with_him_and_others_have_their_turn() -> None:
    desk = ProcessDesk()
    await desk.ask(backwards, b"", 20)
    child = desk._child
    assert child is not None
    asks = asyncio.create_task(desk.ask(asleep, b"", 60))
    waits = asyncio.create_task(desk.ask(backwards, b"ab", 20))
    await asyncio.sleep(0)
    asks.cancel()

    assert await asyncio.wait_for(waits, 30) == b"ba"
    assert await child.wait() < 0
    await desk.end()


async def test_an_idle_process_goes() -> None:
    desk = ProcessDesk(idle_s=0.01)
    await desk.ask(backwards, b"", 20)
    child = desk._child
    assert child is not None
    await asyncio.wait_for(child.wait(), 20)

    assert await desk.ask(backwards, b"ab", 20) == b"ba"
    await desk.end()

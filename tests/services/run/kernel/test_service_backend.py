# SPDX-License-Identifier: Apache-2.0
"""The rules of the backend that was: taken away after the new ones are in, and neither before nor twice."""

import asyncio

from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import Family
from agent.services.ruleset import SyncReport
from agent.services.run.kernel.backend import RETRY_S, OldBackendCleanup
from tests.fakes.clock import FakeClock

FULL = SyncReport({}, 1, 0.1, is_full=True)
PART = SyncReport({}, 1, 0.1, is_full=False)


async def test_each_family_is_cleaned_once_and_a_late_one_does_not_wait() -> None:
    """SY-14. The second family comes while the first one is being cleaned."""
    cleaned: list[Family] = []
    clock = FakeClock()

    async def remove(family: Family) -> str:
        cleaned.append(family)
        if family == "IPv4":
            cleanup.follow("IPv6", FULL)
        return "something"

    cleanup = OldBackendCleanup(remove, clock)
    cleanup.follow("IPv4", PART)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cleanup.run())
        await clock.advance(1.0)
        assert cleaned == []

        cleanup.follow("IPv4", FULL)
        await clock.advance(1.0)
        cleanup.follow("IPv4", FULL)
        await clock.advance(1.0)
        running.cancel()

    assert cleaned == ["IPv4", "IPv6"]


async def test_what_cannot_be_removed_is_tried_again() -> None:
    failures = [NftFailed("busy")]
    clock = FakeClock()
    tries: list[float] = []

    async def remove(_family: Family) -> str:
        tries.append(clock.now_s())
        if failures:
            raise failures.pop()
        return ""

    cleanup = OldBackendCleanup(remove, clock)
    cleanup.follow("IPv4", FULL)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cleanup.run())
        await clock.advance(100.0)
        running.cancel()

    assert tries == [0.0, RETRY_S]

# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests as one process follows it, with what it remembers in a database."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agent.drivers.manifests.driver import ManifestDirectory
from agent.model.component import Board, State
from agent.objects.reading import Reading
from agent.objects.run.follower import ManifestFollower, PlaneObjects
from agent.objects.run.memory import ObjectMemory


@asynccontextmanager
async def following(
    folder: Path, database: Path, *readings: Reading, rescan_s: float = 300.0
) -> AsyncIterator[list[PlaneObjects]]:
    """What the plane of each reading hears."""
    follower = ManifestFollower(ManifestDirectory(folder, lambda: (rescan_s, 0.02)), ObjectMemory(database))
    sources = [follower.source(lambda reading=reading: reading) for reading in readings]  # type: ignore[misc]
    report = Board(time.time).add("manifests", State.STARTING, "starting")
    running = asyncio.ensure_future(follower.run(report))
    try:
        yield sources
    finally:
        # What was in force last has been remembered.
        await follower._in_thread(lambda: None)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await follower.close()

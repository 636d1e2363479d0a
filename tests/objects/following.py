# SPDX-License-Identifier: Apache-2.0
"""A directory of manifests as one process follows it, with what it remembers in a database."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agent.drivers.manifests.driver import ManifestDirectory
from agent.model.component import Board, State
from agent.objects.run.follower import ManifestFollower, PlaneManifests
from agent.objects.run.memory import ObjectMemory


@asynccontextmanager
async def following(
    folder: Path, database: Path, *planes: str, rescan_s: float = 300.0
) -> AsyncIterator[list[PlaneManifests]]:
    """What each plane sees; pods also see the folders that objects are made from."""
    follower = ManifestFollower(ManifestDirectory(folder, lambda: (rescan_s, 0.02)), ObjectMemory(database))
    sources = [follower.source(plane, plane == "pods") for plane in planes]
    report = Board(time.time).add("manifests", State.STARTING, "starting")
    running = asyncio.ensure_future(follower.run(report))
    try:
        yield sources
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await follower.close()

# SPDX-License-Identifier: Apache-2.0
"""Gives back what the boot before left taken, also of sandboxes that the runtime still lists for a while.

Of one whose network namespace is gone a runtime may know no network either, where the power was cut before it had
written that down: it removes such a sandbox without a word to CNI. So the ids of those that were over at the first look
are kept, and when one has left the list, its files are looked at.
"""

import asyncio
import time
from collections.abc import Container, Sequence
from pathlib import Path

import structlog

from agent.model.clock import Clock
from agent.pods.run.disk.lost_networks import lost_networks, release
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")


class LostAddresses:
    def __init__(self, results: Path, clock: Clock) -> None:
        self._results = results
        self._clock = clock
        self._over: set[str] = set()

    async def look(self, sandboxes: Sequence[pb.PodSandbox], *, is_first: bool) -> None:
        """`is_first`: no sandbox of ours can be on its way, so that what is not listed is lost."""
        if not is_first and not self._over:
            return
        listed = {one.id for one in sandboxes}
        if is_first:
            self._over = {one.id for one in sandboxes if one.state != pb.SANDBOX_READY}
            await self._release(listed)
        elif gone := self._over - listed:
            self._over -= gone
            await self._release(listed, gone)

    async def _release(self, listed: set[str], only: Container[str] | None = None) -> None:
        wall_s = self._clock.wall_s()
        # By the kernel, whatever the clock on the wall was set to since.
        boot_s = wall_s - time.clock_gettime(time.CLOCK_BOOTTIME)
        networks = self._results.parent / "networks"
        for one in await asyncio.to_thread(lost_networks, self._results, networks, listed, wall_s, boot_s):
            if only is not None and one.sandbox_id not in only:
                continue
            try:
                await asyncio.to_thread(release, one)
            except OSError as error:
                log.warning("lost_address_not_released", sandbox=one.sandbox_id, network=one.network, error=str(error))
            else:
                files = [path.name for path in one.files]
                log.info("lost_address_released", sandbox=one.sandbox_id, network=one.network, files=files)

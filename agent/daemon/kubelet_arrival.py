# SPDX-License-Identifier: Apache-2.0
"""Waits for a kubelet that begins after kepd, at the first boot of a node for instance."""

import asyncio
from collections.abc import Callable

from agent.model.clock import Clock

KUBELET_LOOK_S = 60.0


async def kubelet_arrival(look: Callable[[], str], clock: Clock, arrived: Callable[[], None]) -> None:
    """What a kubelet does, kepd must then stop doing: collecting images for space, and evicting pods."""
    while not await asyncio.to_thread(look):
        await clock.sleep(KUBELET_LOOK_S)
    arrived()

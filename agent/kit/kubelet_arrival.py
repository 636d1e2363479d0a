# SPDX-License-Identifier: Apache-2.0
"""Follows whether a kubelet runs on this node: it may begin after kepd, at the first boot, and it may be removed."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.config.document import Configuration
from agent.drivers.kubelet.signs import kubelet_sign
from agent.model.clock import Clock
from agent.model.event import Event

KUBELET_LOOK_S = 60.0
# A kubelet that restarts is away for a moment.
LOOKS_UNTIL_GONE = 5
ARRIVED = "{sign}: images are no longer removed to make space, and no pods are evicted, for a kubelet does both"
GONE = "no sign of a kubelet is left ({sign} before): kepd removes images to make space and evicts pods again"


def kubelet_beside(configuration: Configuration, environment: Mapping[str, str], root: Path = Path("/")) -> str:
    """A sign of one. The sockets that kepd itself serves in its place are none, also what a power cut left of them."""
    devices = configuration.devices
    own = {devices.pod_resources} if devices.manager.enabled or devices.plugins.enabled else set()
    own |= {f"{devices.plugins.directory}/kubelet.sock"} if devices.plugins.enabled else set()
    return kubelet_sign(environment, root, own)


async def follow_kubelet(
    look: Callable[[], str], clock: Clock, changed: Callable[[str], None], tell: Callable[[Event], None]
) -> None:
    """`changed` hears the sign of a kubelet that came, and an empty one when none is left."""
    sign, missed = await asyncio.to_thread(look), 0
    if sign:
        changed(sign)
    while True:
        await clock.sleep(KUBELET_LOOK_S)
        found = await asyncio.to_thread(look)
        missed = 0 if found else missed + 1
        if bool(found) != bool(sign) and (found or missed >= LOOKS_UNTIL_GONE):
            reason, text = ("KubeletArrived", ARRIVED) if found else ("KubeletGone", GONE)
            tell(Event(plane="daemon", reason=reason, message=text.format(sign=found or sign), is_warning=True))
            changed(found)
            sign = found

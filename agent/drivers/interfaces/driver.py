# SPDX-License-Identifier: Apache-2.0
"""The addresses of this host, now and after every change.

One route netlink socket of the network namespace it is opened in. Changes that come close together are reported once.
pyroute2 takes 8 MiB, so whoever may do without addresses imports this late.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from ipaddress import ip_address

import structlog
from pyroute2 import AsyncIPRoute
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR

log = structlog.get_logger(plane="services")

SETTLE_S = 0.1
# A missed message is made good by looking again.
LOOK_AGAIN_S = 60.0
RETRY_S = 5.0


class Interfaces:
    async def now(self) -> tuple[bytes, ...]:
        """All addresses, packed and sorted; none while they cannot be read."""
        return await _addresses() or ()

    async def snapshots(self) -> AsyncGenerator[tuple[bytes, ...], None]:
        """All addresses, packed and sorted; again when they differ from the last time."""
        last: tuple[bytes, ...] | None = None
        while True:
            with _listening() as changed:
                addresses = await _addresses()
                if addresses is not None and addresses != last:
                    last = addresses
                    yield addresses
                await _wait(changed, LOOK_AGAIN_S if addresses is not None else RETRY_S)


def _listening() -> socket.socket:
    """Hears of changes from now on; opened before each look, so that none falls between."""
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    listener.setblocking(False)
    listener.bind((0, RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))
    return listener


async def _wait(changed: socket.socket, longest_s: float) -> None:
    try:
        async with asyncio.timeout(longest_s):
            await asyncio.get_running_loop().sock_recv(changed, 65536)
    except (TimeoutError, OSError):
        return
    await asyncio.sleep(SETTLE_S)


async def _addresses() -> tuple[bytes, ...] | None:
    """None: they could not be read this time."""
    try:
        async with AsyncIPRoute() as route:
            # On a link between two points IFA_ADDRESS is the other end.
            found = [message.get("local") or message.get("address") async for message in await route.addr("dump")]
    except (OSError, NetlinkError) as error:
        log.warning("interface_addresses_unreadable", error=str(error), retry_s=RETRY_S)
        return None
    return tuple(sorted({ip_address(text).packed for text in found if text}))

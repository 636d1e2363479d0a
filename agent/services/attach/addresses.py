# SPDX-License-Identifier: Apache-2.0
"""Addresses of this host that Services depend on: its own, and those that no Service may take.

The latter are name servers and the API server.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent.drivers.interfaces.default_route import default_addresses
from agent.drivers.interfaces.resolvers import resolvers
from agent.model.clock import Clock
from agent.services.objects.addresses import address_of
from agent.services.run.intake import API_SERVER, ServiceInputs

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

FindKube = Callable[[], "KubeClient | None"]
LOOK_S = 60.0
ADDRESSES_S = 10.0


async def addresses_now() -> tuple[bytes, ...]:
    from agent.drivers.interfaces.driver import Interfaces

    return await Interfaces().now()


async def follow_addresses(intake: ServiceInputs, kube: FindKube | None, clock: Clock) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_follow_default_addresses(intake, clock, is_alone=kube is None))
        group.create_task(follow_reserved(intake, kube, clock))


async def _follow_default_addresses(intake: ServiceInputs, clock: Clock, *, is_alone: bool) -> None:
    """A node without a cluster has no Node object that names its addresses."""
    while is_alone:
        intake.set_default_addresses(map(address_of, default_addresses()))
        await clock.sleep(ADDRESSES_S)


async def follow_interfaces(intake: ServiceInputs, needed: asyncio.Event) -> None:
    await needed.wait()
    from agent.drivers.interfaces.driver import Interfaces

    async for packed in Interfaces().snapshots():
        intake.set_interfaces(address_of(one) for one in packed)


async def follow_reserved(intake: ServiceInputs, kube: FindKube | None, clock: Clock) -> None:
    while True:
        client = kube() if kube is not None else None
        intake.set_reserved(await reserved_now(client.servers if client is not None else ()))
        await clock.sleep(LOOK_S)


async def reserved_now(servers: Iterable[str]) -> Mapping[bytes, str]:
    found = dict.fromkeys(await asyncio.to_thread(lambda: tuple(resolvers())), "a name server of this node")
    for one in servers:
        found |= dict.fromkeys(await _addresses(one), API_SERVER)
    return found


async def _addresses(server: str) -> set[bytes]:
    """Of the URL's host; none while its name cannot be looked up."""
    host = urlsplit(server).hostname or ""
    with suppress(ValueError):
        return {ip_address(host).packed} if host else set()
    with suppress(OSError):
        rows = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return {ip_address(str(row[4][0]).partition("%")[0]).packed for row in rows}
    return set()

# SPDX-License-Identifier: Apache-2.0
"""Tells the services plane of addresses that no Service may take: name servers, the API server (SVN-51)."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent.drivers.interfaces.resolvers import resolvers
from agent.model.clock import Clock
from agent.services.run.intake import API_SERVER, Intake

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

LOOK_S = 60.0


async def follow_reserved(intake: Intake, kube: "Callable[[], KubeClient | None] | None", clock: Clock) -> None:
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

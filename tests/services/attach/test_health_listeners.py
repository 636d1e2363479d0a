# SPDX-License-Identifier: Apache-2.0
"""Health check ports of Services: opened, closed, moved, and missed where somebody else has them."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agent.api.http import Page
from agent.model.event import Event
from agent.model.services.service import ServiceKey
from agent.services.attach.health import HealthListeners

WITHIN_S = 40.0
HERE = "127.0.0.1"
WEB, SHOP = ServiceKey("a", "web"), ServiceKey("a", "shop")


@asynccontextmanager
async def listening(events: list[Event]) -> AsyncIterator[HealthListeners]:
    listeners = HealthListeners(lambda _family, key: Page(200, str(key).encode(), "text/plain"), events.append)
    running = asyncio.create_task(listeners.run())
    try:
        yield listeners
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ask(port: int) -> str:
    try:
        reader, writer = await asyncio.open_connection(HERE, port)
    except OSError:
        return ""
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.decode().rpartition("\n")[2]


async def until(port: int, holds: Callable[[str], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds(await ask(port)):
            await asyncio.sleep(0.01)


async def test_ports_open_close_and_move_with_their_services(free_port: int) -> None:
    """HL-5, HL-6: a port that moves is closed first."""
    async with listening([]) as listeners:
        listeners.want({("IPv4", HERE, free_port): WEB})
        await until(free_port, lambda answer: answer == "a/web")
        listeners.want({("IPv4", HERE, free_port): SHOP})
        await until(free_port, lambda answer: answer == "a/shop")
        listeners.want({})
        await until(free_port, lambda answer: answer == "")


async def test_a_port_that_somebody_has_is_told_once_and_tried_at_the_next_sync(free_port: int) -> None:
    """HL-5: the Service is told; others are served all the while."""
    events: list[Event] = []
    with socket.create_server((HERE, 0)) as other:
        taken = other.getsockname()[1]
        async with listening(events) as listeners:
            wanted = {("IPv4", HERE, taken): WEB, ("IPv4", HERE, free_port): SHOP}
            listeners.want(wanted)
            await until(free_port, lambda answer: answer == "a/shop")
            listeners.want(wanted)
            await asyncio.sleep(0.05)
            told = [(one.reason, one.object_name, one.is_warning) for one in events]
            other.close()
            listeners.want(wanted)
            await until(taken, lambda answer: answer == "a/web")

    assert told == [("FailedToStartServiceHealthcheck", "web", True)]


async def test_they_are_open_again_after_a_restart_of_their_task(free_port: int) -> None:
    """HL-5: a unit of the task tree may be run again."""
    listeners = HealthListeners(lambda _family, key: Page(200, str(key).encode(), "text/plain"), lambda _event: None)
    listeners.want({("IPv4", HERE, free_port): WEB})
    for _ in range(2):
        running = asyncio.create_task(listeners.run())
        await until(free_port, lambda answer: answer == "a/web")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(free_port, lambda answer: answer == "")

# SPDX-License-Identifier: Apache-2.0
"""Listeners on the health check ports of Services (HL-4 to HL-6).

A port that cannot be bound is reported and tried again after the next sync; the others serve on.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

import structlog

from agent.api.http import HttpServer, Page, listening
from agent.api.http_connections import Connections
from agent.model.event import Event
from agent.model.nft_table import Family
from agent.model.service import ServiceKey

log = structlog.get_logger(plane="services")

Spot = tuple[Family, str, int]
"""Family, address, port."""


class HealthListeners:
    """`answer` makes the page for a Service; `tell` hears of ports that cannot be had."""

    def __init__(self, answer: Callable[[Family, ServiceKey], Page], tell: Callable[[Event], None]) -> None:
        self._answer = answer
        self._tell = tell
        self._wanted: Mapping[Spot, ServiceKey] = {}
        self._open: dict[Spot, tuple[ServiceKey, Connections]] = {}
        self._failed: dict[Spot, str] = {}
        self._changed = asyncio.Event()

    def want(self, spots: Mapping[Spot, ServiceKey]) -> None:
        """These and no others; also the time to try again what failed."""
        if spots != self._wanted or self._failed:
            self._wanted = dict(spots)
            self._changed.set()

    async def run(self) -> None:
        """For ever; at the end all are closed."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._reconcile()
        finally:
            for _, server in self._open.values():
                server.close()
            # Who runs this again has to open them all.
            self._open.clear()
            self._changed.set()

    def _reconcile(self) -> None:
        """First close, then open: a port may have moved to another Service."""
        for spot in [spot for spot, (key, _) in self._open.items() if self._wanted.get(spot) != key]:
            self._open.pop(spot)[1].close()
        self._failed = {spot: text for spot, text in self._failed.items() if spot in self._wanted}
        for spot, key in self._wanted.items():
            if spot not in self._open:
                self._listen(spot, key)

    def _listen(self, spot: Spot, key: ServiceKey) -> None:
        family, address, port = spot

        def page(_query: object, _headers: object) -> Page:
            return self._answer(family, key)

        try:
            kind = socket.AF_INET if family == "IPv4" else socket.AF_INET6
            listener = listening(kind, address, port, takes_both=False)
            server = Connections(listener, HttpServer("", {}, page).answer)
        except OSError as error:
            self._refused(spot, key, os.strerror(error.errno) if error.errno else str(error))
            return
        self._failed.pop(spot, None)
        self._open[spot] = (key, server)

    def _refused(self, spot: Spot, key: ServiceKey, reason: str) -> None:
        if self._failed.get(spot) == reason:
            return
        self._failed[spot] = reason
        text = f"health check port {spot[2]} on {spot[1]} cannot be listened on: {reason}; tried again after each sync"
        log.warning("service_health_port_failed", service=str(key), address=spot[1], port=spot[2], error=reason)
        self._tell(
            Event(
                is_warning=True,
                reason="FailedToStartServiceHealthcheck",
                message=text,
                plane="services",
                namespace=key.namespace,
                object_name=key.name,
            )
        )

# SPDX-License-Identifier: Apache-2.0
"""The services plane's health on the network: kube-proxy's endpoint and the ports of single Services.

A port that cannot be bound is reported and tried again after the next sync; the others serve on.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping

import structlog

from agent.api.http import Handler, HttpServer, Page, listening
from agent.api.http_connections import Connections
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.model.event import Event
from agent.model.services.nft_table import Family
from agent.model.services.service import ServiceKey
from agent.services.routes.frontends import HealthPort
from agent.services.ruleset import SyncReport
from agent.services.run.plane import ServicesPlane
from agent.services.view.health import HealthAnswer, healthz, is_eligible, livez, service_health

log = structlog.get_logger(plane="services")

ANYWHERE: Mapping[Family, str] = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104  # what load balancers probe
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


class ServiceHealth:
    def __init__(
        self,
        plane: ServicesPlane,
        configuration: Callable[[], Configuration],
        tell: Callable[[Event], None],
        *,
        has_node_object: bool,
    ) -> None:
        self.listeners = HealthListeners(self._service_page, tell)
        self.is_draining = False
        self._plane = plane
        self._configuration = configuration
        self._has_node_object = has_node_object

    async def drain(self, clock: SystemClock) -> None:
        """Load balancers look elsewhere while the rules still stand."""
        self.is_draining = True
        seconds = self._configuration().services.drain_seconds
        if seconds:
            log.info("services_draining", seconds=seconds, v=0)
            await clock.sleep(seconds)

    def follow(self, _family: Family, _report: SyncReport) -> None:
        self.listeners.want(dict(self._spots()))

    def _spots(self) -> list[tuple[Spot, ServiceKey]]:
        found: list[tuple[Spot, ServiceKey]] = []
        for family, sync in self._plane.families.items():
            node = sync.facts.node
            addresses = [ANYWHERE[family]] if node.is_open_everywhere else [a.text for a in node.node_port_addresses]
            for key, one in sync.desired.health_ports.items():
                found += [((family, address, one.port), key) for address in addresses]
        return found

    def pages(self) -> Mapping[str, Handler]:
        return {"/healthz": lambda _query, _headers: self._healthz(), "/livez": lambda _query, _headers: self._livez()}

    def _healthz(self) -> Page:
        services = self._configuration().services
        answer = healthz(
            self._plane.health(), self._plane.now_s, services.sync_period, is_node_eligible=self._is_eligible()
        )
        self._plane.measures.answered("healthz", answer.status)
        return _page(answer)

    def _livez(self) -> Page:
        answer = livez(self._plane.health(), self._plane.now_s, self._configuration().services.sync_period)
        self._plane.measures.answered("livez", answer.status)
        return _page(answer)

    def _is_eligible(self) -> bool:
        """Until the node and the Services have arrived, what an earlier process left decides."""
        if not self._plane.intake.arrived.is_set():
            return self._plane.stands and not self.is_draining
        return is_eligible(
            self._plane.intake.sight,
            self._configuration().services.drain_taints,
            has_node_object=self._has_node_object,
            is_draining=self.is_draining,
        )

    def _service_page(self, family: Family, key: ServiceKey) -> Page:
        port = self._plane.families[family].desired.health_ports.get(key, HealthPort(0, 0))
        period_s = self._configuration().services.sync_period
        is_healthy = all(one.is_healthy(self._plane.now_s, period_s) for one in self._plane.health().values())
        return _page(service_health(key, port, is_proxy_healthy=is_healthy and not self.is_draining))


def _page(answer: HealthAnswer) -> Page:
    return Page(answer.status, answer.body, "application/json", answer.headers)

# SPDX-License-Identifier: Apache-2.0
"""The services plane's health on the network: kube-proxy's endpoint and the ports of single Services (HL-1 to HL-9)."""

from collections.abc import Callable, Mapping

import structlog

from agent.api.http import Handler, Page
from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.model.event import Event
from agent.model.nft_table import Family
from agent.model.service import ServiceKey
from agent.services.attach.health_listeners import HealthListeners, Spot
from agent.services.routes.frontends import HealthPort
from agent.services.run.family_sync import SyncReport
from agent.services.run.plane import ServicesPlane
from agent.services.view.health import Answer, healthz, is_eligible, livez, service_health

log = structlog.get_logger(plane="services")

ANYWHERE: Mapping[Family, str] = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104  # what load balancers probe


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
        """HL-9: load balancers look elsewhere while the rules still stand."""
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
        """Until the node and the Services have arrived, what an earlier process left decides (FS-4)."""
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


def _page(answer: Answer) -> Page:
    return Page(answer.status, answer.body, "application/json", answer.headers)

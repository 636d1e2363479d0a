# SPDX-License-Identifier: Apache-2.0
"""Which TCP connections to a Service go to an endpoint that is gone, and when they may be ended.

An endpoint is gone once no slice of the Service has it, in any condition: one that terminates, is not ready or is not
chosen keeps its connections. Where the Service says so, they are ended when it has been gone for the Service's time. A
Service or port that goes leaves its connections to themselves: no rule of ours would answer its address with a reset,
and a list that lost its Services must not end what works.

Never: lists connections or ends them. Owns: the endpoints of Services that want this, and of no others.
"""

from collections.abc import Callable

import msgspec

from agent.model.services.flow import Flow, FlowTarget
from agent.model.services.service import NEVER, PortKey, ServiceKey
from agent.services.routes.frontends import PortPlan, ServicePlan
from agent.services.routes.stale_flows import FlowOwner

EndpointsOf = Callable[[PortKey], frozenset[bytes]]
"""Packed address and port of all endpoints of a port, in any condition."""


class WatchedPort(msgspec.Struct):
    """A port whose connections are to end. Way in without an address: a node port."""

    targets: frozenset[FlowTarget]
    wait_s: int
    endpoints: frozenset[bytes]
    waiting: dict[bytes, float]
    """Endpoints that are gone, and until when their connections are left."""
    unseen_until_s: float
    """Until then an endpoint that is not known may have gone just now."""

    @property
    def due_s(self) -> float:
        return max(self.unseen_until_s, min(self.waiting.values(), default=0.0))

    def kept(self, now_s: float) -> frozenset[bytes]:
        return self.endpoints.union(one for one, until_s in self.waiting.items() if until_s > now_s)


class EndingCheck(msgspec.Struct, frozen=True):
    """Connections to look at: those to a port's ways in that none of `kept` answers."""

    targets: frozenset[FlowTarget]
    kept: frozenset[bytes]
    owner: FlowOwner


class GoneEndpoints:
    """Of one family."""

    def __init__(self) -> None:
        self._ports: dict[ServiceKey, dict[PortKey, WatchedPort]] = {}
        self._due: dict[FlowOwner, float] = {}

    def look(
        self, key: ServiceKey, plan: ServicePlan | None, default_s: int, endpoints: EndpointsOf, now_s: float
    ) -> None:
        """This was programmed. `default_s` counts where the Service itself says nothing."""
        own = plan.options.ends_after_s if plan is not None else None
        wait_s = default_s if own is None else own
        had = self._ports.pop(key, {})
        if plan is None or wait_s == NEVER:
            return
        ports: dict[PortKey, WatchedPort] = {}
        for port in plan.ports:
            if port.port.protocol == "TCP":
                now = endpoints(port.port.key)
                ports[port.port.key] = _watched(had.get(port.port.key), _targets(port), wait_s, now, now_s)
        if ports:
            self._ports[key] = ports
        for name, one in ports.items():
            was = had.get(name)
            if one.waiting or was is None or was.unseen_until_s > now_s:
                self._due[FlowOwner(key, name)] = one.due_s

    @property
    def due_s(self) -> float:
        """When to look next; inf: nothing waits."""
        return min(self._due.values(), default=float("inf"))

    def take(self, now_s: float) -> list[EndingCheck]:
        """What is due now."""
        found: list[EndingCheck] = []
        for owner in [one for one, due_s in self._due.items() if due_s <= now_s]:
            del self._due[owner]
            port = self._ports.get(owner.service, {}).get(owner.port)
            if port is None:
                continue
            found.append(EndingCheck(port.targets, port.kept(now_s), owner))
            port.waiting = {one: until_s for one, until_s in port.waiting.items() if until_s > now_s}
            if port.waiting:
                self._due[owner] = port.due_s
        return found

    def give_back(self, check: EndingCheck, at_s: float) -> None:
        """It was not done, and is to be tried again then."""
        if check.owner.port in self._ports.get(check.owner.service, {}):
            self._due[check.owner] = min(at_s, self._due.get(check.owner, at_s))

    def may_end(self, flow: Flow, check: EndingCheck) -> bool:
        """Whether that still holds: an endpoint may have come back meanwhile, and the Service may be gone."""
        if flow.is_over or flow.is_untranslated:
            return False
        port = self._ports.get(check.owner.service, {}).get(check.owner.port)
        return port is not None and flow.answerer not in port.endpoints and flow.answerer not in port.waiting


def checks_of(plan: ServicePlan, endpoints: EndpointsOf) -> list[EndingCheck]:
    """Of all TCP ports, whatever the Service says."""
    ports = [one for one in plan.ports if one.port.protocol == "TCP"]
    return [EndingCheck(_targets(one), endpoints(one.port.key), FlowOwner(plan.key, one.port.key)) for one in ports]


def _watched(
    was: WatchedPort | None, targets: frozenset[FlowTarget], wait_s: int, endpoints: frozenset[bytes], now_s: float
) -> WatchedPort:
    if was is None:
        return WatchedPort(targets, wait_s, endpoints, {}, now_s + wait_s)
    waiting = {one: until_s for one, until_s in was.waiting.items() if one not in endpoints}
    waiting.update(dict.fromkeys(was.endpoints - endpoints, now_s + wait_s))
    return WatchedPort(targets, wait_s, endpoints, waiting, was.unseen_until_s)


def _targets(port: PortPlan) -> frozenset[FlowTarget]:
    return frozenset(
        FlowTarget(one.ip.packed if one.ip is not None else b"", one.protocol, one.port) for one in port.frontends
    )

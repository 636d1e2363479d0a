# SPDX-License-Identifier: Apache-2.0
"""Which flows and connections go to an endpoint that serves no more, and when they may be ended.

A flow without a connection that others answer than the serving endpoints of the port it was sent to is stale. Policies
and hints do not matter here, so that a flow survives their change.

Of TCP an endpoint is gone once no slice of the Service has it, in any condition: one that terminates, is not ready or
is not chosen keeps its connections. Where the Service says so, they are ended when it has been gone for the Service's
time. A Service or port that goes leaves its connections to themselves: no rule of ours would answer its address with a
reset, and a list that lost its Services must not end what works.
Never: lists flows or connections, or ends them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from agent.model.services.flow import UDP_ALONE, Flow, FlowTarget
from agent.model.services.service import NEVER, Backend, PortKey, Protocol, ServiceKey
from agent.services.routes.frontends import Claim, PortPlan, ServicePlan

EndpointsOf = Callable[[PortKey], frozenset[bytes]]
"""Packed address and port of all endpoints of a port, in any condition."""


class FlowOwner(NamedTuple):
    service: ServiceKey
    port: PortKey


class FlowCheck(NamedTuple):
    """What to look at: Services whose flows may be stale, and ways in that are gone."""

    services: frozenset[ServiceKey]
    gone: frozenset[FlowTarget]


class FlowIndex:
    """Of one family. A way in without an address is a node port."""

    def __init__(self, protocols: Collection[Protocol] = UDP_ALONE) -> None:
        self._protocols = frozenset(protocols)
        self._owners: dict[FlowTarget, FlowOwner] = {}
        self._targets: dict[ServiceKey, tuple[FlowTarget, ...]] = {}
        self._due: set[ServiceKey] = set()
        self._gone: set[FlowTarget] = set()

    def follow(
        self,
        changed: Mapping[ServiceKey, ServicePlan | None],
        gone: Iterable[Claim] = (),
        looked: Iterable[ServiceKey] = (),
    ) -> bool:
        """These were programmed, these ways in are gone, and of these Services the endpoints may have changed. Returns
        whether there may be stale flows."""
        self._gone.update(FlowTarget(address, name, port) for address, name, port in gone if name in self._protocols)
        for key, plan in changed.items():
            for target in self._targets.pop(key, ()):
                if target in self._owners and self._owners[target].service == key:
                    del self._owners[target]
                    self._gone.add(target)
            found = dict(self._of(plan)) if plan is not None else {}
            for target, port in found.items():
                self._owners[target] = FlowOwner(key, port)
            if found:
                self._targets[key] = tuple(found)
        self._gone.difference_update(self._owners)
        self._due.update(key for keys in (changed, looked) for key in keys if key in self._targets)
        return self.is_due

    @property
    def is_due(self) -> bool:
        return bool(self._due or self._gone)

    def _of(self, plan: ServicePlan) -> Iterator[tuple[FlowTarget, PortKey]]:
        for port in plan.ports:
            if port.port.protocol in self._protocols:
                for frontend in port.frontends:
                    ip = frontend.ip.packed if frontend.ip is not None else b""
                    yield FlowTarget(ip, frontend.protocol, frontend.port), port.port.key

    def take(self) -> FlowCheck:
        check = FlowCheck(frozenset(self._due), frozenset(self._gone))
        self._due, self._gone = set(), set()
        return check

    def owners(self, check: FlowCheck, node_addresses: Collection[bytes]) -> dict[FlowTarget, FlowOwner | None]:
        """Where these flows were sent, and whose that is now; None: flows to it are stale. A node port counts only on
        an address of this node."""
        found: dict[FlowTarget, FlowOwner | None] = {}
        for target in (*check.gone, *(target for key in check.services for target in self._targets.get(key, ()))):
            owner = self._owners.get(target)
            if target.address:
                found[target] = owner
                continue
            for address in node_addresses:
                # An external IP may be an address of this node, and comes before its node ports.
                if (exact := target._replace(address=address)) not in self._owners:
                    found.setdefault(exact, owner)
        return found

    def give_back(self, check: FlowCheck) -> None:
        self._due |= check.services & self._targets.keys()
        self._gone |= check.gone - self._owners.keys()


def serving_endpoints(backends: Iterable[Backend]) -> frozenset[bytes]:
    """Addresses that may answer flows."""
    return frozenset(one.data[:-2] for one in backends if one.is_serving or one.is_ready)


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

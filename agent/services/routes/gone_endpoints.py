# SPDX-License-Identifier: Apache-2.0
"""Which TCP connections to a Service go to an endpoint that is gone, and when they may be ended.

An endpoint is gone once no slice of the Service has it, in any condition: one that terminates, is not ready or is not
chosen keeps its connections. Where the Service says so, they are ended when it has been gone for the Service's time. A
Service or port that goes takes all its endpoints with it, with the time it had last; what an earlier process knew of
such ways in is handed in at the start.

Never: lists connections or ends them. Owns: the endpoints of Services that want this, and of no others.
Source of behaviour: SVN-1, SVN-2, SVN-5, SVN-6.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agent.model.flow import Flow, FlowTarget
from agent.model.service import NEVER, PortKey, ServiceKey
from agent.services.routes.claims import Claim
from agent.services.routes.frontends import PortPlan, ServicePlan
from agent.services.routes.stale_flows import FlowOwner

EndpointsOf = Callable[[PortKey], frozenset[bytes]]
"""Packed address and port of all endpoints of a port, in any condition."""
OwnerOf = Callable[[Claim], ServiceKey | None]


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
    """Connections to look at: those to a port's ways in that none of `kept` answers; without an owner, all of them."""

    targets: frozenset[FlowTarget]
    kept: frozenset[bytes] = frozenset()
    owner: FlowOwner | None = None


class GoneEndpoints:
    """Of one family."""

    def __init__(self) -> None:
        self._ports: dict[ServiceKey, dict[PortKey, WatchedPort]] = {}
        self._due: dict[FlowOwner, float] = {}
        self._left: dict[FlowTarget, float] = {}
        """Ways in that are gone, and until when their connections are left."""
        self.kept: dict[FlowTarget, int] = {}
        """Seconds, by every way in that says so itself: what the next process has to know."""
        self.changes = 0
        """Of `kept`."""

    def look(
        self, key: ServiceKey, plan: ServicePlan | None, default_s: int, endpoints: EndpointsOf, now_s: float
    ) -> None:
        """This was programmed. `default_s` counts where the Service itself says nothing."""
        own = plan.options.ends_after_s if plan is not None else None
        wait_s = default_s if own is None else own
        had = self._ports.pop(key, {})
        if plan is not None and wait_s == NEVER:
            if had:
                self._keep(had, {})
            return
        ports: dict[PortKey, WatchedPort] = {}
        for port in plan.ports if plan is not None else ():
            if port.port.protocol == "TCP":
                now = endpoints(port.port.key)
                ports[port.port.key] = _watched(had.get(port.port.key), _targets(port), wait_s, now, now_s)
        if ports:
            self._ports[key] = ports
        for name, one in ports.items():
            was = had.get(name)
            if one.waiting or was is None or was.unseen_until_s > now_s:
                self._due[FlowOwner(key, name)] = one.due_s
        self._leave(had, ports, now_s)
        self._keep(had, ports if own is not None else {})

    def _leave(self, had: Mapping[PortKey, WatchedPort], has: Mapping[PortKey, WatchedPort], now_s: float) -> None:
        """Ways in that no port of the Service has any more."""
        taken = {target for one in has.values() for target in one.targets}
        for one in had.values():
            for target in one.targets - taken:
                self._left[target] = now_s + one.wait_s
        for target in taken:
            self._left.pop(target, None)

    def _keep(self, had: Mapping[PortKey, WatchedPort], has: Mapping[PortKey, WatchedPort]) -> None:
        before = {target for one in had.values() for target in one.targets if target in self.kept}
        wanted = {target: one.wait_s for one in has.values() for target in one.targets}
        for target in before - wanted.keys() - self._left.keys():
            del self.kept[target]
            self.changes += 1
        for target, wait_s in wanted.items():
            if self.kept.get(target) != wait_s:
                self.kept[target] = wait_s
                self.changes += 1

    def left(self, targets: Iterable[tuple[FlowTarget, int]], now_s: float) -> None:
        """Ways in that an earlier process had, and that are gone or another's now."""
        for target, wait_s in targets:
            if wait_s != NEVER:
                self._left.setdefault(target, now_s + wait_s)
                self.changes += self.kept.get(target) != wait_s
                self.kept[target] = wait_s

    @property
    def due_s(self) -> float:
        """When to look next; inf: nothing waits."""
        return min([*self._due.values(), *self._left.values()], default=float("inf"))

    def take(self, owner_of: OwnerOf, now_s: float) -> list[EndingCheck]:
        """What is due now. A way in that somebody has by now is left to that one."""
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
        gone = [target for target, due_s in self._left.items() if due_s <= now_s]
        for target in gone:
            del self._left[target]
        free = frozenset(target for target in gone if owner_of(target) is None)
        self._forget(target for target in gone if target not in free)
        return [*found, EndingCheck(free)] if free else found

    def done(self, check: EndingCheck) -> None:
        """Its connections are ended."""
        if check.owner is None:
            self._forget(check.targets - self._left.keys())

    def _forget(self, targets: Iterable[FlowTarget]) -> None:
        """No process has to know of these, unless a Service still says something about them."""
        for target in targets:
            if not any(target in one.targets for ports in self._ports.values() for one in ports.values()):
                self.changes += self.kept.pop(target, None) is not None

    def give_back(self, check: EndingCheck, at_s: float) -> None:
        """It was not done, and is to be tried again then."""
        if check.owner is None:
            self._left.update((target, at_s) for target in check.targets)
        elif check.owner.port in self._ports.get(check.owner.service, {}):
            self._due[check.owner] = min(at_s, self._due.get(check.owner, at_s))

    def may_end(self, flow: Flow, check: EndingCheck, owner_of: OwnerOf) -> bool:
        """Whether that still holds: an endpoint, or a whole Service, may have come back meanwhile."""
        if flow.is_over or flow.is_untranslated:
            return False
        if check.owner is None:
            return all(owner_of(target) is None for target in check.targets if _leads_to(target, flow))
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


def _leads_to(target: FlowTarget, flow: Flow) -> bool:
    return target.port == flow.destination_port and target.address in (b"", flow.destination)

# SPDX-License-Identifier: Apache-2.0
"""Where to look for flows without connections that still go to an endpoint that no longer serves.

A flow that others answer than the serving endpoints of the port it was sent to is stale. Policies and hints do not
matter here, so that a flow survives their change.
Never: lists or deletes flows.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.model.services.flow import UDP_ALONE, FlowTarget
from agent.model.services.service import Backend, PortKey, Protocol, ServiceKey
from agent.services.routes.claims import Claim
from agent.services.routes.frontends import ServicePlan


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

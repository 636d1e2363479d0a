# SPDX-License-Identifier: Apache-2.0
"""Finds flows without connections that still go to an endpoint that no longer serves.

Owns: which addresses and ports of Services are looked at, kept up to date by what changed; and whether a flow is stale:
the address that answers it is not a serving endpoint of the port it was sent to. Policies and hints do not matter here,
so that a flow survives their change.
Never: lists or deletes flows.
Source of behaviour: CT-1 to CT-6, CT-11.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from agent.model.flow import UDP_ALONE, Flow
from agent.model.service import Backend, PortKey, Protocol, ServiceKey
from agent.services.routes.claims import Claim
from agent.services.routes.frontends import Frontend, PortPlan, ServicePlan

__all__ = ["FlowIndex", "Target"]

Backends = Callable[[ServiceKey, PortKey], Iterable[Backend]]


class Target(NamedTuple):
    """Where a flow was sent. No address: a node port."""

    address: bytes
    protocol: Protocol
    port: int


class Owner(NamedTuple):
    """Whose it is."""

    service: ServiceKey
    port: PortKey


class FlowIndex:
    """Of one family. Changed by `follow` alone."""

    def __init__(self, protocols: Collection[Protocol] = UDP_ALONE) -> None:
        self._protocols = frozenset(protocols)
        self._owners: dict[Target, Owner] = {}
        self._targets: dict[ServiceKey, tuple[Target, ...]] = {}
        self._gone: set[Target] = set()

    def follow(self, changed: Mapping[ServiceKey, ServicePlan | None], gone: Iterable[Claim] = ()) -> bool:
        """These were programmed, and these ways in are gone. Whether any of them may have left flows behind."""
        left = {Target(address, name, port) for address, name, port in gone if name in self._protocols}
        is_concerned = bool(left)
        self._gone |= left
        for key, plan in changed.items():
            before = self._targets.pop(key, ())
            for target in before:
                if self._owners.get(target, Owner(key, PortKey("", "UDP"))).service == key:
                    self._owners.pop(target, None)
                    self._gone.add(target)
            found = tuple(self._of(plan)) if plan is not None else ()
            for target, port in found:
                self._owners[target] = Owner(key, port)
            if found:
                self._targets[key] = tuple(target for target, _ in found)
            is_concerned = is_concerned or bool(before or found)
        self._gone.difference_update(self._owners)
        return is_concerned

    def _of(self, plan: ServicePlan) -> Iterator[tuple[Target, PortKey]]:
        for port in plan.ports:
            if port.port.protocol in self._protocols:
                for frontend in port.frontends:
                    yield _target(frontend), _port_key(port)

    def knows(self, key: ServiceKey) -> bool:
        """Whether the Service has ports whose flows may go stale."""
        return key in self._targets

    @property
    def gone(self) -> frozenset[Target]:
        """Ways in of Services that went; flows to them are stale."""
        return frozenset(self._gone)

    def stale(self, flows: Iterable[Flow], backends: Backends, node_addresses: Collection[bytes]) -> list[Flow]:
        """Those to delete. A node port counts only on an address of this node (CT-5)."""
        serving: dict[Owner, frozenset[bytes]] = {}
        found = []
        for flow in flows:
            target = self._target_of(flow, node_addresses)
            owner = self._owners.get(target) if target is not None else None
            if owner is None:
                if target is not None and target in self._gone:
                    found.append(flow)
                continue
            if owner not in serving:
                serving[owner] = frozenset(one.data[:-2] for one in backends(*owner) if one.is_serving or one.is_ready)
            if flow.reply_source + flow.reply_port.to_bytes(2, "big") not in serving[owner]:
                found.append(flow)
        return found

    def _target_of(self, flow: Flow, node_addresses: Collection[bytes]) -> Target | None:
        target = Target(flow.destination, flow.protocol, flow.destination_port)
        if target in self._owners or target in self._gone:
            return target
        if flow.destination in node_addresses:
            return Target(b"", flow.protocol, flow.destination_port)
        return None

    def forget_gone(self, gone: frozenset[Target]) -> None:
        """The flows to these are deleted."""
        self._gone -= gone


def _target(frontend: Frontend) -> Target:
    return Target(frontend.ip.packed if frontend.ip is not None else b"", frontend.protocol, frontend.port)


def _port_key(port: PortPlan) -> PortKey:
    return port.port.key

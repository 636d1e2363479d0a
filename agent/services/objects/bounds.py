# SPDX-License-Identifier: Apache-2.0
"""Limits how much of a node one Service may take, and decides which Services stay out if all are too much (SY-12).

The smallest get room first, so that large ones never displace small ones. Maps of their own for clients go to the
oldest first, so that no newcomer takes one away (SVN-101); so do tables of slots (SVN-41).
"""

from typing import NamedTuple

from agent.model.finding import Finding
from agent.model.service import ServiceFacts, ServiceKey

MOST_OF_SERVICE = 131_072
"""Endpoints of one Service in a family, by port and way in: the most of one transaction, as no Service is divided."""
MOST_OF_NODE = 262_144
"""Endpoints of all Services in a family, counted for each port: so many are kept in memory, 0.3 to 0.7 KiB each."""


NO_HASHING = -1
"""In place of the most Services: the backend cannot."""


class Size(NamedTuple):
    """Of one Service. `pairs`: endpoints, counted for each port; `elements`: for each way in as well."""

    pairs: int
    elements: int


class Room:
    def __init__(self) -> None:
        self._pairs: dict[ServiceKey, int] = {}
        self._total = 0
        self._out: frozenset[ServiceKey] = frozenset()
        self._too_large: dict[ServiceKey, int] = {}

    def put(self, key: ServiceKey, size: Size) -> None:
        self.drop(key)
        if size.elements > MOST_OF_SERVICE:
            self._too_large[key] = size.elements
        elif size.pairs:
            self._pairs[key] = size.pairs
            self._total += size.pairs

    def drop(self, key: ServiceKey) -> None:
        self._too_large.pop(key, None)
        self._total -= self._pairs.pop(key, 0)

    def pairs(self, key: ServiceKey) -> int:
        return self._pairs.get(key, 0)

    def settle(self) -> frozenset[ServiceKey]:
        before = self._out
        self._out = self._without_room() if self._total > MOST_OF_NODE else frozenset()
        return before ^ self._out

    def _without_room(self) -> frozenset[ServiceKey]:
        left = MOST_OF_NODE
        ordered = sorted((pairs, key) for key, pairs in self._pairs.items())
        for at, (pairs, _) in enumerate(ordered):
            left -= pairs
            if left < 0:
                return frozenset(key for _, key in ordered[at:])
        return frozenset()

    def refusal(self, key: ServiceKey) -> Finding | None:
        if key in self._too_large:
            had, most, what = self._too_large[key], MOST_OF_SERVICE, "by port and address of the Service"
            text = f"{had} endpoints {what}; expected at most {most}; divide the Service; it is not programmed"
            return Finding(f"Service {key}", "endpoints", text)
        if key in self._out:
            text = (
                f"{self._pairs[key]} endpoints by port, and all Services of this node have {self._total}; expected at "
                f"most {MOST_OF_NODE}, given to the smallest first; this one is not programmed until there is room"
            )
            return Finding(f"Service {key}", "endpoints", text)
        return None


class HashTables:
    """Which Services of one family have their endpoints in tables of many slots (SVN-41)."""

    def __init__(self) -> None:
        self.granted: frozenset[ServiceKey] = frozenset()
        self._wanted: dict[ServiceKey, str] = {}
        self._settled: tuple[int, dict[ServiceKey, str]] = (0, {})

    def put(self, service: ServiceFacts) -> None:
        if service.options.hashing:
            self._wanted[service.key] = service.created
        else:
            self.drop(service.key)

    def drop(self, key: ServiceKey) -> None:
        self._wanted.pop(key, None)

    def settle(self, most: int) -> frozenset[ServiceKey]:
        """After any number of changes: who got tables by them, or lost them."""
        if self._settled == (most, self._wanted):
            return frozenset()
        before = self.granted
        ordered = sorted((created, key) for key, created in self._wanted.items())
        self.granted = frozenset(key for _, key in ordered[: max(0, most)])
        self._settled = (most, dict(self._wanted))
        return before ^ self.granted

    def refusals(self, key: ServiceKey) -> tuple[Finding, ...]:
        """Why it has none; empty: it has, or wants none."""
        if key not in self._wanted or key in self.granted:
            return ()
        most = self._settled[0]
        text = f"the {most} Services of services.maglevMax are others, which are older; endpoints are drawn at random"
        if most == NO_HASHING:
            text = "needs the backend nftables: rules of iptables cannot hash; endpoints are drawn at random"
        return (Finding(f"Service {key}", "metadata.annotations[kepd.dev/balance]", text),)


class OwnMaps:
    """Which Services of one family have their clients in maps of their own, one for each port."""

    def __init__(self) -> None:
        self.granted: frozenset[ServiceKey] = frozenset()
        self._wanted: dict[ServiceKey, tuple[str, int]] = {}
        self._settled: tuple[int, dict[ServiceKey, tuple[str, int]]] = (0, {})

    def put(self, service: ServiceFacts) -> None:
        if service.affinity_s and service.options.affinity_clients:
            self._wanted[service.key] = (service.created, len(service.ports))
        else:
            self.drop(service.key)

    def drop(self, key: ServiceKey) -> None:
        self._wanted.pop(key, None)

    def settle(self, most: int) -> frozenset[ServiceKey]:
        """After any number of changes: who got maps by them, or lost them."""
        if self._settled == (most, self._wanted):
            return frozenset()
        before, left, granted = self.granted, most, set()
        for _, key, ports in sorted((created, key, ports) for key, (created, ports) in self._wanted.items()):
            if ports <= left:
                left -= ports
                granted.add(key)
        self.granted, self._settled = frozenset(granted), (most, dict(self._wanted))
        return before ^ self.granted

    def refusals(self, key: ServiceKey) -> tuple[Finding, ...]:
        """Why it has none; empty: it has, or wants none."""
        if key not in self._wanted or key in self.granted:
            return ()
        ports, most = self._wanted[key][1], self._settled[0]
        text = f"{ports} maps for clients do not fit into the {most} of services.ownAffinityMaps; Services share one"
        return (Finding(f"Service {key}", "metadata.annotations[kepd.dev/affinity-clients]", text),)

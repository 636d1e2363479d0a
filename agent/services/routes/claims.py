# SPDX-License-Identifier: Apache-2.0
"""Decides which Service owns an address and port that several claim.

Cluster IPs come first, then the older Service, then namespace and name. The loser keeps its other frontends.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable

from agent.model.services.service import ServiceFacts, ServiceKey
from agent.services.routes.frontends import Frontend

Claim = tuple[bytes, str, int]
Rank = tuple[bool, str, ServiceKey]


def claim_of(frontend: Frontend) -> Claim:
    """Node ports have no address of their own."""
    return (frontend.ip.packed if frontend.ip is not None else b"", frontend.protocol, frontend.port)


class Claims:
    """Changed by desired.py alone. Almost all claims have one claimant, so only the others cost a table."""

    def __init__(self) -> None:
        self._sole: dict[Claim, Rank] = {}
        self._contested: dict[Claim, list[Rank]] = {}
        """In order: the first has it."""
        self._ranks: dict[Claim, dict[ServiceKey, Rank]] = {}
        """Of the contested ones."""

    @property
    def are_contested(self) -> bool:
        """Whether any way in has two claimants; if not, everybody has what it wants."""
        return bool(self._contested)

    def put(
        self, service: ServiceFacts, frontends: Iterable[Frontend], before: Collection[Frontend]
    ) -> set[ServiceKey]:
        """The Service wants these now. Returns the others that win or lose one by that, however many want it too."""
        key = service.key
        wanted: dict[Claim, Rank] = {}
        for one in frontends:
            wanted.setdefault(claim_of(one), (one.kind != "clusterIP", service.created, key))
        others: set[ServiceKey] = set()
        if before:
            others = self.drop(key, [one for one in before if claim_of(one) not in wanted])
        for claim, rank in wanted.items():
            sole = self._sole.get(claim)
            if claim not in self._contested and (sole is None or sole[2] == key):
                self._sole[claim] = rank
                continue
            had = self.owner(claim)
            self._contend(claim, sole)
            self._leave(claim, key)
            self._contend(claim, rank)
            has = self.owner(claim)
            if had != has:
                others |= {one for one in (had, has) if one is not None}
        others.discard(key)
        return others

    def _contend(self, claim: Claim, rank: Rank | None) -> None:
        if rank is not None:
            insort(self._contested.setdefault(claim, []), rank)
            self._ranks.setdefault(claim, {})[rank[2]] = rank
            self._sole.pop(claim, None)

    def _leave(self, claim: Claim, key: ServiceKey) -> None:
        rank = self._ranks[claim].pop(key, None)
        if rank is not None:
            ranks = self._contested[claim]
            del ranks[bisect_left(ranks, rank)]

    def drop(self, key: ServiceKey, frontends: Iterable[Frontend]) -> set[ServiceKey]:
        """The Service wants these no longer. Returns those that get them."""
        others: set[ServiceKey] = set()
        for claim in map(claim_of, frontends):
            if claim not in self._contested:
                if claim in self._sole and self._sole[claim][2] == key:
                    del self._sole[claim]
                continue
            had = self.owner(claim)
            self._leave(claim, key)
            has = self.owner(claim)
            if had != has and has is not None:
                others.add(has)
            if len(self._contested[claim]) == 1:
                (self._sole[claim],) = self._contested.pop(claim)
                del self._ranks[claim]
        return others

    def owner(self, claim: Claim) -> ServiceKey | None:
        ranks = self._contested.get(claim)
        sole = ranks[0] if ranks else self._sole.get(claim)
        return sole[2] if sole is not None else None

# SPDX-License-Identifier: Apache-2.0
"""Decides which Service owns an address and port that several claim.

Owns: the claims of all Services of a family, and the one rule that decides: cluster IPs first, then the older Service,
then namespace and name. The loser keeps its other frontends.
Never: plans; desired.py asks who must be planned again when an owner changes.
Source of behaviour: TY-19.
"""

from collections.abc import Iterable

from agent.model.service import ServiceFacts, ServiceKey
from agent.services.routes.frontends import Frontend

__all__ = ["Claim", "Claims", "claim_of"]

Claim = tuple[bytes, str, int]
Rank = tuple[bool, str, ServiceKey]


def claim_of(frontend: Frontend) -> Claim:
    """Node ports have no address of their own."""
    return (frontend.ip.packed if frontend.ip is not None else b"", frontend.protocol, frontend.port)


class Claims:
    """Changed by desired.py alone. Almost all claims have one claimant, so only the others cost a table."""

    def __init__(self) -> None:
        self._sole: dict[Claim, Rank] = {}
        self._contested: dict[Claim, dict[ServiceKey, Rank]] = {}

    def put(self, service: ServiceFacts, frontends: Iterable[Frontend], before: Iterable[Frontend]) -> set[ServiceKey]:
        """The Service wants these now. Returns the others whose share changed by that."""
        key = service.key
        wanted: dict[Claim, Rank] = {}
        for one in frontends:
            wanted.setdefault(claim_of(one), (one.kind != "clusterIP", service.created, key))
        others = self.drop(key, (one for one in before if claim_of(one) not in wanted))
        for claim, rank in wanted.items():
            sole = self._sole.get(claim)
            if claim not in self._contested and (sole is None or sole[2] == key):
                self._sole[claim] = rank
                continue
            claimants = self._contested.setdefault(claim, {})
            if sole is not None:
                claimants[sole[2]] = sole
                del self._sole[claim]
            if claimants.get(key) != rank:
                claimants[key] = rank
                others.update(claimants)
        return others - {key}

    def drop(self, key: ServiceKey, frontends: Iterable[Frontend]) -> set[ServiceKey]:
        """The Service wants these no longer. Returns those that may get them."""
        others: set[ServiceKey] = set()
        for frontend in frontends:
            claim = claim_of(frontend)
            claimants = self._contested.get(claim)
            if claimants is None:
                if claim in self._sole and self._sole[claim][2] == key:
                    del self._sole[claim]
                continue
            claimants.pop(key, None)
            others.update(claimants)
            if len(claimants) == 1:
                del self._contested[claim]
                (self._sole[claim],) = claimants.values()
        return others

    def owner(self, claim: Claim) -> ServiceKey | None:
        """Who gets it."""
        claimants = self._contested.get(claim)
        if claimants is not None:
            return min(claimants.values())[2]
        sole = self._sole.get(claim)
        return sole[2] if sole is not None else None

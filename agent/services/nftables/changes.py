# SPDX-License-Identifier: Apache-2.0
"""What a Service has in the kernel, and what a transaction changes of it.

What is taken away from a table that several processes filled is divided, from where packets enter to where they end.
Never: divides what is written in place of something; that stays one transaction.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agent.model.services.nft_table import Batch, ChoiceChain, Content, Data
from agent.model.services.service import ServiceKey
from agent.services.nftables.elements import Numbers, Slots
from agent.services.routes.frontends import ServicePlan

Plans = Mapping[ServiceKey, ServicePlan | None]
Shared = tuple[str, bytes]
Owner = tuple[ServiceKey, str, str]
_FIRST = ("cluster_ips", "svc_cidrs", "services", "nodeports")


class Programmed(msgspec.Struct, frozen=True):
    plan: ServicePlan
    slots: tuple[Slots, ...]


class Staged(msgspec.Struct, frozen=True):
    """A batch, and what to remember once it is in the kernel."""

    batch: Batch
    services: Mapping[ServiceKey, Programmed | None]
    shared: Mapping[Shared, int]
    node: Content
    only: Mapping[ServiceKey, Sequence[Numbers]] = msgspec.field(default_factory=dict)
    """Services of which nothing changed but the endpoints in these slots."""


class Changes(msgspec.Struct):
    """Elements that go and elements that come, while a batch is made."""

    gone: dict[str, dict[bytes, Data]] = msgspec.field(default_factory=dict)
    come: dict[str, dict[bytes, Data]] = msgspec.field(default_factory=dict)
    chains: dict[str, ChoiceChain] = msgspec.field(default_factory=dict)

    def batch(self, known: frozenset[str]) -> Batch:
        """What is the same before and after is not written."""
        deletes: dict[str, list[bytes]] = {}
        adds: dict[str, list[tuple[bytes, Data]]] = {}
        for name, gone in self.gone.items():
            come = self.come.get(name, {})
            keys = [key for key, data in gone.items() if key not in come or come[key] != data]
            if keys:
                deletes[name] = keys
        for name, come in self.come.items():
            gone = self.gone.get(name, {})
            if gone:
                items = [(key, data) for key, data in come.items() if key not in gone or gone[key] != data]
            else:
                items = list(come.items())
            if items:
                adds[name] = items
        return Batch([one for name, one in sorted(self.chains.items()) if name not in known], deletes, adds)


def difference(have: Content, want: Content) -> Changes:
    changes = Changes()
    for name in {*have, *want}:
        changes.gone[name] = have.get(name, {})
        changes.come[name] = want.get(name, {})
    return changes


def left_targets(content: Content, batch: Batch) -> frozenset[str]:
    """Chains that elements of a dump lead to which the batch does not delete."""
    gone = {name: frozenset(keys) for name, keys in batch.deletes.items()}
    return frozenset(
        data
        for name, elements in content.items()
        for key, data in elements.items()
        if isinstance(data, str) and key not in gone.get(name, ())
    )


def removals(batch: Batch, most: int) -> Iterator[Batch]:
    """One after the other. All in one where that is small."""
    kept = batch.replaced
    gone: list[tuple[str, bytes]] = []
    for name in (*_FIRST, *(one for one in batch.deletes if one not in _FIRST)):
        replaced = frozenset(kept.get(name, ()))
        gone += [(name, key) for key in batch.deletes.get(name, ()) if key not in replaced]
    if batch.size <= most or len(gone) <= most:
        yield batch
        return
    for at in range(0, len(gone), most):
        deletes: dict[str, list[bytes]] = {}
        for name, key in gone[at : at + most]:
            deletes.setdefault(name, []).append(key)
        yield Batch(deletes=deletes)
    rest = Batch(batch.chains, kept, batch.adds, batch.gone_chains, batch.bodies, batch.gone_maps)
    if rest:
        yield rest

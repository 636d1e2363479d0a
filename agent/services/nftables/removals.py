# SPDX-License-Identifier: Apache-2.0
"""Divides what is taken away from a table that several processes filled, from where packets enter to where they end.

Never: divides what is written in place of something; that stays one transaction.
"""

from collections.abc import Iterator

from agent.model.services.nft_table import Batch

_FIRST = ("cluster_ips", "svc_cidrs", "services", "nodeports")


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

# SPDX-License-Identifier: Apache-2.0
"""Splits the first programming into several transactions, none of which leaves a Service half programmed.

Owns: the safe order for writing an empty table: what no element refers to yet, then the frontends,
then what catches the traffic that no frontend took.
Never: divides a change of what is in use; that stays one transaction (NF-6, NF-23).
Why at all: while any program listens for changes of rules, in whatever network namespace of the machine, the kernel
keeps 8 KiB for every element until the commit: 100 000 at once take 800 MB.
"""

from collections.abc import Iterator, Mapping, Sequence

from agent.model.nft_table import MAPS, Batch, Data

__all__ = ["MOST_ELEMENTS", "instalments"]

MOST_ELEMENTS = 16_384

_FRONTENDS = ("services", "nodeports")
_CATCHING = ("cluster_ips", "svc_cidrs", "np_addrs")
_UNSEEN = tuple(name for name in MAPS if name not in (*_FRONTENDS, *_CATCHING))

_Pairs = Sequence[tuple[bytes, Data]]


def instalments(batch: Batch, most: int = MOST_ELEMENTS) -> Iterator[Batch]:
    """To be applied one after the other. All in one where that is small, or takes away more than frontends."""
    if batch.size <= most or batch.gone_chains or not set(batch.deletes) <= set(_FRONTENDS):
        yield batch
        return
    deletes = {name: dict.fromkeys(keys) for name, keys in batch.deletes.items()}
    chains = batch.chains
    for names in (_UNSEEN, _FRONTENDS, _CATCHING):
        for adds in _pieces({name: batch.adds[name] for name in names if batch.adds.get(name)}, most):
            # A frontend that was to drop until now changes at once.
            replaced = {name: [key for key, _ in pairs if key in deletes.get(name, {})] for name, pairs in adds.items()}
            for name, keys in replaced.items():
                for key in keys:
                    del deletes[name][key]
            yield Batch(chains, {name: keys for name, keys in replaced.items() if keys}, adds)
            chains = ()
    rest = {name: list(keys) for name, keys in deletes.items() if keys}
    if rest or chains:
        yield Batch(chains, rest)


def _pieces(adds: Mapping[str, _Pairs], most: int) -> Iterator[dict[str, _Pairs]]:
    piece: dict[str, _Pairs] = {}
    room = most
    for name, pairs in adds.items():
        at = 0
        while at < len(pairs):
            taken = pairs[at : at + room]
            piece[name] = taken
            at += len(taken)
            room -= len(taken)
            if not room:
                yield piece
                piece, room = {}, most
    if piece:
        yield piece

# SPDX-License-Identifier: Apache-2.0
"""Stable hashing: which endpoint has which slot of a table that is the same on every node.

Each endpoint has an order of its own in which it wants slots, made of its address and port alone. In turns, each takes
the first one of its order that is still free, until none is; a weight is a number of turns. When an endpoint goes, the
turns of the others come a little earlier: its own slots are shared out, and few others change hands.

The number of slots has three steps. A port that passes from one to the next is hashed anew.
Never: knows the kernel, which finds a packet's slot. The vectors in tests/vectors/maglev.json hold the tables still: if
they change, nodes of two versions of kepd disagree.
"""

from functools import lru_cache
from hashlib import sha256

SIZES = ((12, 251), (50, 1021), (1000, 4093))
"""Up to so many endpoints, so many slots: primes, of which every step visits all."""
MOST_ENDPOINTS = SIZES[-1][0]
_HALF = 8


def slot_count(endpoints: int) -> int:
    """0: too many endpoints for a table."""
    return next((slots for most, slots in SIZES if endpoints <= most), 0) if endpoints else 0


@lru_cache(maxsize=64)
def maglev_table(names: tuple[str, ...], weights: tuple[int, ...] = ()) -> tuple[int, ...]:
    """For each slot the index of its endpoint among `names`, such as `10.1.0.1:8080`, in any order. Without weights all
    are alike; one of weight 0 gets none."""
    shares = weights or (1,) * len(names)
    ordered = sorted((name, index) for index, name in enumerate(names) if shares[index])
    size = slot_count(len(ordered))
    owners = [-1] * size
    places, steps = zip(*(_order(name, size) for name, _ in ordered), strict=True) if size else ((), ())
    at = list(places)
    left = size
    while left:
        for number, (_, index) in enumerate(ordered):
            for _ in range(min(shares[index], left)):
                place = at[number]
                while owners[place] >= 0:
                    place = (place + steps[number]) % size
                owners[place] = index
                at[number] = (place + steps[number]) % size
                left -= 1
    return tuple(owners)


def _order(name: str, size: int) -> tuple[int, int]:
    """Where it begins, and how far apart its slots are."""
    digest = sha256(name.encode()).digest()
    start, step = (int.from_bytes(digest[at : at + _HALF], "big") for at in (0, _HALF))
    return start % size, step % (size - 1) + 1

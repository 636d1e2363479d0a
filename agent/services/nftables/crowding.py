# SPDX-License-Identifier: Apache-2.0
"""Decides which clients are forgotten where the map that ports share gets crowded, so that no port ends affinity for
the new clients of others.

Up to half full, no port is limited. From there on a port may have a tenth of the map, or four times an equal share if
that is more, but never above half: what it has beyond is cut to a short life, which a client that comes back makes
long again, and a flood does not. Above nine tenths room is made at once: the largest ports are levelled until the map
is three quarters full, their newest clients first, for those of a flood are newer than those who were there before it.
A sample of the map is enough, as a hash orders it.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from agent.model.services.nft_table import AffineClient

SHORT_LIFE_MS = 60_000


class Crowd(NamedTuple):
    """A port that has too many clients: `held`, about, of which `level` may stay."""

    number: bytes
    held: int
    level: int


def is_crowded(count: int, size: int) -> bool:
    """Whether it is time to look who is in the map."""
    return 2 * count > size


def is_full(count: int, size: int) -> bool:
    """Whether there is no time to let anything expire, and clients are deleted."""
    return 10 * count > 9 * size


def plan_trims(
    sample: Sequence[AffineClient], count: int, size: int, ports: int, *, deletes: bool
) -> tuple[list[Crowd], list[AffineClient]]:
    """The largest first, and those of the sample that go or are cut.

    `count`: all clients in the map, `ports`: those that share it.
    """
    if not is_crowded(count, size) or ports <= 1 or not sample:
        return [], []
    by_port: dict[bytes, list[AffineClient]] = {}
    for one in sample:
        if deletes or one.life_ms > SHORT_LIFE_MS:
            by_port.setdefault(one.key[-4:], []).append(one)
    scale = count / len(sample)
    level = max(size / 10, min(size / 2, 4 * size / ports))
    if deletes:
        level = _level((scale * len(some) for some in by_port.values()), count - 0.75 * size)
    crowds: list[Crowd] = []
    chosen: list[AffineClient] = []
    for number, some in sorted(by_port.items(), key=lambda one: -len(one[1])):
        over = scale * len(some) - level
        # More than the sample's part, as the next sample begins at the same place; but old clients are to be spared.
        here = int(min(over, max(over / scale, len(some) / 2)))
        if here >= 1:
            crowds.append(Crowd(number, round(scale * len(some)), round(level)))
            chosen += sorted(some, key=itemgetter(2), reverse=True)[:here]
    return crowds, chosen


def _level(held: Iterable[float], excess: float) -> float:
    """To which all above it have to come down, for so many less."""
    total = 0.0
    for at, (one, after) in enumerate(pairwise([*sorted(held, reverse=True), 0.0]), 1):
        total += one
        if (total - excess) / at >= after:
            return (total - excess) / at
    return 0.0

# SPDX-License-Identifier: Apache-2.0
"""Which families of metrics move while a test lets things happen.

Owns: the comparison. A family moves when one of its figures is another than in the same plane when it was idle. A
figure of 0 counts as none, so that a family that only shows its labels has not moved.
Never: makes anything happen; the lives beside this file do.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client.core import Metric

WITHIN_S = 30.0

Figures = Mapping[tuple[str, tuple[str, ...]], float]


def figures_of(family: Metric) -> Figures:
    """Name and labels of a sample → value, without those that are 0."""
    shown = {(one.name, tuple(map(str, one.labels.values()))): one.value for one in family.samples}
    return {place: value for place, value in shown.items() if value}


class Watched:
    """The families of a plane: as they were first, and which of them have moved since."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families
        self._first = {one.name: figures_of(one) for one in families()}
        self.moved: set[str] = set()

    def look(self) -> None:
        """Gauges fall again, so a life looks while they are up. Families that were not there at first stay out."""
        self.moved |= {
            one.name for one in self._families() if figures_of(one) != self._first.get(one.name, figures_of(one))
        }


async def until(condition: Callable[[], Any]) -> None:
    """Something that must come; how soon is not what is tested."""
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.005)

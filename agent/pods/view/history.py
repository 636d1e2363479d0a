# SPDX-License-Identifier: Apache-2.0
"""What happened to a pod, moment by moment; the picture is drawn from it."""

from collections import OrderedDict, deque
from collections.abc import Iterable

import msgspec

MOST_KEPT, MOST_PAST = 400, 50


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One thing. `at_s` is wall time; `container` is empty for what concerns the pod."""

    at_s: float
    kind: str
    container: str = ""
    text: str = ""
    seconds: float = 0.0


class History:
    def __init__(self, moments: Iterable[Moment] = ()) -> None:
        self._moments: deque[Moment] = deque(moments, MOST_KEPT)

    def add(self, moment: Moment) -> None:
        self._moments.append(moment)

    @property
    def moments(self) -> tuple[Moment, ...]:
        return tuple(self._moments)


class PastPods(OrderedDict[str, tuple[tuple[Moment, ...], tuple[str, ...]]]):
    """What happened to the last pods that are gone, and their containers, by key."""

    def add(self, key: str, moments: tuple[Moment, ...], containers: Iterable[str]) -> None:
        self[key] = (moments, tuple(containers))
        self.move_to_end(key)
        while len(self) > MOST_PAST:
            self.popitem(last=False)

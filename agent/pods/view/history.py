# SPDX-License-Identifier: Apache-2.0
"""What happened to a pod, moment by moment; the picture is drawn from it."""

from collections import deque
from collections.abc import Iterable

import msgspec

MOST_KEPT = 400


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

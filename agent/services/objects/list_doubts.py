# SPDX-License-Identifier: Apache-2.0
"""Keeps of each kind since when its lists are doubted, and what was known when that began.

What a watch adds meanwhile says nothing of what a list lacks, and while no server speaks no list stays as it is.
Never: reads a clock, or asks for a list.
"""

from collections.abc import Collection

import msgspec

from agent.services.objects.bounds import Doubts, doubt

ObjectKey = tuple[str, str]


class _Doubt(msgspec.Struct):
    since_s: float
    """Later by the time for which no server spoke."""
    known: frozenset[ObjectKey]
    silent_s: float | None = None
    """Since when no server speaks."""


class ListDoubts:
    def __init__(self) -> None:
        self._of: dict[str, _Doubt] = {}

    def silent(self, kind: str, now_s: float) -> None:
        found = self._of.get(kind)
        if found is not None and found.silent_s is None:
            found.silent_s = now_s

    def heard(self, kind: str, now_s: float) -> None:
        found = self._of.get(kind)
        if found is not None and found.silent_s is not None:
            found.since_s += now_s - found.silent_s
            found.silent_s = None

    def why(
        self,
        kind: str,
        known: Collection[ObjectKey],
        listed: Collection[ObjectKey],
        now_s: float,
        doubts: Doubts,
        *,
        has_rules: bool,
    ) -> str:
        """Why this list does not count yet; "": it does."""
        found = self._of.get(kind)
        # What was deleted one by one since is not missing.
        compared = found.known.intersection(known) if found is not None else known
        why = doubt(compared, listed, has_rules=has_rules, shrink=doubts.shrink)
        if not why or (found is not None and now_s - found.since_s >= doubts.time_s):
            self._of.pop(kind, None)
            return ""
        if found is None:
            self._of[kind] = _Doubt(now_s, frozenset(known))
        return why

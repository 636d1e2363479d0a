# SPDX-License-Identifier: Apache-2.0
"""Remembers the sizes of images that this node pulled, to guess the size of the next pull of the same repository.

Owns: sizes by repository and by exact name, the oldest forgotten first.
Never: asks a registry. A guess only orders the queue.
Source of behaviour: IMG-S10.
"""

from collections.abc import Mapping

import msgspec

__all__ = ["SizeMemory", "SizeRecord"]

MOST_REMEMBERED = 2000


class SizeRecord(msgspec.Struct, frozen=True, gc=False):
    """Compressed bytes, and when that was so."""

    size_bytes: int
    at_s: float


class SizeMemory:
    """Changed by its puller alone."""

    def __init__(self, records: Mapping[str, SizeRecord] | None = None) -> None:
        self._records = dict(sorted((records or {}).items(), key=lambda item: item[1].at_s))

    @property
    def records(self) -> Mapping[str, SizeRecord]:
        return self._records

    def guess(self, repo: str, reference: str) -> int | None:
        """The size of exactly this, else of the latest of its repository."""
        record = self._records.get(reference) or self._records.get(repo)
        return record.size_bytes if record else None

    def learn(self, repo: str, reference: str, size_bytes: int, now_s: float) -> None:
        if size_bytes <= 0:
            return
        for key in (repo, reference):
            self._records.pop(key, None)
            self._records[key] = SizeRecord(size_bytes, now_s)
        while len(self._records) > MOST_REMEMBERED:
            del self._records[next(iter(self._records))]

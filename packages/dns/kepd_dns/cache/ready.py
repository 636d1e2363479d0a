# SPDX-License-Identifier: Apache-2.0
"""Messages as they go out, by questions as they came in but for their ids.

A question that was asked before costs one step in a dictionary: neither is it read, nor an answer written. A message is
right until a second of its TTLs is over, and as long as its entry does not change. Those not asked for since as many
others were are dropped, one for each that comes, so that nothing here takes long.
"""

import msgspec

from kepd_dns.cache.entry import Entry
from kepd_dns.wire.question import Question

MOST_READY = 32768
CACHE_BYTES_EACH = 2048


class Ready(msgspec.Struct, gc=False):
    """`text` has the id of whoever asked last; `begin` is where behind the question records are. `tally` counts."""

    entry: Entry
    changes: int
    until_s: float
    text: bytearray
    begin: int
    tally: list[int]

    def renew(self, now_s: float) -> bool:
        entry = self.entry
        if entry.changes != self.changes or entry.until_s <= now_s:
            return False
        self.text[self.begin : self.begin + len(entry.tail)] = entry.shown(now_s)
        self.until_s = entry.shown_until_s(now_s)
        return True


def ready_of(entry: Entry, question: Question, now_s: float, tally: list[int]) -> Ready:
    text = bytearray(entry.answer(question, now_s))
    return Ready(entry, entry.changes, entry.shown_until_s(now_s), text, 12 + len(question.section), tally)


class ReadyAnswers:
    """`recent` is read by whoever answers, afresh for each batch; the key is the packet without its id."""

    def __init__(self, cache_bytes: int) -> None:
        self.recent: dict[bytes, Ready] = {}
        self.older: dict[bytes, Ready] = {}
        self._dropped: dict[bytes, Ready] = {}
        self.use(cache_bytes)

    def use(self, cache_bytes: int) -> None:
        """For other settings nothing that is ready is right."""
        self._most = min(MOST_READY, cache_bytes // CACHE_BYTES_EACH)
        self.recent, self.older = {}, {}

    def renewed(self, raw: bytes, now_s: float) -> Ready | None:
        """That of a question whose message is there, and right again."""
        found = self.recent.get(raw)
        if found is None:
            found = self.older.pop(raw, None)
            if found is None:
                return None
            self.keep(raw, found)
        if found.renew(now_s):
            return found
        self.recent.pop(raw, None)
        return None

    def keep(self, raw: bytes, ready: Ready) -> None:
        if self._dropped:
            self._dropped.popitem()
        if len(self.recent) >= self._most:
            self._dropped, self.older, self.recent = self.older, self.recent, {}
        self.recent[raw] = ready

# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind with their versions, and what changed since a version. Pure.

Versions grow from one process to the next. A bounded number of changes is remembered, also for the next process; who
asks for older ones is told so, lists again, and never misses or doubles a change.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agent.kinds.table import Object, names_of

Key = tuple[str, str]
RESUMED = "resumed"
MOST_CHANGES = 10_000
# Of objects as they are told; each takes several times that.
MOST_KEPT_BYTES = 4 << 20


class Entry(msgspec.Struct, frozen=True, eq=False):
    """`cache` has what readers made of it, so that they make it once."""

    key: Key
    made: Object
    version: int
    cache: dict[Any, Any] = msgspec.field(default_factory=dict)


class Change(msgspec.Struct, frozen=True, eq=False):
    """`now` None: it is gone. `cache` as that of an entry."""

    version: int
    before: Entry | None
    now: Entry | None
    cache: dict[Any, Any] = msgspec.field(default_factory=dict)


class Remembered(msgspec.Struct, frozen=True):
    """What the next process has to know: objects with their versions, and changes with what was before and is then.
    Changes after `forgotten` are all here."""

    forgotten: int
    entries: tuple[tuple[int, Object], ...] = ()
    changes: tuple[tuple[int, tuple[int, Object] | None, tuple[int, Object] | None], ...] = ()


class OutOfReach(Exception):
    """Changes since a version are not all known: it is too old, or of another process. `oldest` is the first that may
    be asked for."""

    def __init__(self, since: int, oldest: int, last: int) -> None:
        super().__init__(f"version {since} is not between {oldest} and {last}")
        self.since, self.oldest, self.last = since, oldest, last

    @property
    def is_too_old(self) -> bool:
        return self.since < self.oldest


class Versions:
    """Those of all kinds. `first` is in milliseconds since 1970; more changes than that in a second would run into the
    versions of the next process."""

    def __init__(self, first: int) -> None:
        self.first = self.last = first

    def next(self) -> int:
        self.last += 1
        return self.last


class ObjectFeed:
    def __init__(self, versions: Versions) -> None:
        self.entries: dict[Key, Entry] = {}
        self._versions = versions
        self._changes: deque[tuple[Change, int]] = deque()
        self._kept_bytes = 0
        self._forgotten = versions.first
        self._is_shortened = False

    @property
    def version(self) -> int:
        return self._versions.last

    def to_remember(self) -> Remembered:
        entries = ((entry.version, entry.made) for entry in self.entries.values())
        changes = ((change.version, _told(change.before), _told(change.now)) for change, _ in self._changes)
        return Remembered(self._forgotten, tuple(entries), tuple(changes))

    def resume(self, remembered: Remembered) -> None:
        """Begin with what the last process knew; `replace` then compares what is there now with it."""
        self.entries = {names_of(made): _entry(version, made) for version, made in remembered.entries}
        for version, before, now in remembered.changes:
            self.tell(Change(version, _entry(*before) if before else None, _entry(*now) if now else None))
        self._forgotten = max(self._forgotten if self._is_shortened else 0, remembered.forgotten)

    def replace(self, objects: Mapping[Key, Object]) -> None:
        """All there are now."""
        for key in self.entries.keys() - objects.keys():
            self.put(key, None)
        for key, made in objects.items():
            self.put(key, made)

    def put(self, key: Key, made: Object | None, *, is_other: bool = False) -> None:
        """None: it is gone. `is_other`: though nothing of it shows."""
        before = self.entries.get(key)
        if made is None:
            if before is not None:
                del self.entries[key]
                version = self._versions.next()
                self.tell(Change(version, Entry(key, before.made, version), None))
            return
        if before is not None and not is_other and (before.made == made or _is_resumed(before, made)):
            return
        entry = self.entries[key] = Entry(key, made, self._versions.next())
        self.tell(Change(entry.version, before, entry))

    def tell(self, change: Change) -> None:
        told = change.now or change.before
        size = len(msgspec.json.encode(told.made)) if told is not None else 0
        self._changes.append((change, size))
        self._kept_bytes += size
        while len(self._changes) > MOST_CHANGES or (self._kept_bytes > MOST_KEPT_BYTES and len(self._changes) > 1):
            gone, size = self._changes.popleft()
            self._is_shortened = True
            self._forgotten, self._kept_bytes = gone.version, self._kept_bytes - size

    def check(self, since: int) -> None:
        """Raises OutOfReach."""
        if not self._forgotten <= since <= self._versions.last:
            raise OutOfReach(since, self._forgotten, self._versions.last)

    def after(self, since: int) -> Sequence[Change]:
        """A list of its own, for there may be more meanwhile. Raises OutOfReach."""
        self.check(since)
        changes: list[Change] = []
        for change, _ in reversed(self._changes):
            if change.version <= since:
                break
            changes.append(change)
        changes.reverse()
        return changes


def by_key(objects: Sequence[Object]) -> dict[Key, Object]:
    return {names_of(made): made for made in objects}


def _told(entry: Entry | None) -> tuple[int, Object] | None:
    return (entry.version, entry.made) if entry is not None else None


def _entry(version: int, made: Object) -> Entry:
    return Entry(names_of(made), made, version, {RESUMED: True})


def _is_resumed(before: Entry, made: Object) -> bool:
    """An object of the last process went through JSON, which has no tuples."""
    return RESUMED in before.cache and before.made == msgspec.json.decode(msgspec.json.encode(made))

# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind with their versions, and the changes of them that watchers read.

A kind that can be followed is followed from the first question on; any other is listed at each question, and once a
second while somebody watches. Versions grow from one process to the next, so that a watcher of an earlier one is told
to list again and never misses or doubles a change. Never: waits for a watcher; who reads too slowly begins again.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import structlog

from agent.api.errors import ApiError
from agent.kinds.kube_shape import manifest_object
from agent.kinds.registry import FOLDERS, Kind
from agent.kinds.shown import shown_of
from agent.wire.kepd.v1 import kind_pb2 as pb
from agent.wire.kepd.v1 import list_pb2, object_pb2
from kepd_door.run.calls import OURSELVES, Calls
from kepd_door.shape.dressing import dressed, own_object
from kepd_door.shape.resources import Resource
from kepd_door.shape.statuses import Failure
from kepd_door.shape.tables import Title

log = structlog.get_logger(plane="api")

Object = dict[str, Any]
Key = tuple[str, str]
Spawn = Callable[[Any], object]
MOST_CHANGES, MOST_NOTED = 4096, 8192
# Of objects as they are told; each takes several times that.
MOST_KEPT_BYTES = 4 << 20
LOOK_S, AGAIN_S = 1.0, 1.0
PAGE = 500
SYNC_S = 30.0
# Planes carry them out a moment after their files are there.
SEEN_LATER = ("Pod", "Service")
SEEN_WITHIN_S = 10.0


class Entry(msgspec.Struct, frozen=True):
    """`raw` is what the kind says of it, to tell whether it changed; `short` has its other names. `made` has the
    name that was asked for."""

    key: Key
    made: Object
    cells: tuple[str, ...]
    short: str
    raw: bytes
    version: int


class Change(msgspec.Struct, frozen=True):
    """`now` None: it is gone. `encoded` has what watchers made of it, so that they make it once."""

    version: int
    before: Entry | None
    now: Entry | None
    encoded: dict[object, bytes] = msgspec.field(default_factory=dict)


class Versions:
    """More of them in a second than there are milliseconds would run into those of the next process."""

    def __init__(self) -> None:
        self.first = self.last = time.time_ns() // 1_000_000

    def next(self) -> int:
        self.last += 1
        return self.last


class KindStore:
    def __init__(self, resource: Resource, calls: Calls, versions: Versions, spawn: Spawn, node: str) -> None:
        if resource.kind is None:
            raise ValueError(resource.name)
        self.resource = resource
        self.columns: list[Title] = []
        self._kind = resource.kind
        self._calls = calls
        self._node = node
        self._versions = versions
        self._spawn = spawn
        self._entries: dict[Key, Entry] = {}
        self._deleted: dict[Key, float] = {}
        self._changes: deque[Change] = deque()
        self._kept_bytes = 0
        self._forgotten = versions.first
        self._bell = asyncio.Event()
        self._writing: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._unseen: dict[Key, Entry] = {}
        """As they were listed last."""
        self._noted: dict[Key, tuple[str, int]] = {}
        """What a manifest said when it was last read, as its version there, and since which version of ours."""
        self._is_looking = False
        # What is written in manifests may change in what its plane tells nobody; pods come with all they have.
        can_change = self._kind in FOLDERS and self._kind.api in ("", "Pod")
        self._can_follow = can_change and shown_of(self._kind).watch is not None
        self._is_followed = False
        self._synced = asyncio.Event()
        self._listing = asyncio.Lock()
        self._watchers = 0

    @property
    def version(self) -> int:
        return self._versions.last

    @property
    def kind(self) -> Kind:
        return self._kind

    def writing(self, key: Key) -> asyncio.Lock:
        """Held from the read that a write is made from until that is written."""
        return self._writing.setdefault(key, asyncio.Lock())

    def note(self, key: Key, manifest: str) -> int:
        """The version of an object whose manifest was read to be of that version, where its plane tells of it: later
        than one reads it there, so another manifest is another version at once."""
        known, entry = self._noted.get(key), self._entries.get(key)
        if known is None or known[0] != manifest:
            if entry is not None:
                self._put(key, entry, is_other=True)
            self._noted[key] = known = (manifest, self._versions.last if entry is not None else self._versions.next())
            if len(self._noted) > MOST_NOTED:
                del self._noted[next(iter(self._noted))]
        entry = self._entries.get(key)
        return max(known[1], entry.version if entry is not None else 0)

    def version_with(self, key: Key, entry: Entry | None, manifest: str) -> int:
        """Of an object whose manifest was read after `entry` was found: what is listed is as old as its entry, so that
        who writes it back as that version is never ahead of what it saw."""
        if entry is not None and not self._can_follow:
            return entry.version
        return self.note(entry.key if entry is not None else key, manifest)

    async def seen(self) -> list[Entry]:
        """What runs here, or is carried out."""
        await self.refresh()
        return list(self._entries.values())

    async def entries(self) -> list[Entry]:
        """In the order of their names, with what was written a moment ago."""
        await self.refresh()
        if self._kind.api in SEEN_LATER:
            with suppress(ApiError):
                async with self._listing:
                    self._note_unseen(await self._manifests())
        # Nothing is awaited from here until its version is looked at: a change between would be in neither.
        found = {**self._unseen, **self._entries}
        return [found[key] for key in sorted(found)]

    def _note_unseen(self, objects: Iterable[object_pb2.Object]) -> None:
        """What a manifest has and its plane has not: who wrote it a moment ago looks for it. What is so no longer,
        since it is gone or has another name by now, is gone for those who saw it."""
        known = {(key[0], name) for key, one in self._entries.items() for name in (key[1], *one.short.split())}
        told = self._unseen
        pending = (self._pending(one) for one in objects if (one.namespace, one.name) not in known)
        self._unseen = {one.key: one for one in pending}
        for key in told.keys() - self._unseen.keys() - self._entries.keys():
            version = self._versions.next()
            self._tell(Change(version, at_version(told[key], version), None))

    async def _manifests(self) -> list[object_pb2.Object]:
        request = object_pb2.ListObjectsRequest(kind=self._kind.api, options=list_pb2.ListOptions(page_size=PAGE))
        pages = self._calls.pages(OURSELVES, request, object_pb2.ListObjectsResponse)
        return [one async for answer in pages for one in answer.objects]

    def _pending(self, one: object_pb2.Object) -> Entry:
        made = manifest_object(one)
        if self._kind.api == "Pod":
            made["status"] = {"phase": "Pending", "conditions": []}
        told = {"NAMESPACE": one.namespace, "NAME": one.name, "STATUS": "Pending"}
        cells = tuple(told.get(column.title, "") for column in self.columns)
        version = self.note((one.namespace, one.name), one.version)
        return Entry((one.namespace, one.name), dressed(self.resource, made, version), cells, "", b"", version)

    async def refresh(self) -> None:
        if not self._can_follow:
            await self._list()
            return
        if not self._is_followed:
            self._is_followed = True
            self._spawn(self._follow())
        try:
            async with asyncio.timeout(SYNC_S):
                await self._synced.wait()
        except TimeoutError as error:
            text = f"{self._kind.plural} are not known yet; `kepctl status` says what their plane waits for"
            raise Failure(503, text, retryAfterSeconds=1) from error

    def find(self, namespace: str, name: str) -> Entry | None:
        """By its name, else by a short one; it is then called so."""
        if (found := self._entries.get((namespace, name))) is not None:
            return found
        for entry in self._entries.values():
            if name in entry.short.split() and entry.key[0] == namespace:
                return renamed(entry, name)
        return None

    async def _list(self) -> None:
        async with self._listing:
            found: dict[Key, Entry] = {}
            options = list_pb2.ListOptions(page_size=PAGE)
            request = pb.ListRowsRequest(
                options=options, kind=self._kind.plural, is_wide=True, with_objects=True, with_ended=True
            )
            async for answer in self._calls.pages(OURSELVES, request, pb.ListRowsResponse):
                self._take_columns(answer.columns)
                found |= self._made(answer.rows)
            self._replace(found)

    async def _follow(self) -> None:
        """For as long as the door is open; what ends it early makes it begin again with everything."""
        while True:
            try:
                await self._follow_once()
            except ApiError as error:
                if not self._synced.is_set():
                    log.debug("door_kind_not_followed", kind=self._kind.plural, error=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _follow_once(self) -> None:
        request = pb.WatchRowsRequest(kind=self._kind.plural, is_wide=True, with_objects=True, with_ended=True)
        first: dict[Key, Entry] | None = {}
        async for change in self._calls.stream(OURSELVES, request):
            self._take_columns(change.columns)
            made = self._made(change.rows)
            if change.type == list_pb2.CHANGE_TYPE_BOOKMARK:
                if first is not None:
                    self._replace(first)
                    first = None
                    self._synced.set()
            elif first is not None:
                first |= made
            elif change.type == list_pb2.CHANGE_TYPE_DELETED:
                for key in made:
                    self._put(key, None)
            else:
                for key, entry in made.items():
                    self._put(key, entry)

    def _take_columns(self, columns: Any) -> None:  # noqa: ANN401  # a repeated field
        if columns and not self.columns:
            self.columns = [Title(one.title, one.wide) for one in columns]

    def _made(self, rows: Any) -> dict[Key, Entry]:  # noqa: ANN401  # a repeated field
        found = {}
        for row in rows:
            if not row.object:
                continue
            before = self._entries.get((row.namespace, row.name))
            if before is not None and before.raw == row.object:
                found[before.key] = before
                continue
            fields = msgspec.json.decode(row.object)
            # The last part of a path that is the root is empty.
            name = row.name or row.shown.partition("/")[2].strip("/").replace("/", ".") or "root"
            made = fields if "metadata" in fields else own_object(self.resource, name, row.namespace, fields)
            if self._kind.api == "Pod":
                # Of a pod that a workload made, only its node knows where it runs.
                made = {**made, "spec": {"nodeName": self._node, **(made.get("spec") or {})}}
            version = self._versions.last
            shown = dressed(self.resource, made, version)
            key = shown["metadata"].get("namespace", ""), shown["metadata"]["name"]
            found[key] = Entry(key, shown, tuple(row.cells), row.short, row.object, version)
        return found

    def note_deleted(self, key: Key) -> None:
        """Its manifest is gone; until its plane has seen that, it is gone here all the same."""
        if FOLDERS.get(self._kind) != "pods":
            # Others are listed from their manifests, so what is there again was written again.
            self._deleted[key] = time.monotonic() + SEEN_WITHIN_S
        self._put(key, None)

    def note_ending(self, entry: Entry, made: Object) -> None:
        """A pod that its plane has yet to end."""
        self._put(entry.key, msgspec.structs.replace(entry, made=made), is_other=True)

    def note_written(self, key: Key) -> None:
        self._deleted.pop(key, None)

    def _replace(self, found: Mapping[Key, Entry]) -> None:
        if self._deleted:
            now_s = time.monotonic()
            self._deleted = {key: at_s for key, at_s in self._deleted.items() if key in found and at_s > now_s}
            found = {key: entry for key, entry in found.items() if key not in self._deleted}
        for key in self._entries.keys() - found.keys():
            self._put(key, None)
        for key, entry in found.items():
            self._put(key, entry)

    def _put(self, key: Key, entry: Entry | None, *, is_other: bool = False) -> None:
        """`is_other`: though nothing of it shows."""
        before = self._entries.get(key)
        if entry is None:
            if before is None:
                return
            del self._entries[key]
            self._noted.pop(key, None)
        elif before is not None and before.raw == entry.raw and not is_other:
            return
        version = self._versions.next()
        if entry is not None:
            entry = self._entries[key] = at_version(entry, version)
        elif before is not None:
            before = at_version(before, version)
        self._tell(Change(version, before, entry))

    def _tell(self, change: Change) -> None:
        self._changes.append(change)
        self._kept_bytes += _size(self._changes[-1])
        while len(self._changes) > MOST_CHANGES or (self._kept_bytes > MOST_KEPT_BYTES and len(self._changes) > 1):
            gone = self._changes.popleft()
            self._forgotten, self._kept_bytes = gone.version, self._kept_bytes - _size(gone)
        self._bell.set()
        self._bell = asyncio.Event()

    def check_version(self, since: int) -> None:
        """Whether changes since then are all known."""
        if since < self._forgotten:
            raise Failure(410, f"too old resource version: {since} ({self._forgotten})", "Expired")
        if since > self._versions.last:
            text = f"Timeout: Too large resource version: {since}, current: {self._versions.last}"
            causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
            raise Failure(504, text, "Timeout", causes=causes, retryAfterSeconds=1)

    async def changes(self, since: int) -> AsyncIterator[Change | None]:
        """Those after a version, for ever; None after each that is the last one for now."""
        self._watchers += 1
        if not self._is_looking and (not self._can_follow or self._unseen):
            self._is_looking = True
            self._spawn(self._look())
        try:
            while True:
                bell = self._bell
                self.check_version(since)
                for change in self._after(since):
                    since = change.version
                    yield change
                yield None
                await bell.wait()
        finally:
            self._watchers -= 1

    def _after(self, since: int) -> Iterator[Change]:
        """A list, for it may grow meanwhile."""
        found = []
        for change in reversed(self._changes):
            if change.version <= since:
                break
            found.append(change)
        return reversed(found)

    async def _look(self) -> None:
        try:
            while self._watchers and (not self._can_follow or self._unseen):
                with suppress(ApiError, Failure):
                    await self.entries()
                await asyncio.sleep(LOOK_S)
        finally:
            self._is_looking = False


def _size(change: Change) -> int:
    shown = change.now or change.before
    return len(shown.raw) if shown is not None else 0


def at_version(entry: Entry, version: int) -> Entry:
    metadata = {**entry.made["metadata"], "resourceVersion": str(version)}
    return msgspec.structs.replace(entry, made={**entry.made, "metadata": metadata}, version=version)


def renamed(entry: Entry, name: str) -> Entry:
    made = {**entry.made, "metadata": {**entry.made["metadata"], "name": name}}
    return msgspec.structs.replace(entry, made=made)

# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind as a server of Kubernetes shows them, with their versions and changes.

Which objects there are, and what changes of them, the kind's feed says (`agent/objects/run/kind_feed.py`). Beside that
stands what was written a moment ago and its plane has yet to see.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from agent.api.errors import ApiError, refused, runtime_unavailable
from agent.kinds.kind import Kind
from agent.kinds.kube_shape import manifest_object
from agent.kinds.shown import shown_of
from agent.kinds.table import FACTS, Column, without_facts
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.objects import feed
from agent.objects.feed import Key, OutOfReach, Remembered, Versions
from agent.objects.run.kind_feed import FindOffer, KindFeed, NotKnownYet, Spawn
from agent.wire.kepd.v1 import list_pb2, object_pb2
from kepd_door.run.calls import OURSELVES, Calls
from kepd_door.shape.dressing import dressed
from kepd_door.shape.kube_columns import columns_as_served
from kepd_door.shape.resources import Resource
from kepd_door.shape.statuses import Failure
from kepd_door.shape.told_status import ToldStatus, told_status, with_told

Object = dict[str, Any]
MOST_NOTED, MOST_STATUSES = 8192, 1024
PAGE = 500
# Planes carry them out a moment after their files are there.
SEEN_LATER = ("Pod", "Service")
SEEN_WITHIN_S, ANSWER_WITHIN_S, SEEN_LOOK_S = 10.0, 1.5, 0.05


class Entry(msgspec.Struct, frozen=True, eq=False):
    """`made` is dressed, and has the name that was asked for; `told` is what its row is made of, `short` has its other
    names. `cache` has what was made of it, so that it is made once."""

    key: Key
    made: Object
    told: Object
    short: str
    version: int
    cache: dict[Any, Any] = msgspec.field(default_factory=dict)


class Change(msgspec.Struct, frozen=True, eq=False):
    """`now` None: it is gone. `encoded` has what watchers made of it, so that they make it once."""

    version: int
    before: Entry | None
    now: Entry | None
    encoded: dict[Any, Any]


class KindStore:
    def __init__(
        self, resource: Resource, calls: Calls, find_offer: FindOffer, versions: Versions, spawn: Spawn, node: str
    ) -> None:
        if resource.kind is None:
            raise ValueError(resource.name)
        self.resource = resource
        self._kind = resource.kind
        self._calls = calls
        self._node = node
        self._versions = versions
        self._writing: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._deleted: dict[Key, float] = {}
        self._unseen: dict[Key, Entry] = {}
        """As they were listed last."""
        self._noted: dict[Key, tuple[str, int]] = {}
        """What a manifest said when it was last read, as its version there, and since which version of ours."""
        self._statuses: dict[Key, ToldStatus] = {}
        """Those that clients wrote."""
        self._manifests: list[object_pb2.Object] = []
        self._written: object = None
        self._listing = asyncio.Lock()
        self.columns: list[Column[Object]] = [Column("NAME", lambda made: str(made["metadata"]["name"]))]
        self._first: Callable[[Object], Object] | None = None
        is_watched = False
        if self._kind.module:
            shown = shown_of(self._kind)
            columns, is_watched = shown.columns_of(self._kind, is_wide=True), shown.is_watched
            self.columns = columns_as_served(resource.name, columns)
            self._first = shown.first
        # What is written in manifests may change in what its plane tells nobody; pods come with all they have.
        can_follow = self._kind.api in ("", "Pod") and is_watched
        self._feed = KindFeed(self._kind.plural, find_offer, versions, spawn, can_follow=can_follow)

    @property
    def version(self) -> int:
        return self._versions.last

    def resume(self, remembered: Remembered) -> None:
        self._feed.feed.resume(remembered)

    def to_remember(self) -> Remembered | None:
        """None of what nobody has asked for."""
        feed = self._feed.feed
        return feed.to_remember() if feed.entries else None

    @property
    def kind(self) -> Kind:
        return self._kind

    def writing(self, key: Key) -> asyncio.Lock:
        """Held from the read that a write is made from until that is written."""
        return self._writing.setdefault(key, asyncio.Lock())

    def note(self, key: Key, manifest: str) -> int:
        """The version of an object whose manifest was read to be of that version, where its plane tells of it: later
        than one reads it there, so another manifest is another version at once."""
        entries = self._feed.feed.entries
        known, entry = self._noted.get(key), entries.get(key)
        if known is None or known[0] != manifest:
            if entry is not None:
                self._feed.put(key, entry.made, is_other=True)
            self._noted[key] = known = (manifest, self._versions.last if entry is not None else self._versions.next())
            if len(self._noted) > MOST_NOTED:
                del self._noted[next(iter(self._noted))]
        entry = entries.get(key)
        return max(known[1], entry.version if entry is not None else 0)

    def version_with(self, key: Key, entry: Entry | None, manifest: str) -> int:
        """Of an object whose manifest was read after `entry` was found: what is listed is as old as its entry, so that
        who writes it back as that version is never ahead of what it saw."""
        if entry is not None and not self._feed.can_follow:
            return entry.version
        return self.note(entry.key if entry is not None else key, manifest)

    async def until_seen(self, key: Key, uid: str, generation: int) -> None:
        """Until its plane shows what was written a moment ago, for an answer that has all of it; not for long."""
        if self._kind.api not in SEEN_LATER:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                while True:
                    await self.refresh()
                    if self._has(key, uid, generation):
                        return
                    await self._feed.wait(SEEN_LOOK_S)

    def _has(self, key: Key, uid: str, generation: int) -> bool:
        entry = self.find(*key)
        if entry is None or self._kind.api != "Pod":
            return entry is not None
        metadata = entry.made["metadata"]
        return uid in ("", metadata["uid"]) and metadata.get("generation", 1) >= generation

    async def seen(self) -> list[Entry]:
        """What runs here, or is carried out."""
        await self.refresh()
        return self.known()

    def known(self) -> list[Entry]:
        """As of the last look."""
        return [self._entry(entry) for entry in self._feed.feed.entries.values()]

    async def entries(self) -> list[Entry]:
        """In the order of their names, with what was written a moment ago."""
        await self.refresh()
        if self._kind.api in SEEN_LATER:
            with suppress(ApiError):
                async with self._listing:
                    self._note_unseen(await self._written_objects())
        # Nothing is awaited from here until its version is looked at: a change between would be in neither.
        found: dict[Key, Any] = {**self._unseen, **self._feed.feed.entries}
        return [one if isinstance(one := found[key], Entry) else self._entry(one) for key in sorted(found)]

    def _note_unseen(self, objects: Iterable[object_pb2.Object]) -> None:
        """What a manifest has and its plane has not: who wrote it a moment ago looks for it. What is so no longer,
        since it is gone or has another name by now, is gone for those who saw it."""
        entries = self._feed.feed.entries
        known = {
            (key[0], name) for key, entry in entries.items() for name in (key[1], *self._short(entry.made).split())
        }
        told = self._unseen
        pending = (self._pending(one) for one in objects if (one.namespace, one.name) not in known)
        self._unseen = {one.key: one for one in pending}
        for key in told.keys() - self._unseen.keys() - entries.keys():
            version = self._versions.next()
            self._feed.tell(feed.Change(version, feed.Entry(key, told[key].made, version), None))

    async def _written_objects(self) -> list[object_pb2.Object]:
        written = await self._calls.written()
        if written is not self._written or written is None:
            request = object_pb2.ListObjectsRequest(kind=self._kind.api, options=list_pb2.ListOptions(page_size=PAGE))
            pages = self._calls.pages(OURSELVES, request, object_pb2.ListObjectsResponse)
            self._manifests = [one async for answer in pages for one in answer.objects]
            self._written = written
        return self._manifests

    def _pending(self, one: object_pb2.Object) -> Entry:
        made = manifest_object(one)
        if self._kind.api == "Pod":
            made["status"] = {"phase": "Pending", "conditions": []}
        version = self.note((one.namespace, one.name), one.version)
        return self._entry(feed.Entry((one.namespace, one.name), made, version))

    async def refresh(self) -> None:
        try:
            await self._feed.refresh()
        except NotKnownYet as error:
            raise Failure(503, str(error), retryAfterSeconds=1) from error
        except Refused as error:
            raise refused(error) from error
        except RuntimeCallFailed as error:
            raise runtime_unavailable(error) from error
        self._hide_deleted()

    def _hide_deleted(self) -> None:
        if self._deleted:
            now_s, entries = time.monotonic(), self._feed.feed.entries
            self._deleted = {key: at_s for key, at_s in self._deleted.items() if key in entries and at_s > now_s}
            for key in self._deleted:
                self._feed.put(key, None)

    def find(self, namespace: str, name: str) -> Entry | None:
        """By its name, else by a short one; it is then called so."""
        entries = self._feed.feed.entries
        if (found := entries.get((namespace, name))) is not None:
            return self._entry(found)
        for entry in entries.values():
            if entry.key[0] == namespace and name in self._short(entry.made).split():
                return renamed(self._entry(entry), name)
        return None

    def _short(self, made: Object) -> str:
        return shown_of(self._kind).named(made).short if self._kind.module else ""

    def _entry(self, told: feed.Entry) -> Entry:
        """Made once for each version."""
        entry: Entry | None = told.cache.get(KindStore)
        if entry is None:
            shown = self._dressed(told)
            if (status := self._statuses.get(told.key)) is not None:
                shown = with_told(shown, status)
            key = shown["metadata"].get("namespace", ""), shown["metadata"]["name"]
            row = self._first(told.made) if self._first is not None else told.made
            entry = Entry(key, shown, row, self._short(told.made), told.version)
            told.cache[KindStore] = entry
        return entry

    def is_implied(self, entry: Entry) -> bool:
        """Nobody wrote it: it is there as other things are."""
        known = self._feed.feed.entries.get(entry.key)
        return known is not None and (known.made.get(FACTS) or {}).get("source") == ""

    def _dressed(self, told: feed.Entry) -> Object:
        made = without_facts(told.made)
        if self._kind.api == "Pod":
            # Of a pod that a workload made, only its node knows where it runs.
            made = {**made, "spec": {"nodeName": self._node, **(made.get("spec") or {})}}
        return dressed(self.resource, made, told.version)

    def is_made_again(self, entry: Entry) -> bool:
        """Of one that is in no manifest: it stays as long as that which it is made of."""
        return self.is_implied(entry) or self._kind.api in ("EndpointSlice", "Endpoints")

    def put_status(self, key: Key, status: Object) -> Entry:
        """What a client says of an object, until its node says something else. Raises Failure."""
        known = self._feed.feed.entries.get(key)
        if known is None:
            raise Failure(404, f"{self.resource.full_name} {key[1]!r} is gone meanwhile")
        bare, uid = self._dressed(known), self._dressed(known)["metadata"]["uid"]
        self._statuses[key] = told_status(uid, bare.get("status") or {}, status, self._statuses.pop(key, None))
        if len(self._statuses) > MOST_STATUSES:
            del self._statuses[next(iter(self._statuses))]
        self._feed.put(key, known.made, is_other=True)
        return self._entry(self._feed.feed.entries[key])

    def note_deleted(self, key: Key) -> None:
        """Its manifest is gone; until its plane has seen that, it is gone here all the same."""
        if self._kind.folder not in ("pods", "workloads"):
            # Others are listed from their manifests, so what is there again was written again.
            self._deleted[key] = time.monotonic() + SEEN_WITHIN_S
        self._noted.pop(key, None)
        self._feed.put(key, None)

    def note_ending(self, entry: Entry, made: Object) -> None:
        """A pod that its plane has yet to end."""
        told = self._feed.feed.entries.get(entry.key)
        if told is not None:
            self._feed.put(entry.key, {**told.made, "metadata": {**told.made["metadata"], **_end_of(made)}})

    def note_written(self, key: Key) -> None:
        self._deleted.pop(key, None)

    def check_version(self, since: int) -> None:
        """Whether changes since then are all known."""
        try:
            self._feed.feed.check(since)
        except OutOfReach as error:
            raise _expired(error) from error

    async def changes(self, since: int) -> AsyncIterator[Change | None]:
        """Those after a version, for ever; None after each that is the last one for now."""
        look: Callable[[], Awaitable[object]] | None = None
        if not self._feed.can_follow or self._unseen:
            look = self._look
        try:
            async for change in self._feed.changes(since, look):
                yield self._change(change) if change is not None else None
        except OutOfReach as error:
            raise _expired(error) from error

    async def _look(self) -> None:
        with suppress(Failure):
            await self.entries()

    def _change(self, change: feed.Change) -> Change:
        shown: Change | None = change.cache.get(KindStore)
        if shown is None:
            before = self._entry(change.before) if change.before is not None else None
            now = self._entry(change.now) if change.now is not None else None
            shown = change.cache[KindStore] = Change(change.version, before, now, {})
        return shown


def _end_of(made: Object) -> Object:
    names = ("deletionTimestamp", "deletionGracePeriodSeconds", "generation")
    return {name: made["metadata"][name] for name in names if name in made["metadata"]}


def _expired(error: OutOfReach) -> Failure:
    if error.is_too_old:
        return Failure(410, f"too old resource version: {error.since} ({error.oldest})", "Expired")
    text = f"Timeout: Too large resource version: {error.since}, current: {error.last}"
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    return Failure(504, text, "Timeout", causes=causes, retryAfterSeconds=1)


def encoded(entry: Entry) -> msgspec.Raw:
    """As JSON, once for all who read it."""
    made: msgspec.Raw | None = entry.cache.get("json")
    if made is None:
        made = entry.cache["json"] = msgspec.Raw(msgspec.json.encode(entry.made))
    return made


def at_version(entry: Entry, version: int) -> Entry:
    metadata = {**entry.made["metadata"], "resourceVersion": str(version)}
    return msgspec.structs.replace(entry, made={**entry.made, "metadata": metadata}, version=version, cache={})


def renamed(entry: Entry, name: str) -> Entry:
    made = {**entry.made, "metadata": {**entry.made["metadata"], "name": name}}
    return msgspec.structs.replace(entry, made=made, cache={})

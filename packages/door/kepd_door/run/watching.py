# SPDX-License-Identifier: Apache-2.0
"""A watch: the changes of a kind, as lines of JSON, for as long as a client reads them.

Each change is written once for all who want it in the same form.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from aiohttp import web

from kepd_door.run.store import Change, Entry, encoded, renamed
from kepd_door.run.whole import Whole
from kepd_door.shape.selecting import Selection
from kepd_door.shape.statuses import Failure
from kepd_door.shape.tables import row, table
from kepd_door.shape.targets import Target

Object = dict[str, Any]
BOOKMARK_S = 60.0
SHORTEST_S, LONGEST_S = 1800.0, 3600.0
MOST_WATCHES = 60
INITIAL_END = {"k8s.io/initial-events-end": "true"}


class Form(msgspec.Struct, frozen=True):
    """As what a client gets objects: itself, or rows of a table."""

    is_table: bool
    include: str = ""


def wanted(selection: Selection, target: Target, entry: Entry | None) -> Entry | None:
    """The object as it is asked for, if it is."""
    if entry is None:
        return None
    namespace, name = entry.key
    if target.namespace and namespace != target.namespace:
        return None
    for asked in filter(None, (selection.name, target.name)):
        if asked != name and asked not in entry.short.split():
            return None
        if asked != entry.made["metadata"]["name"]:
            entry = renamed(entry, asked)
    return entry if selection.holds(entry.made) else None


class Watcher:
    """`ending`: the daemon is; a watch then ends as if its time were over."""

    def __init__(
        self,
        whole: Whole,
        target: Target,
        query: Mapping[str, str],
        form: Form,
        ending: asyncio.Event,
        node: str,
    ) -> None:
        self._ending = ending
        self._whole = whole
        self._store, self._target, self._form = whole.store, target, form
        self._selection = Selection(query, node)
        self._has_bookmarks = query.get("allowWatchBookmarks") in ("1", "true")
        self._begins_with_all = query.get("sendInitialEvents") == "true"
        self._since = number_of(query, "resourceVersion")
        limit_s = number_of(query, "timeoutSeconds")
        self._limit_s = min(limit_s, LONGEST_S) if limit_s else random.uniform(SHORTEST_S, LONGEST_S)  # noqa: S311

    async def run(self, request: web.BaseRequest) -> web.StreamResponse:
        entries = await self._store.entries()
        version = self._store.version
        answer = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"})
        await answer.prepare(request)
        try:
            async with asyncio.timeout(self._limit_s):
                await self._send(answer, entries, version)
        except Failure as failure:
            await answer.write(_line("ERROR", failure.status()))
        except TimeoutError:
            if self._has_bookmarks:
                await answer.write(self._bookmark(self._store.version))
        return answer

    async def _send(self, answer: web.StreamResponse, entries: list[Entry], version: int) -> None:
        since = self._since
        if not since or self._begins_with_all:
            shown = [one for one in (wanted(self._selection, self._target, entry) for entry in entries) if one]
            for one in await self._filled(shown):
                await answer.write(self._encoded("ADDED", one))
            since = version
            if self._begins_with_all:
                await answer.write(self._bookmark(version, INITIAL_END))
        changes = self._store.changes(since)
        pieces: list[bytes] = []
        waiting: asyncio.Task[Change | None] | None = None
        ending = asyncio.create_task(self._ending.wait(), name="door-ending")
        try:
            while not ending.done():
                waiting = waiting or asyncio.ensure_future(anext(changes))
                done, _ = await asyncio.wait(
                    (waiting, ending), timeout=BOOKMARK_S if self._has_bookmarks else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                if waiting not in done:
                    if done:
                        break
                    await answer.write(self._bookmark(self._store.version))
                    continue
                change, waiting = waiting.result(), None
                if change is not None:
                    pieces += await self._lines(change)
                elif pieces:
                    await answer.write(b"".join(pieces))
                    pieces = []
        finally:
            ending.cancel()
            if waiting is not None:
                waiting.cancel()

    async def _filled(self, entries: list[Entry]) -> list[Entry]:
        """Rows show no values."""
        return entries if self._form.is_table else await self._whole.all(entries, is_watched=True)

    async def _lines(self, change: Change) -> list[bytes]:
        before = wanted(self._selection, self._target, change.before)
        now = wanted(self._selection, self._target, change.now)
        if now is None and before is None:
            return []
        kind = "DELETED" if now is None else "MODIFIED" if before is not None else "ADDED"
        shown = cast("Entry", now or before)
        # Under another name it is another text.
        key = (kind, self._form, self._whole.is_for_all, shown.made["metadata"]["name"])
        if key not in change.encoded:
            if now is None and change.now is not None:
                shown = msgspec.structs.replace(shown, version=change.version)
            (shown,) = await self._filled([shown])
            change.encoded[key] = self._encoded(kind, shown)
        return [change.encoded[key]]

    def _encoded(self, kind: str, entry: Entry) -> bytes:
        if not self._form.is_table:
            return _line(kind, encoded(entry))
        columns = self._store.columns
        one = row(columns, entry.told, entry.made, self._form.include, entry.cache)
        return _line(kind, table(columns, [one], {"resourceVersion": str(entry.version)}))

    def _bookmark(self, version: int, annotations: Mapping[str, str] | None = None) -> bytes:
        resource = self._store.resource
        metadata: Object = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        made: Object = {"kind": resource.object_kind, "apiVersion": resource.api_version, "metadata": metadata}
        if self._form.is_table:
            made = table(None, [{"cells": [], "object": made}], {"resourceVersion": str(version)})
        return _line("BOOKMARK", made)


def number_of(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise Failure(400, f"{name} is {text[:30]!r}; expected a number")
    return int(text)


def _line(kind: str, made: object) -> bytes:
    return msgspec.json.encode({"type": kind, "object": made}) + b"\n"

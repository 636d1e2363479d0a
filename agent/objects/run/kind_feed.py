# SPDX-License-Identifier: Apache-2.0
"""Keeps the objects of one kind as its plane shows them, with versions, for everybody who lists and watches.

A kind whose plane tells what changes is followed from the first question on; any other is listed at each question, and
once a second while somebody watches. Never: waits for a watcher; who reads too slowly begins again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import structlog

from agent.api.errors import ApiError
from agent.kinds.shown import How, Offer
from agent.kinds.table import Object, names_of
from agent.model.feed import ChangeKind
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.objects.feed import Change, Entry, ObjectFeed, Versions, by_key

log = structlog.get_logger(plane="api")

Spawn = Callable[[Any], object]
FindOffer = Callable[[], Awaitable[Offer]]
LOOK_S, AGAIN_S = 1.0, 1.0
SYNC_S = 30.0
FAILURES = (ApiError, Refused, RuntimeCallFailed)


class NotKnownYet(Exception):
    """A plane has not told its objects in time."""


class KindFeed:
    """`find_offer` gives what is shown of a kind, whose plural is `name`; it raises ApiError or Refused where its plane
    does not run. `can_follow`: all that changes of it is told."""

    def __init__(self, name: str, find_offer: FindOffer, versions: Versions, spawn: Spawn, *, can_follow: bool) -> None:
        self._name = name
        self.can_follow = can_follow
        self.feed = ObjectFeed(versions)
        self._find_offer = find_offer
        self._spawn = spawn
        self._bell = asyncio.Event()
        self._is_followed = False
        self._is_looking = False
        self._synced = asyncio.Event()
        self._listing = asyncio.Lock()
        self._watchers = 0

    @property
    def version(self) -> int:
        return self.feed.version

    async def entries(self) -> dict[tuple[str, str], Entry]:
        await self.refresh()
        return self.feed.entries

    async def refresh(self) -> None:
        """Raises NotKnownYet, ApiError or Refused."""
        if not self.can_follow:
            async with self._listing:
                self.replace(await self._listed())
            return
        if not self._is_followed:
            self._is_followed = True
            self._spawn(self._follow())
        try:
            async with asyncio.timeout(SYNC_S):
                await self._synced.wait()
        except TimeoutError as error:
            text = f"{self._name} are not known yet; `kepctl status` says what their plane waits for"
            raise NotKnownYet(text) from error

    def replace(self, objects: dict[tuple[str, str], Object]) -> None:
        before = self.version
        self.feed.replace(objects)
        if self.version != before:
            self.ring()

    def put(self, key: tuple[str, str], made: Object | None, *, is_other: bool = False) -> None:
        self.feed.put(key, made, is_other=is_other)
        self.ring()

    def tell(self, change: Change) -> None:
        self.feed.tell(change)
        self.ring()

    def ring(self) -> None:
        self._bell.set()
        self._bell = asyncio.Event()

    async def wait(self, most_s: float) -> None:
        """For the next change."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._bell.wait(), most_s)

    async def _listed(self) -> dict[tuple[str, str], Object]:
        offer = await self._find_offer()
        return by_key([made async for _, made in offer.walk(How(with_objects=True, is_wide=True), "")])

    async def _follow(self) -> None:
        """What ends it early makes it begin again with everything."""
        while True:
            try:
                await self._follow_once()
            except FAILURES as error:
                if not self._synced.is_set():
                    log.debug("kind_not_followed", kind=self._name, error=str(error))
            await asyncio.sleep(AGAIN_S)

    async def _follow_once(self) -> None:
        follow = (await self._find_offer()).follow
        if follow is None:
            return
        first: dict[tuple[str, str], Object] | None = {}
        async for change in follow():
            made = change.item
            if made is None:
                if first is not None:
                    self.replace(first)
                    first = None
                    self._synced.set()
            elif first is not None:
                first[names_of(made)] = made
            else:
                self.put(names_of(made), None if change.kind is ChangeKind.DELETED else made)

    async def changes(
        self, since: int, look: Callable[[], Awaitable[object]] | None = None
    ) -> AsyncIterator[Change | None]:
        """Those after a version, for ever; None after each that is the last one for now. `look` is done each second
        while somebody watches. Raises OutOfReach."""
        self._watchers += 1
        if not self._is_looking and (look is not None or not self.can_follow):
            self._is_looking = True
            self._spawn(self._look(look or self.refresh))
        try:
            while True:
                bell = self._bell
                for change in self.feed.after(since):
                    since = change.version
                    yield change
                yield None
                await bell.wait()
        finally:
            self._watchers -= 1

    async def _look(self, look: Callable[[], Awaitable[object]]) -> None:
        try:
            while self._watchers:
                with suppress(NotKnownYet, *FAILURES):
                    await look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._is_looking = False

# SPDX-License-Identifier: Apache-2.0
"""Following one resource: carries out what the reflector says.

Lives as long as the generator that `news` returns; closing that closes the stream.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec

from agent.drivers.kube.complaints import UnreadableObjects
from agent.drivers.kube.connection import JSON, METADATA, KubeConnection, KubeRequest, KubeTiming, Opened
from agent.drivers.kube.decoding import ApiObject, BookmarkLine, ChangeLine, Decoding
from agent.drivers.kube.errors import ApiRefused, KubeError, Unreachable
from agent.drivers.kube.lines import LineSplitter
from agent.drivers.kube.reflector import Phase, Position, Reply, advance, classify
from agent.drivers.kube.resource import (
    Bookmark,
    ChangeType,
    Disconnected,
    Malformed,
    News,
    ObjectKey,
    Replaced,
    Resource,
    Resumed,
)
from agent.model.clock import Clock

T = TypeVar("T")


class RequestEnding(msgspec.Struct, frozen=True):
    answer: Reply
    resource_version: str = ""
    continue_token: str = ""
    error: KubeError | None = None

    @property
    def retry_after_s(self) -> float | None:
        return self.error.retry_after_s if isinstance(self.error, ApiRefused) else None


class Follower(Generic[T]):
    """One resource. Not for use by two."""

    def __init__(
        self,
        connection: KubeConnection,
        resource: Resource[ApiObject],
        decoding: Decoding[T],
        *,
        clock: Clock,
        timing: KubeTiming,
        luck: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._resource = resource
        self._decoding = decoding
        self._clock = clock
        self._timing = timing
        self._luck = luck
        self._at = Position()
        self._listed: list[T] = []
        self._streamed: dict[ObjectKey, T] = {}
        self._unreadable: set[ObjectKey] = set()
        self._complaints = UnreadableObjects()
        self._is_out = False

    def __repr__(self) -> str:
        return f"Follower({self._resource}: {self._at})"

    async def news(self) -> AsyncGenerator[News[T], None]:
        """All there is, then every change, for ever."""
        while True:
            ending = RequestEnding(Reply.FAILED)
            async with aclosing(self._answers()) as answers:
                async for answer in answers:
                    if isinstance(answer, RequestEnding):
                        ending = answer
                    else:
                        yield answer
            wait_s, told = self._advance(ending)
            if told:
                yield told
            if wait_s > 0:
                await self._clock.sleep(wait_s)

    async def _answers(self) -> AsyncGenerator[News[T] | RequestEnding, None]:
        """One request to its end; a failure is an end like the others."""
        request = self._page() if self._at.phase is Phase.PAGING else self._stream()
        try:
            async with aclosing(request) as answers:
                async for answer in answers:
                    yield answer
        except KubeError as error:
            yield RequestEnding(classify(error), error=error)

    def _advance(self, ending: RequestEnding) -> tuple[float, News[T] | None]:
        decision = advance(
            self._at,
            ending.answer,
            luck=self._luck(),
            resource_version=ending.resource_version,
            continue_token=ending.continue_token,
            retry_after_s=ending.retry_after_s,
            server_count=len(self._connection.ring),
        )
        self._at = decision.position
        if ending.answer is Reply.LAST_PAGE:
            return decision.wait_s, self._replaced(self._listed)
        if decision.is_outage and ending.error is not None:
            self._is_out = True
            return decision.wait_s, Disconnected(ending.error, decision.wait_s)
        return decision.wait_s, None

    async def _page(self) -> AsyncGenerator[News[T] | RequestEnding, None]:
        token = self._at.continue_token
        if not token:
            self._start_list()
        # A list takes one token of the rate limit, however many pages it has.
        ask = self._ask("list", 0, is_rated=not token)
        async with self._connection.opened(ask) as opened:
            page = self._decoding.page(await opened.body(self._timing.body_silence_s))
        self._listed += page.items
        for malformed in page.malformed:
            self._unreadable.add(malformed.key)
            if self._complaints.is_new(malformed):
                yield malformed
        answer = Reply.PAGE if page.continue_token else Reply.LAST_PAGE
        yield RequestEnding(answer, page.resource_version, page.continue_token)

    async def _stream(self) -> AsyncGenerator[News[T] | RequestEnding, None]:
        if self._at.phase is Phase.STREAMING:
            self._start_list()
        timeout_s = max(1, int(self._timing.watch_s * (1 + self._luck())))
        began_s = self._clock.now_s()
        has_delivered = False
        async with self._connection.opened(self._ask("watch", timeout_s)) as opened:
            if self._is_out and self._at.phase is Phase.WATCHING:
                self._is_out = False
                yield Resumed(self._at.resource_version)
            async with aclosing(self._lines(opened, timeout_s)) as lines:
                async for line in lines:
                    has_delivered = True
                    for news in self._taken(self._decoding.event(line)):
                        yield news
        is_short = not has_delivered and self._clock.now_s() - began_s < self._timing.short_watch_s
        yield RequestEnding(Reply.ENDED_AT_ONCE if is_short else Reply.ENDED)

    async def _lines(self, opened: Opened, timeout_s: int) -> AsyncGenerator[bytes, None]:
        splitter = LineSplitter()
        while True:
            is_list = self._at.phase is Phase.STREAMING
            silence_s = self._timing.body_silence_s if is_list else timeout_s + self._timing.watch_slack_s
            chunk = await opened.read(silence_s)
            if not chunk:
                break
            for line in splitter.feed(chunk):
                yield line
        if splitter.has_partial_line:
            raise Unreachable(f"watch {self._resource}: the answer ended in the middle of a line")

    def _taken(self, event: ChangeLine[T] | BookmarkLine) -> list[News[T]]:
        """What a line of the stream means for whoever follows."""
        if self._at.phase is Phase.STREAMING:
            return self._taken_initial(event)
        self._at = self._at.delivered(event.resource_version)
        if isinstance(event, BookmarkLine):
            return [Bookmark(event.resource_version)]
        if isinstance(event.news, Malformed):
            return [event.news] if self._complaints.is_new(event.news) else []
        self._complaints.settle(event.key)
        return [event.news]

    def _taken_initial(self, event: ChangeLine[T] | BookmarkLine) -> list[News[T]]:
        if isinstance(event, BookmarkLine):
            if not event.ends_initial_events:
                return []
            self._at = advance(self._at, Reply.INITIAL_END, resource_version=event.resource_version).position
            return [self._replaced(list(self._streamed.values()))]
        self._streamed.pop(event.key, None)
        self._unreadable.discard(event.key)
        if isinstance(event.news, Malformed):
            if not event.news.is_gone:
                self._unreadable.add(event.key)
            return [event.news] if self._complaints.is_new(event.news) else []
        if event.news.change is not ChangeType.DELETED:
            self._streamed[event.key] = event.news.object
        return []

    def _start_list(self) -> None:
        self._listed = []
        self._streamed = {}
        self._unreadable = set()

    def _replaced(self, items: list[T]) -> Replaced[T]:
        replaced = Replaced(items, self._at.resource_version, frozenset(self._unreadable))
        self._complaints.keep_only(self._unreadable)
        self._is_out = False
        self._start_list()
        return replaced

    def _ask(self, verb: str, timeout_s: int, *, is_rated: bool = True) -> KubeRequest:
        return KubeRequest(
            verb=verb,
            what=str(self._resource),
            path=self._resource.path,
            query=self._resource.query(self._at.options(timeout_s)),
            accept=METADATA if self._resource.is_metadata_only else JSON,
            is_rated=is_rated,
            answer_s=self._timing.watch_answer_s if self._at.phase is Phase.WATCHING else None,
        )

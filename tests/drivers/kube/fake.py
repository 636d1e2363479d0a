# SPDX-License-Identifier: Apache-2.0
"""An API server and its client in one, in memory, for the tests of planes.

The same methods as `KubeClient` with the same news in the same order, and faults a test asks for. Objects are given as
JSON values, decoded by the real decoder, and refused with the server's words. Never: waits for time.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Generic, TypeVar, cast, overload

import msgspec

from agent.drivers.kube.complaints import UnreadableObjects
from agent.drivers.kube.decoding import ApiObject, BookmarkLine, Decoding
from agent.drivers.kube.errors import AnswerUnreadable, ApiRefused, KubeError, Status, Unreachable, refusal
from agent.drivers.kube.resource import (
    MERGE_PATCH,
    Bookmark,
    Disconnected,
    Malformed,
    News,
    Replaced,
    Resource,
    Resumed,
)
from tests.drivers.kube.fake_objects import KINDS, FakeObjects, StoreRefusal, event_object, list_body, read_selection

K = TypeVar("K", bound=ApiObject)
T = TypeVar("T")


class FakeKube:
    """Same methods as the client; `put`, `delete`, `break_off`, `restore`, `relist`, `bookmark` are for the test."""

    def __init__(self) -> None:
        self.objects = FakeObjects()
        self.failures: dict[str, KubeError] = {}
        self.calls: list[str] = []
        self._outage: KubeError | None = None
        self._lists = 0
        self._bookmarks = 0

    async def close(self) -> None:
        """Nothing to close."""

    def set_rate(self, qps: float, burst: int) -> None:
        """There is no limit here."""

    def put(self, plural: str, stored: Mapping[str, Any]) -> None:
        """Create or replace an object, such as `put("services", {"metadata": {…}, "spec": {…}})`."""
        self.objects.put(plural, dict(stored))

    def delete(self, plural: str, name: str, namespace: str = "") -> None:
        self.objects.delete(plural, namespace, name)

    def break_off(self, error: KubeError | None = None) -> None:
        """No news and no answers until `restore`."""
        self._outage = error or Unreachable("the fake was told to break off")
        self.objects.ring()

    def restore(self) -> None:
        """News again, those of the outage included."""
        self._outage = None
        self.objects.ring()

    def relist(self) -> None:
        """Everybody gets everything once more."""
        self._lists += 1
        self.objects.ring()

    def bookmark(self) -> None:
        """A sign of life for everybody."""
        self._bookmarks += 1
        self.objects.ring()

    @overload
    def follow(self, resource: Resource[K]) -> AsyncGenerator[News[K], None]: ...
    @overload
    def follow(self, resource: Resource[K], convert: Callable[[K], T]) -> AsyncGenerator[News[T], None]: ...
    def follow(self, resource: Resource[K], convert: Callable[[K], object] | None = None) -> AsyncGenerator[Any, None]:
        source = cast("Resource[ApiObject]", resource)
        made = cast("Callable[[ApiObject], object]", convert or (lambda item: item))
        return self._news(source, Decoding(source, made))

    async def get(self, resource: Resource[K], name: str) -> K:
        self._enter("get", f"{resource.plural}/{name}")
        try:
            stored = self.objects.get(resource.plural, resource.namespace or "", name)
        except StoreRefusal as no:
            raise _refused("get", f"{resource.plural}/{name}", no) from None
        try:
            return msgspec.json.decode(msgspec.json.encode(stored), type=resource.kind)
        except msgspec.DecodeError as error:
            raise AnswerUnreadable(f"get {resource.plural}/{name}: {error}") from error

    async def create(self, resource: Resource[K], body: Mapping[str, object]) -> None:
        self._enter("create", str(resource))
        try:
            self.objects.create(resource.plural, dict(body), resource.namespace or "")
        except StoreRefusal as no:
            raise _refused("create", str(resource), no) from None

    async def patch(
        self, resource: Resource[K], name: str, body: object, *, content_type: str = MERGE_PATCH, subresource: str = ""
    ) -> None:
        """As the client, merge and JSON patches only."""
        self._enter("patch", f"{resource.plural}/{name}" + (f"/{subresource}" if subresource else ""))
        try:
            self.objects.patch(resource.plural, resource.namespace or "", name, body, content_type)
        except StoreRefusal as no:
            raise _refused("patch", f"{resource.plural}/{name}", no) from None

    def _enter(self, verb: str, what: str) -> None:
        self.calls.append(f"{verb} {what}")
        failure = self.failures.pop(verb, None) or self._outage
        if failure is not None:
            raise failure

    async def _news(self, resource: Resource[ApiObject], decoding: Decoding[T]) -> AsyncGenerator[News[T], None]:
        watch = FakeWatch(self.objects, resource, decoding)
        lists, bookmarks = -1, self._bookmarks
        told: KubeError | None = None
        while True:
            rings = self.objects.rings
            if self._outage is not None:
                if self._outage is not told:
                    told = self._outage
                    yield Disconnected(told, 1.0)
            elif lists != self._lists or watch.is_too_old:
                lists, told = self._lists, None
                for news in watch.listed():
                    yield news
            else:
                if told is not None:
                    told = None
                    yield Resumed(str(watch.resource_version))
                for news in watch.changes():
                    yield news
                if bookmarks != self._bookmarks:
                    bookmarks = self._bookmarks
                    yield Bookmark(str(watch.resource_version))
            await self.objects.changed(rings)


class FakeWatch(Generic[T]):
    """What one follower has seen. Lives as long as its generator."""

    def __init__(self, objects: FakeObjects, resource: Resource[ApiObject], decoding: Decoding[T]) -> None:
        self.resource_version = -1
        self._objects = objects
        self._kind = KINDS[resource.plural]
        self._selection = read_selection(
            self._kind, resource.namespace or "", resource.label_selector, resource.field_selector
        )
        self._decoding = decoding
        self._complaints = UnreadableObjects()

    @property
    def is_too_old(self) -> bool:
        """Whether history no longer reaches back to what was seen."""
        return self.resource_version < self._objects.oldest

    def listed(self) -> list[News[T]]:
        self.resource_version = self._objects.resource_version
        items = self._objects.select(self._kind.plural, self._selection)
        version = str(self.resource_version)
        page = self._decoding.page(list_body(self._kind, items, {"resourceVersion": version}))
        unreadable = frozenset(malformed.key for malformed in page.malformed)
        news: list[News[T]] = [malformed for malformed in page.malformed if self._complaints.is_new(malformed)]
        self._complaints.keep_only(unreadable)
        return [*news, Replaced(page.items, version, unreadable)]

    def changes(self) -> list[News[T]]:
        news: list[News[T]] = []
        for entry in self._objects.since(self._kind.plural, self.resource_version):
            change = entry.seen_by(self._selection)
            if change is None:
                continue
            line = msgspec.json.encode({"type": change, "object": event_object(self._kind, entry.shown(change))})
            step = self._decoding.event(line)
            if isinstance(step, BookmarkLine):
                continue
            if isinstance(step.news, Malformed):
                news += [step.news] if self._complaints.is_new(step.news) else []
            else:
                self._complaints.settle(step.key)
                news.append(step.news)
        self.resource_version = self._objects.resource_version
        return news


def _refused(verb: str, what: str, no: StoreRefusal) -> ApiRefused:
    status = Status(message=str(no.body["message"]), reason=str(no.body["reason"]), code=no.code)
    return refusal(f"{verb} {what} at the fake", no.code, status)

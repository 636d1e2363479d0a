# SPDX-License-Identifier: Apache-2.0
"""What the API server sends, turned into the caller's values.

One pass from JSON to typed objects; only when that fails, a second one that finds out which object is to blame.
Never: builds a field that is not declared. One bad object never spoils its neighbours.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import msgspec

from agent.drivers.kube.errors import AnswerUnreadable, ApiRefused, Status, refusal, shown_message
from agent.drivers.kube.resource import Changed, ChangeType, Malformed, ObjectKey, Resource

END_OF_INITIAL_EVENTS = "k8s.io/initial-events-end"
CHANGES = {change.value: change for change in ChangeType}


class Meta(Protocol):
    """What every kind must declare of its metadata; `namespace` where it has one."""

    @property
    def name(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class ApiObject(Protocol):
    @property
    def metadata(self) -> Meta: ...


T = TypeVar("T")


class ListMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListAnswer(msgspec.Struct, Generic[T], frozen=True):
    metadata: ListMeta
    items: list[T] | None = None


class EventAnswer(msgspec.Struct, Generic[T], frozen=True, gc=False):
    type: str
    object: T


class MarkAnnotations(msgspec.Struct, frozen=True, gc=False):
    initial_events_end: str = msgspec.field(default="", name=END_OF_INITIAL_EVENTS)


class BareMeta(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    annotations: MarkAnnotations | None = None


class BareObject(msgspec.Struct, frozen=True, gc=False):
    metadata: BareMeta


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]
    resource_version: str
    continue_token: str
    malformed: tuple[Malformed, ...] = msgspec.field(default=())


class ChangeLine(msgspec.Struct, Generic[T], frozen=True):
    resource_version: str
    news: Changed[T] | Malformed
    key: ObjectKey


class BookmarkLine(msgspec.Struct, frozen=True):
    resource_version: str
    ends_initial_events: bool


LISTS_OF_RAW = msgspec.json.Decoder(ListAnswer[msgspec.Raw])
EVENTS_OF_RAW = msgspec.json.Decoder(EventAnswer[msgspec.Raw])
BARE = msgspec.json.Decoder(BareObject)
STATUS = msgspec.json.Decoder(Status)
# msgspec lets bytes that are no UTF-8 pass as an error of Python's.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_status(body: bytes) -> Status | None:
    """The Status in an error's body; None when the body is something else."""
    try:
        return STATUS.decode(body)
    except UNREADABLE:
        return None


class Decoding(Generic[T]):
    """Decoders for one resource. `convert` makes the value to deliver; its ValueError blames the object."""

    def __init__(self, resource: Resource[ApiObject], convert: Callable[[ApiObject], T]) -> None:
        self._what = str(resource)
        self._convert = convert
        self._object = msgspec.json.Decoder(resource.kind)
        self._list = msgspec.json.Decoder(ListAnswer[resource.kind])  # type: ignore[name-defined]
        self._event = msgspec.json.Decoder(EventAnswer[resource.kind])  # type: ignore[name-defined]

    def page(self, body: bytes | bytearray) -> ListPage[T]:
        try:
            answer = self._list.decode(body)
        except UNREADABLE:
            return self._page_one_by_one(body)
        try:
            items = [self._convert(item) for item in answer.items or ()]
        except ValueError:
            return self._page_one_by_one(body)
        return ListPage(items, answer.metadata.resource_version, answer.metadata.continue_)

    def event(self, line: bytes) -> ChangeLine[T] | BookmarkLine:
        """One line of a watch. Raises the Refused that an ERROR event stands for."""
        try:
            answer = self._event.decode(line)
        except UNREADABLE:
            return self._unusual(line)
        change = CHANGES.get(answer.type)
        if change is None:
            return self._unusual(line)
        meta = answer.object.metadata
        key = ObjectKey(getattr(meta, "namespace", ""), meta.name)
        try:
            return ChangeLine(meta.resource_version, Changed(change, self._convert(answer.object)), key)
        except ValueError as error:
            news = Malformed(key, shown_message(str(error)), change is ChangeType.DELETED)
            return ChangeLine(meta.resource_version, news, key)

    def _page_one_by_one(self, body: bytes | bytearray) -> ListPage[T]:
        try:
            answer = LISTS_OF_RAW.decode(body)
        except UNREADABLE as error:
            raise AnswerUnreadable(f"list {self._what}: the answer is not a list: {reason_of(error)}") from error
        items: list[T] = []
        malformed: list[Malformed] = []
        for raw in answer.items or ():
            try:
                items.append(self._convert(self._object.decode(raw)))
            except (ValueError, RecursionError) as error:
                malformed.append(Malformed(self._bare_key(raw)[0], reason_of(error)))
        return ListPage(items, answer.metadata.resource_version, answer.metadata.continue_, tuple(malformed))

    def _unusual(self, line: bytes) -> ChangeLine[T] | BookmarkLine:
        """A bookmark, an error, or an object that does not fit."""
        try:
            answer = EVENTS_OF_RAW.decode(line)
        except UNREADABLE as error:
            raise AnswerUnreadable(f"watch {self._what}: a line is not an event: {reason_of(error)}") from error
        if answer.type == "ERROR":
            raise self._refusal(answer.object)
        key, meta = self._bare_key(answer.object)
        if answer.type == "BOOKMARK":
            ends = meta.annotations is not None and meta.annotations.initial_events_end == "true"
            return BookmarkLine(meta.resource_version, ends)
        change = CHANGES.get(answer.type)
        if change is None:
            raise AnswerUnreadable(f"watch {self._what}: event type {shown_message(answer.type)} is unknown")
        text = "unreadable"
        try:
            self._object.decode(answer.object)
        except UNREADABLE as error:
            text = reason_of(error)
        return ChangeLine(meta.resource_version, Malformed(key, text, change is ChangeType.DELETED), key)

    def _refusal(self, raw: msgspec.Raw) -> ApiRefused:
        status = decode_status(bytes(raw)) or Status()
        return refusal(f"watch {self._what}", status.code or 500, status)

    def _bare_key(self, raw: msgspec.Raw) -> tuple[ObjectKey, BareMeta]:
        try:
            meta = BARE.decode(raw).metadata
        except UNREADABLE as error:
            raise AnswerUnreadable(f"{self._what}: an object without readable metadata: {reason_of(error)}") from error
        return ObjectKey(meta.namespace, meta.name), meta


def reason_of(error: Exception) -> str:
    """`spec.ports[0].port: expected int, got str` out of the decoder's words."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    said, _, place = str(error).partition(" - at `")
    place = place.rstrip("`").removeprefix("$").removeprefix(".")
    said = shown_message(said.replace("`", "")).rstrip(".")
    said = said[:1].lower() + said[1:]
    return f"{place}: {said}" if place else said

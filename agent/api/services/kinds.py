# SPDX-License-Identifier: Apache-2.0
"""KindService: asks the other services what a kind has, and answers with its rows and objects.

It asks them as a caller would, inside of this process; what each kind asks and shows is in `agent/kinds`.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.rpc import code_pb2
from msgspec.structs import replace

from agent.api.errors import ApiError, FailureReason
from agent.api.service import served_method
from agent.kinds.registry import BY_WORD, DEFAULT_NAMESPACE, KINDS, Kind
from agent.kinds.selection import Scope, in_scope, without_ended
from agent.kinds.shown import AnyListing, Ask, How, Shown, described_by, shown_of
from agent.kinds.table import Row, columns_of, rows_of, whole_of
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.kepd.v1 import kind_pb2 as pb
from agent.wire.kepd.v1 import list_pb2

ROWS_A_TURN = 50
WITHOUT_OBJECT = (list_pb2.CHANGE_TYPE_BOOKMARK, list_pb2.CHANGE_TYPE_DELETED)


class KindService:
    def __init__(self, services: Mapping[ServiceDescriptor, object]) -> None:
        self._services = {one.full_name: (one, served) for one, served in services.items()}

    async def list_kinds(self, _request: pb.ListKindsRequest) -> pb.ListKindsResponse:
        return pb.ListKindsResponse(kinds=[_known(kind) for kind in KINDS])

    async def list_rows(self, request: pb.ListRowsRequest) -> pb.ListRowsResponse:
        kind = kind_named(request.kind)
        shown = shown_of(kind)
        how = How(with_objects=request.with_objects or bool(request.selector), is_wide=request.is_wide)
        asks = shown.asks(kind, how)
        first = asks[0].request
        if "options" in first.DESCRIPTOR.fields_by_name:
            first.options.page_token = request.options.page_token  # type: ignore[attr-defined]
            first.options.page_size = request.options.page_size  # type: ignore[attr-defined]
        answers = await self._answers(asks)
        listing = shown.listing(kind, answers)
        if listing.grouped is not None and request.with_objects:
            # What is one object may lie on several pages.
            listing = shown.listing(kind, [await self._all_pages(asks[0], answers[0]), *answers[1:]])
        if not (request.with_ended or request.with_objects or request.selector):
            listing = without_ended(listing)
        listing = in_scope(listing, kind, Scope(request.namespace, request.selector))
        answer = pb.ListRowsResponse(kind=listing.kind, is_kubernetes=listing.is_kubernetes, empty=listing.empty)
        answer.rows.extend(await _rows(listing, is_wide=request.is_wide, with_objects=request.with_objects))
        if answers[0] is not None and "meta" in answers[0].DESCRIPTOR.fields_by_name:
            answer.meta.CopyFrom(answers[0].meta)
        if not request.options.page_token:
            answer.columns.extend(_columns(listing, is_wide=request.is_wide))
            answer.notes.extend(listing.notes)
            answer.whole = whole_of(listing) if request.with_objects else b""
        return answer

    async def watch_rows(self, request: pb.WatchRowsRequest) -> AsyncIterator[pb.WatchRowsResponse]:
        kind = kind_named(request.kind)
        shown = shown_of(kind)
        how = How(with_objects=request.with_objects or bool(request.selector), is_wide=request.is_wide)
        if shown.watch is None:
            text = f"changes of {kind.plural} cannot be followed; list them again and again"
            raise ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.NOT_WATCHED, text)
        watch, scope = shown.watch(how), Scope(request.namespace, request.selector)
        others = await self._answers(shown.asks(kind, how)[1:])
        is_first, is_past = True, request.with_ended or how.with_objects
        async for change in self._method(watch.ask)(watch.ask.request):
            is_past = is_past or change.type == list_pb2.CHANGE_TYPE_BOOKMARK
            found = watch.listed()
            if change.type not in WITHOUT_OBJECT or (watch.shows_last and change.HasField(watch.item)):
                getattr(found, watch.items).append(getattr(change, watch.item))
            listing = shown.listing(kind, [found, *others])
            listing = in_scope(listing if is_past else without_ended(listing), kind, scope)
            rows = rows_of(listing, is_wide=request.is_wide, with_objects=request.with_objects)
            answer = pb.WatchRowsResponse(type=change.type, rows=map(_row, rows))
            if is_first:
                answer.kind, answer.is_kubernetes = listing.kind, listing.is_kubernetes
                answer.columns.extend(_columns(listing, is_wide=request.is_wide))
                is_first = False
            if rows or answer.kind or change.type == list_pb2.CHANGE_TYPE_BOOKMARK:
                yield answer

    async def describe_object(self, request: pb.DescribeObjectRequest) -> pb.DescribeObjectResponse:
        kind = kind_named(request.kind)
        describe = described_by(kind)
        if describe is None:
            raise Refused("selection", f"{kind.plural} cannot be described; kepctl get shows them")
        steps = describe(kind, request.namespace or DEFAULT_NAMESPACE, request.name)
        described = await self._carried_out(steps)
        return pb.DescribeObjectResponse(lines=described.lines, event_filters=described.event_filters)

    async def _carried_out(self, steps: Generator[Ask, Any, Any]) -> Any:  # noqa: ANN401  # what the steps return
        """Ask what each step asks, and give it the answer; None where its plane is off and others have the rest."""
        answer: Any = None
        try:
            while True:
                answer = await self._answer(steps.send(answer), is_whole=True)
        except StopIteration as end:
            return end.value

    async def _answers(self, asks: Sequence[Ask]) -> list[Any]:
        """None for one that may fail and does; where all do, the first says why."""
        found = [await self._answer(ask, is_whole=place > 0) for place, ask in enumerate(asks)]
        if asks and all(one is None for one in found):
            await self._method(asks[0])(asks[0].request)
        return found

    async def _answer(self, ask: Ask, *, is_whole: bool) -> Any:  # noqa: ANN401  # the message that is asked for
        """None for one that may fail and does. `is_whole`: of a list all pages."""
        try:
            answer = await self._method(ask)(ask.request)
            return await self._all_pages(ask, answer) if is_whole else answer
        except (ApiError, Refused, RuntimeCallFailed):
            if not ask.may_fail:
                raise
            return None

    async def _all_pages(self, ask: Ask, found: Message) -> Message:
        while token := found.meta.next_page_token if "meta" in found.DESCRIPTOR.fields_by_name else "":  # type: ignore[attr-defined]
            ask.request.options.page_token = token  # type: ignore[attr-defined]
            page = await self._method(ask)(ask.request)
            found.MergeFrom(page)
            found.meta.CopyFrom(page.meta)  # type: ignore[attr-defined]
        return found

    def _method(self, ask: Ask) -> Any:  # noqa: ANN401  # each has its own
        name, _, method = ask.method.partition("/")
        if name not in self._services:
            raise Refused("selection", f"{name} is not served here")
        descriptor, service = self._services[name]
        return served_method(service, descriptor.methods_by_name[method])


def kind_named(word: str) -> Kind:
    kind = BY_WORD.get(word.lower())
    if kind is None:
        raise Refused("selection", f'no kind "{word[:100]}"; kinds are {", ".join(one.plural for one in KINDS)}')
    return kind


async def _rows(listing: AnyListing, *, is_wide: bool, with_objects: bool) -> list[pb.TableRow]:
    """Others have their turn meanwhile; what is grouped has to be made at once."""
    made: list[pb.TableRow] = []
    step = max(len(listing.items), 1) if listing.grouped is not None and with_objects else ROWS_A_TURN
    for begin in range(0, len(listing.items), step):
        part = replace(listing, items=listing.items[begin : begin + step])
        made += map(_row, rows_of(part, is_wide=is_wide, with_objects=with_objects))
        await asyncio.sleep(0)
    return made


def _row(row: Row) -> pb.TableRow:
    return pb.TableRow(
        cells=row.cells, shown=row.shown, namespace=row.namespace, name=row.name, short=row.short, object=row.object,
        rows_back=row.rows_back,
    )  # fmt: skip


def _columns(listing: AnyListing, *, is_wide: bool) -> list[pb.TableColumn]:
    return [pb.TableColumn(title=one.title, wide=one.wide) for one in columns_of(listing, is_wide=is_wide)]


def _known(kind: Kind) -> pb.KnownKind:
    shown: Shown = shown_of(kind)
    return pb.KnownKind(
        plural=kind.plural, singular=kind.singular, short=kind.short, api=kind.api, has_namespace=kind.has_namespace,
        is_watched=shown.watch is not None, is_described=described_by(kind) is not None,
    )  # fmt: skip

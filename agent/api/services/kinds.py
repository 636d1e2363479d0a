# SPDX-License-Identifier: Apache-2.0
"""The part of ObjectService that shows: objects that planes offer of each kind, as they are, as rows and in full."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from typing import Any

import msgspec
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message
from google.rpc import code_pb2

from agent.api.errors import Absent, ApiError, FailureReason
from agent.api.paging import in_order, page, place_of
from agent.api.watching import narrowed
from agent.kinds.kind import DEFAULT_NAMESPACE, Kind
from agent.kinds.registry import BY_WORD, KINDS
from agent.kinds.selection import Scope, empty_text, facts_test, find_named, scope_test
from agent.kinds.shown import Ask, How, Objects, Offer, Shown, described_by, shown_of
from agent.kinds.table import Object, names_of, without_facts
from agent.model.feed import ChangeKind, FeedChange
from agent.model.placed import Walk, begins, is_over, within
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.kepd.v1 import list_pb2
from agent.wire.kepd.v1 import object_pb2 as pb

AT_A_TIME = 50
CHANGES = {
    ChangeKind.ADDED: list_pb2.CHANGE_TYPE_ADDED,
    ChangeKind.MODIFIED: list_pb2.CHANGE_TYPE_MODIFIED,
    ChangeKind.DELETED: list_pb2.CHANGE_TYPE_DELETED,
    ChangeKind.BOOKMARK: list_pb2.CHANGE_TYPE_BOOKMARK,
}
OBJECTS = "kepd.v1.ObjectService"
EVERYTHING = Scope()


class ShownKinds:
    """`services` are those of the API; those that offer objects have `offers` by the plural of their kinds."""

    def __init__(self, services: Mapping[ServiceDescriptor, object]) -> None:
        self._services = {one.full_name: (one, served) for one, served in services.items()}

    async def list_kinds(self, _request: pb.ListKindsRequest) -> pb.ListKindsResponse:
        return pb.ListKindsResponse(kinds=[_known(kind) for kind in KINDS])

    async def objects(self, request: pb.ListRequest) -> pb.ListResponse:
        kind = kind_named(request.kind)
        scope, options = Scope(request.namespace, request.selector), list_pb2.ListOptions()
        options.page_size = request.options.page_size
        # What refuses comes before the first object.
        await self._offers(kind)
        made = self._made(kind, How(with_objects=True), scope, place_of(request.options))
        walk = _filtered(request.options.filter, made)
        answers, meta = await page(walk, options, _encoded)
        return pb.ListResponse(objects=[answer.object for answer in answers], meta=meta)

    async def get(self, request: pb.GetRequest) -> pb.GetResponse:
        kind = kind_named(request.kind)
        objects = await self.all(kind, How(with_objects=True))
        known = [shown_of(kind).named(made) for made in objects]
        named = find_named(kind, request.name, known, request.namespace or DEFAULT_NAMESPACE, elsewhere=False)
        return _encoded(objects[known.index(named)])

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.WatchResponse]:
        kind = kind_named(request.kind)
        is_wanted = facts_test(request.filter)
        async for change in self._changes(kind, Scope(request.namespace, request.selector), is_wanted):
            made = msgspec.json.encode(change.item) if change.item is not None else b""
            yield pb.WatchResponse(type=CHANGES[change.kind], object=made, resource_version=change.version)

    async def table(self, request: pb.TableRequest) -> pb.TableResponse:
        kind = kind_named(request.kind)
        shown, scope = shown_of(kind), Scope(request.namespace, request.selector)
        how = How(with_objects=request.with_objects or bool(request.selector), is_wide=request.is_wide)
        has_all = request.with_ended or request.with_objects or bool(request.selector) or shown.ended is None
        rows = Rows(kind, shown, is_wide=request.is_wide, with_objects=request.with_objects, with_ended=has_all)
        after = place_of(request.options)
        if request.with_objects and shown.grouped is not None:
            # What is one object may lie on several pages.
            answer = pb.TableResponse(rows=rows.of_groups(await self.all(kind, how, scope)))
        else:
            walk = rows.chosen(await self._chosen(kind, how, scope, after))
            found, meta = await page(walk, request.options, rows.row)
            answer = pb.TableResponse(rows=found, meta=meta)
        answer.kind, answer.is_kubernetes = shown.kind or kind.api, shown.is_kubernetes
        answer.empty = empty_text(kind, shown.empty, scope)
        if not after:
            answer.columns.extend(rows.columns())
            answer.notes.extend([*await self._notes(kind), *rows.notes()])
        if rows.left_out:
            answer.empty = "; ".join((answer.empty, *rows.notes()))
        return answer

    async def watch_table(self, request: pb.WatchTableRequest) -> AsyncIterator[pb.WatchTableResponse]:
        kind = kind_named(request.kind)
        shown, scope = shown_of(kind), Scope(request.namespace, request.selector)
        is_past = request.with_ended or request.with_objects or bool(request.selector)
        rows = Rows(kind, shown, is_wide=request.is_wide, with_objects=request.with_objects, with_ended=True)
        head: pb.WatchTableResponse | None = pb.WatchTableResponse(
            kind=shown.kind or kind.api, is_kubernetes=shown.is_kubernetes, columns=rows.columns()
        )
        async for change in self._changes(kind, scope):
            is_past = is_past or change.kind is ChangeKind.BOOKMARK
            answer, made = pb.WatchTableResponse(type=CHANGES[change.kind]), change.item
            is_gone = change.kind is ChangeKind.DELETED and not (shown.shows_last or request.with_objects)
            if made is not None and not is_gone and (is_past or not rows.has_ended(made)):
                answer.rows.append(rows.row(made))
            if head is not None:
                answer.MergeFrom(head)
            if answer.rows or head is not None or change.kind is ChangeKind.BOOKMARK:
                yield answer
            head = None

    async def describe(self, request: pb.DescribeRequest) -> pb.DescribeResponse:
        kind = kind_named(request.kind)
        describe = described_by(kind)
        if describe is None:
            raise Refused("selection", f"{kind.plural} cannot be described; kepctl get shows them")
        steps = describe(kind, request.namespace or DEFAULT_NAMESPACE, request.name)
        described = await self._carried_out(steps)
        return pb.DescribeResponse(lines=described.lines, event_filters=described.event_filters)

    async def all(self, kind: Kind, how: How, scope: Scope = EVERYTHING) -> list[Object]:
        walk = await self._chosen(kind, how, scope, "")
        return [made async for _, made in walk]

    async def offer(self, kind: Kind) -> Offer:
        """Each object by itself, with what manifests say. Raises ApiError or Refused where no plane that offers it
        runs."""
        (first, *_) = (await self._offers(kind)).values()
        follow = first.follow if shown_of(kind).is_watched else None
        return Offer(lambda how, after: self._made(kind, how, EVERYTHING, after), follow)

    async def _offers(self, kind: Kind) -> dict[str, Offer]:
        """By the services that run here; where none does, the first says why."""
        services, offers = shown_of(kind).services, {}
        for service in services:
            try:
                offers[service] = await self._offer(service, kind.plural)
            except (ApiError, Refused):
                if len(services) == 1:
                    raise
        return offers or {services[0]: await self._offer(services[0], kind.plural)}

    async def _offer(self, service: str, plural: str) -> Offer:
        _, served = self._services.get(service, (None, None))
        if isinstance(served, Absent):
            await served.answer(plural)
        offers: Mapping[str, Offer] = getattr(served, "offers", {})
        if plural not in offers:
            raise Refused("selection", f"{plural} are not shown: {service} is not served here")
        return offers[plural]

    async def _walked(self, kind: Kind, how: How, after: str) -> Walk[Object]:
        shown, manifests = shown_of(kind), {}
        if how.with_objects and shown.joined is not None:
            manifests = {names_of(made): made for made in await self._manifests(kind)}
        looked = 0
        for service, offer in (await self._offers(kind)).items():
            begin = begins(service) if len(shown.services) > 1 else ""
            if begin and is_over(begin, after):
                continue
            async for place, made in offer.walk(how, within(begin, after)):
                looked += 1
                if looked % AT_A_TIME == 0:
                    await asyncio.sleep(0)
                known = made if shown.joined is None else shown.joined(made, manifests.get(names_of(made), {}))
                yield begin + place, known

    async def _manifests(self, kind: Kind) -> list[Object]:
        """They are on the node where its source is files; an API server has them elsewhere."""
        return await self._answer(Objects(OBJECTS, kind.plural, may_fail=True)) or []

    async def _chosen(self, kind: Kind, how: How, scope: Scope, after: str) -> Walk[Object]:
        # What refuses comes before the first object.
        await self._offers(kind)
        holds = scope_test(kind, scope)

        async def chosen() -> Walk[Object]:
            async for place, made in self._walked(kind, how, after):
                if holds(made):
                    yield place, made

        return chosen()

    async def _made(self, kind: Kind, how: How, scope: Scope, after: str) -> Walk[Object]:
        """Each by itself, also of what is made of several."""
        grouped = shown_of(kind).grouped
        if grouped is None:
            walk = await self._chosen(kind, how, scope, after)
        else:
            made = [made for made, _ in grouped(await self.all(kind, how, scope))]
            walk = in_order(made, lambda one: "/".join(names_of(one)), after)
        async for placed in walk:
            yield placed

    async def _notes(self, kind: Kind) -> list[str]:
        return [
            note for offer in (await self._offers(kind)).values() if offer.notes is not None for note in offer.notes()
        ]

    async def _changes(
        self, kind: Kind, scope: Scope, is_wanted: Callable[[Object], bool] | None = None
    ) -> AsyncIterator[FeedChange[Object]]:
        holds, follow = scope_test(kind, scope), (await self.offer(kind)).follow
        if follow is None:
            text = f"changes of {kind.plural} cannot be followed; list them again and again"
            raise ApiError(code_pb2.FAILED_PRECONDITION, FailureReason.NOT_WATCHED, text)
        async for change in narrowed(
            follow(), lambda made: holds(made) and (is_wanted is None or is_wanted(made)), names_of
        ):
            yield change

    async def _carried_out(self, steps: Generator[Ask | Objects, Any, Any]) -> Any:  # noqa: ANN401  # what they return
        """Ask what each step asks, and give it the answer; None where its plane is off and others have the rest."""
        answer: Any = None
        try:
            while True:
                answer = await self._answer(steps.send(answer))
        except StopIteration as end:
            return end.value

    async def _answer(self, ask: Ask | Objects) -> Any:  # noqa: ANN401  # what is asked for
        """None for one that may fail and does; of a list all pages."""
        try:
            if isinstance(ask, Objects):
                offer = await self._offer(ask.service, ask.kind)
                return [made async for _, made in offer.walk(How(with_objects=True), "")]
            return await self._all_pages(ask)
        except (ApiError, Refused, RuntimeCallFailed):
            if not ask.may_fail:
                raise
            return None

    async def _all_pages(self, ask: Ask) -> Message:
        # With it comes gRPC, which a daemon without callers does without.
        from agent.api.service import served_method

        name, _, method = ask.method.partition("/")
        if name not in self._services:
            raise Refused("selection", f"{name} is not served here")
        descriptor, service = self._services[name]
        served = served_method(service, descriptor.methods_by_name[method])
        found = page = await served(ask.request)
        while token := page.meta.next_page_token if "meta" in page.DESCRIPTOR.fields_by_name else "":
            ask.request.options.page_token = token  # type: ignore[attr-defined]  # those with pages have it
            page = await served(ask.request)
            found.MergeFrom(page)
            found.meta.CopyFrom(page.meta)
        return found  # type: ignore[no-any-return]  # each has its own


class Rows:
    """What one table shows of objects. `with_ended`: also of those that are over."""

    def __init__(self, kind: Kind, shown: Shown, *, is_wide: bool, with_objects: bool, with_ended: bool) -> None:
        self._kind, self._shown = kind, shown
        self._columns = shown.columns_of(kind, is_wide=is_wide)
        self._with_objects, self._with_ended = with_objects, with_ended
        self._seen: list[Object] = []
        self.left_out = 0

    def columns(self) -> list[pb.TableColumn]:
        return [pb.TableColumn(title=column.title, wide=column.wide) for column in self._columns]

    def notes(self) -> list[str]:
        notes = list(self._shown.note(self._seen)) if self._shown.note is not None else []
        return [*notes, f"{self.left_out} ended are left out; --all shows them"] if self.left_out else notes

    def has_ended(self, made: Object) -> bool:
        return self._shown.ended is not None and self._shown.ended(made)

    async def chosen(self, walk: Walk[Object]) -> Walk[Object]:
        async for place, made in walk:
            self._seen.append(made)
            if self._with_ended or not self.has_ended(made):
                yield place, made
            else:
                self.left_out += 1

    def row(self, made: Object) -> pb.TableRow:
        named = self._shown.named(made)
        return pb.TableRow(
            cells=[column.cell(made) for column in self._columns], shown=self._shown.name(self._kind, made),
            namespace=named.namespace, name=named.name, short=named.short,
            object=msgspec.json.encode(self._written(made)) if self._with_objects else b"",
        )  # fmt: skip

    def _written(self, made: Object) -> Object:
        """What manifests have may be written back."""
        return without_facts(made) if self._kind.api else made

    def of_groups(self, objects: Sequence[Object]) -> list[pb.TableRow]:
        rows = [self.row(made) for made in objects]
        for row in rows:
            row.ClearField("object")
        for made, places in self._shown.grouped(objects) if self._shown.grouped is not None else ():
            rows[places[0]].object = msgspec.json.encode(without_facts(made))
            for place in places[1:]:
                rows[place].rows_back = place - places[0]
        return rows


async def _filtered(terms: str, walk: Walk[Object]) -> Walk[Object]:
    is_wanted = facts_test(terms)
    async for place, made in walk:
        if is_wanted(made):
            yield place, made


def kind_named(word: str) -> Kind:
    kind = BY_WORD.get(word.lower())
    if kind is None:
        raise Refused("selection", f'no kind "{word[:100]}"; kinds are {", ".join(one.plural for one in KINDS)}')
    return kind


def _encoded(made: Object) -> pb.GetResponse:
    return pb.GetResponse(object=msgspec.json.encode(made))


def _known(kind: Kind) -> pb.KnownKind:
    return pb.KnownKind(
        plural=kind.plural, singular=kind.singular, short=kind.short, api=kind.api, has_namespace=kind.has_namespace,
        is_watched=shown_of(kind).is_watched, is_described=described_by(kind) is not None,
    )  # fmt: skip

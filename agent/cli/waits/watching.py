# SPDX-License-Identifier: Apache-2.0
"""`kepctl get -w`: first what is there, then a line for each change, under one header."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec.structs import replace

from agent.cli.client import Client
from agent.cli.objects.listed import answers_to, listed
from agent.cli.objects.selection import Scope, in_scope, named, picked
from agent.cli.objects.words import Wanted
from agent.cli.render import print_listing, wants_objects
from agent.cli.session import Session
from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, How, shown_of
from agent.model.finding import printable
from agent.wire.kepd.v1 import list_pb2

LOOK_S = 0.5
Change = tuple[int, AnyListing]
"""A kind of change, and a list of the one object; empty at a bookmark."""


def follow(daemon: Client, wanted: Wanted, scope: Scope, output: str, session: Session) -> None:
    """Until Ctrl-C, or the daemon ends."""
    changes = _changes(daemon, wanted, with_objects=wants_objects(output))
    first: AnyListing | None = None
    gathered: list[Any] = []
    rows = Rows(output)
    for kind, listing in changes:
        if first is None and kind != list_pb2.CHANGE_TYPE_BOOKMARK:
            gathered += listing.items
        elif first is None:
            first = picked(replace(listing, items=gathered), wanted, scope)
            names = {named(first, item) for item in first.items}
            _show(first, rows, output, session)
        elif kind != list_pb2.CHANGE_TYPE_BOOKMARK:
            news = in_scope(listing, wanted.kind, scope)
            if wanted.names:
                news = replace(news, items=[item for item in news.items if named(news, item) in names])
            _show(news, rows, output, session)


def _show(listing: AnyListing, rows: "Rows", output: str, session: Session) -> None:
    if output in ("table", "wide"):
        rows.add(listing)
        return
    for item in listing.items:
        print_listing(replace(listing, items=[item], notes=()), output, session, is_one=True)


class Rows:
    """Lines under one header. A column keeps the width that it began with, and grows where it must."""

    def __init__(self, output: str) -> None:
        self._is_wide = output == "wide"
        self._widths: list[int] = []

    def add(self, listing: AnyListing) -> None:
        columns = [column for column in listing.columns if self._is_wide or not column.wide]
        rows = [[printable(column.cell(item)) for column in columns] for item in listing.items]
        if rows and not self._widths:
            rows.insert(0, [column.title for column in columns])
            self._widths = [0] * len(columns)
        for row in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, row, strict=True)]
        for row in rows:
            _echo(row, self._widths)


def _echo(row: Sequence[str], widths: Sequence[int]) -> None:
    click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _changes(daemon: Client, wanted: Wanted, *, with_objects: bool) -> Iterator[Change]:
    shown, how = shown_of(wanted.kind), How(with_objects)
    if shown.watch is None:
        yield from _looks(daemon, wanted.kind)
        return
    watch = shown.watch(how)
    others = answers_to(daemon, shown.asks(wanted.kind, how)[1:])
    for change in daemon.follow(watch.ask.method, watch.ask.request, watch.ask.answer):
        kind: int = change.type  # type: ignore[attr-defined]
        found = watch.listed()
        is_there = kind not in (list_pb2.CHANGE_TYPE_BOOKMARK, list_pb2.CHANGE_TYPE_DELETED)
        if is_there or (watch.shows_last and change.HasField(watch.item)):
            getattr(found, watch.items).append(getattr(change, watch.item))
        yield kind, shown.listing(wanted.kind, [found, *others])


def _looks(daemon: Client, kind: Kind) -> Iterator[Change]:
    """What has no stream of changes is looked at again and again."""
    before: dict[str, bytes] = {}
    is_first = True
    while True:
        listing = listed(daemon, kind)
        now = {listing.name(one): one.SerializeToString(deterministic=True) for one in listing.items}
        for one in listing.items:
            if before.get(listing.name(one)) != now[listing.name(one)]:
                yield list_pb2.CHANGE_TYPE_MODIFIED, replace(listing, items=[one])
        if is_first:
            yield list_pb2.CHANGE_TYPE_BOOKMARK, replace(listing, items=[])
        before, is_first = now, False
        time.sleep(LOOK_S)

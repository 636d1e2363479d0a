# SPDX-License-Identifier: Apache-2.0
"""`kepctl get -w`: first what is there, then a line for each change, under one header."""

import time
from collections.abc import Iterator, Sequence

import click

from agent.cli.client import Client
from agent.cli.objects.listed import SERVICE, listed, named_of
from agent.cli.objects.words import Wanted
from agent.cli.render import print_table, wants_objects
from agent.cli.session import CommandFailed, Session
from agent.kinds.kind import Kind
from agent.kinds.selection import Scope
from agent.kinds.table import Row, Table
from agent.model.exit_codes import CONFLICT
from agent.model.finding import printable
from agent.wire.kepd.v1 import list_pb2
from agent.wire.kepd.v1 import object_pb2 as pb

LOOK_S = 0.5
BOOKMARK = list_pb2.CHANGE_TYPE_BOOKMARK
Change = tuple[int, Table]
"""A kind of change, and a table of what changed; empty at a bookmark."""


def follow(
    daemon: Client, wanted: Wanted, scope: Scope, output: str, session: Session, *, with_ended: bool = True
) -> None:
    """Until Ctrl-C, or the daemon ends."""
    lines, is_wide = Lines(output, session), output == "wide"
    names: set[tuple[str, str]] | None = None
    gathered: list[Row] = []
    request = pb.WatchTableRequest(
        kind=wanted.kind.plural, namespace=scope.namespace, selector=scope.selector, is_wide=is_wide,
        with_objects=wants_objects(output), with_ended=with_ended,
    )  # fmt: skip
    for kind, table in _changes(daemon, wanted.kind, scope, request):
        if names is None:
            gathered += table.rows
            if kind == BOOKMARK:
                table.rows = gathered
                first = named_of(table, wanted.kind, wanted.names, scope.namespace)
                names = {(row.namespace, row.name) for row in first.rows}
                lines.add(first)
        elif kind != BOOKMARK:
            table.rows = [row for row in table.rows if not wanted.names or (row.namespace, row.name) in names]
            lines.add(table)


class Lines:
    """Under one header. A column keeps the width that it began with, and grows where it must."""

    def __init__(self, output: str, session: Session) -> None:
        self._output, self._session = output, session
        self._widths: list[int] = []

    def add(self, table: Table) -> None:
        if self._output not in ("table", "wide"):
            for row in table.rows:
                one = Table(table.kind, table.columns, [row], table.is_kubernetes)
                print_table(one, self._output, self._session, is_one=True)
            return
        rows = [[printable(cell) for cell in row.cells] for row in table.rows]
        if rows and not self._widths:
            rows.insert(0, [column.title for column in table.columns])
            self._widths = [0] * len(table.columns)
        for cells in rows:
            self._widths = [max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)]
        for cells in rows:
            _echo(cells, self._widths)


def _echo(row: Sequence[str], widths: Sequence[int]) -> None:
    click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _changes(daemon: Client, kind: Kind, scope: Scope, request: pb.WatchTableRequest) -> Iterator[Change]:
    head: pb.WatchTableResponse | None = None
    try:
        for change in daemon.follow(f"{SERVICE}/WatchTable", request, pb.WatchTableResponse):
            head = head or change
            rows: list[Row] = list(change.rows)  # type: ignore[arg-type]  # they have the same names
            yield change.type, Table(head.kind, head.columns, rows, head.is_kubernetes)
    except CommandFailed as error:
        if head is not None or error.exit_code != CONFLICT or error.reason != "NOT_WATCHED":
            raise
        yield from _looks(daemon, kind, scope, is_wide=request.is_wide)


def _is_news(before: Row | None, now: Row) -> bool:
    return before is None or (before.object != now.object and list(before.cells) != list(now.cells))


def _looks(daemon: Client, kind: Kind, scope: Scope, *, is_wide: bool) -> Iterator[Change]:
    """What has no stream of changes is looked at again and again."""
    before: dict[str, Row] = {}
    is_first = True
    while True:
        # By cells alone each would change with its age, by objects alone each row of one that changes.
        table = listed(daemon, kind, scope, with_objects=True, is_wide=is_wide)
        now = {row.shown: row for row in table.rows}
        table.rows = [row for row in table.rows if _is_news(before.get(row.shown), row)]
        yield list_pb2.CHANGE_TYPE_MODIFIED, table
        if is_first:
            yield BOOKMARK, Table(table.kind, table.columns, [], table.is_kubernetes)
        before, is_first = now, False
        time.sleep(LOOK_S)

# SPDX-License-Identifier: Apache-2.0
"""The rows of a kind, asked of the daemon."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.cli.objects.words import failing
from agent.cli.session import CommandFailed
from agent.kinds.registry import Kind
from agent.kinds.selection import Scope, picked
from agent.kinds.table import Table
from agent.wire.kepd.v1 import kind_pb2 as pb

if TYPE_CHECKING:
    from agent.cli.client import Client

SERVICE = "kepd.v1.KindService"
EVERYTHING = Scope()


def listed(
    daemon: "Client",
    kind: Kind,
    scope: Scope = EVERYTHING,
    *,
    with_objects: bool = False,
    is_wide: bool = False,
    with_ended: bool = True,
) -> Table:
    """Of the daemon whose plane it is; of what each of them has, of all."""
    request = pb.ListRowsRequest(
        kind=kind.plural, namespace=scope.namespace, selector=scope.selector, is_wide=is_wide,
        with_objects=with_objects, with_ended=with_ended,
    )  # fmt: skip
    if not kind.is_of_each_daemon or daemon.other is None:
        return as_table(daemon.call(f"{SERVICE}/ListRows", request, pb.ListRowsResponse))
    tables, failed = [], []
    asked: Client | None = daemon
    while asked is not None:
        try:
            tables.append(as_table(asked.call(f"{SERVICE}/ListRows", request, pb.ListRowsResponse)))
        except CommandFailed as error:
            failed.append(error)
        asked = asked.other
    if not tables:
        raise failed[0]
    first = tables[0]
    rows = {row.shown: row for table in reversed(tables) for row in table.rows}
    first.rows = list(rows.values())
    first.notes = list(dict.fromkeys(note for table in tables for note in table.notes))
    return first


def as_table(found: pb.ListRowsResponse) -> Table:
    """Rows that share an object have it all."""
    rows = list(found.rows)
    for place, row in enumerate(rows):
        if row.rows_back:
            row.object = rows[place - row.rows_back].object
    return Table(
        found.kind, found.columns, rows, found.is_kubernetes, found.empty, found.notes, found.whole  # type: ignore[arg-type]
    )  # fmt: skip


def named_of(table: Table, kind: Kind, names: Sequence[str], namespace: str) -> Table:
    """With the rows that are named; all of them without names."""
    if names:
        with failing():
            table.rows = picked(table.rows, kind, names, namespace)
        table.notes = ()
    return table

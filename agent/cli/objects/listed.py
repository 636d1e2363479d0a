# SPDX-License-Identifier: Apache-2.0
"""The objects of a kind and their rows, asked of the daemon."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from agent.cli.objects.words import failing
from agent.cli.session import CommandFailed
from agent.kinds.kind import Kind
from agent.kinds.selection import Scope, picked
from agent.kinds.table import Object, Table
from agent.wire.kepd.v1 import list_pb2
from agent.wire.kepd.v1 import object_pb2 as pb

if TYPE_CHECKING:
    from agent.cli.client import Client

SERVICE = "kepd.v1.ObjectService"
EVERYTHING = Scope()


def objects(daemon: "Client", plural: str, scope: Scope = EVERYTHING, terms: str = "") -> list[Object]:
    """`terms` are of what only kepd knows of them, such as `objectName=web`."""
    request = pb.ListRequest(
        kind=plural, namespace=scope.namespace, selector=scope.selector, options=list_pb2.ListOptions(filter=terms)
    )
    answer = daemon.call(f"{SERVICE}/List", request, pb.ListResponse)
    return [json.loads(made) for made in answer.objects]


def got(daemon: "Client", plural: str, namespace: str, name: str) -> Object:
    answer = daemon.call(f"{SERVICE}/Get", pb.GetRequest(kind=plural, namespace=namespace, name=name), pb.GetResponse)
    made: Object = json.loads(answer.object)
    return made


def every_event(daemon: "Client", filters: Sequence[str]) -> list[Object]:
    """Of every kepd of this node, oldest first."""
    events: list[Object] = []
    asked: Client | None = daemon
    while asked is not None:
        for terms in filters:
            events += objects(asked, "events", terms=terms)
        asked = asked.other
    return sorted(events, key=lambda event: str(event["lastTimestamp"]))


def changes(daemon: "Client", plural: str, namespace: str = "", terms: str = "") -> Iterator[tuple[int, Object | None]]:
    """All there are, a bookmark without an object, and then what changes."""
    request = pb.WatchRequest(kind=plural, namespace=namespace, filter=terms)
    for change in daemon.follow(f"{SERVICE}/Watch", request, pb.WatchResponse):
        yield change.type, json.loads(change.object) if change.object else None


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
    request = pb.TableRequest(
        kind=kind.plural, namespace=scope.namespace, selector=scope.selector, is_wide=is_wide,
        with_objects=with_objects, with_ended=with_ended,
    )  # fmt: skip
    if not kind.is_of_each_daemon or daemon.other is None:
        return as_table(daemon.call(f"{SERVICE}/Table", request, pb.TableResponse))
    tables, failed = [], []
    asked: Client | None = daemon
    while asked is not None:
        try:
            tables.append(as_table(asked.call(f"{SERVICE}/Table", request, pb.TableResponse)))
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


def as_table(found: pb.TableResponse) -> Table:
    """Rows that share an object have it all."""
    rows = list(found.rows)
    for place, row in enumerate(rows):
        if row.rows_back:
            row.object = rows[place - row.rows_back].object
    return Table(
        found.kind, found.columns, rows, found.is_kubernetes, found.empty, found.notes  # type: ignore[arg-type]
    )  # fmt: skip


def named_of(table: Table, kind: Kind, names: Sequence[str], namespace: str) -> Table:
    """With the rows that are named; all of them without names."""
    if names:
        with failing():
            table.rows = picked(table.rows, kind, names, namespace)
        table.notes = ()
    return table

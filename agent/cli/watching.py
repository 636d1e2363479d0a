# SPDX-License-Identifier: Apache-2.0
"""`kepctl get -w`: first what is there, then a line for each change, under one header."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
from msgspec.structs import replace

from agent.cli.client import Client
from agent.cli.image_listings import PULL_COLUMNS, pull_name
from agent.cli.kinds import Kind, Wanted
from agent.cli.listed import listed
from agent.cli.listings import event_listing, pod_listing
from agent.cli.object_listings import manifests_of
from agent.cli.render import print_listing, wants_objects
from agent.cli.selection import Scope, in_scope, named, picked
from agent.cli.service_listings import service_listing
from agent.cli.session import CommandFailed, Session
from agent.cli.table import Listing
from agent.cli.workload_pods import PLURALS
from agent.model.exit_codes import USAGE
from agent.model.finding import printable
from agent.wire.kepd.v1 import image_pb2, list_pb2, node_pb2, pod_pb2, service_proxy_pb2

AnyListing = Listing[Any]
LOOK_S = 0.5
LOOKED_AT = ("devices", "claims", "drivers")
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
    kind = wanted.kind.plural
    if kind == "pods":
        of_pods = pod_pb2.WatchPodsRequest(with_spec=with_objects)
        for pod in daemon.follow("kepd.v1.PodService/WatchPods", of_pods, pod_pb2.WatchPodsResponse):
            yield pod.type, pod_listing([pod.pod] if pod.HasField("pod") else [])
    elif kind == "pulls":
        of_pulls = image_pb2.WatchImagePullsRequest()
        for step in daemon.follow("kepd.v1.ImageService/WatchImagePulls", of_pulls, image_pb2.WatchImagePullsResponse):
            yield step.type, Listing("Pull", _there(step.type, step.pull), PULL_COLUMNS, pull_name)
    elif kind == "services":
        manifests = manifests_of(daemon, wanted.kind)
        path, answer = "kepd.v1.ServiceProxyService/WatchServices", service_proxy_pb2.WatchServicesResponse
        for turn in daemon.follow(path, service_proxy_pb2.WatchServicesRequest(), answer):
            yield turn.type, service_listing(_there(turn.type, turn.service), manifests)
    elif kind == "events":
        of_events = node_pb2.WatchEventsRequest()
        for news in daemon.follow("kepd.v1.NodeService/WatchEvents", of_events, node_pb2.WatchEventsResponse):
            yield news.type, event_listing(_there(news.type, news.event))
    elif kind in PLURALS or kind in LOOKED_AT:
        yield from _looks(daemon, wanted.kind)
    else:
        raise CommandFailed(
            "only pods, pulls, services, events, workloads, devices, claims and drivers can be watched", USAGE
        )


def _looks(daemon: Client, kind: Kind) -> Iterator[Change]:
    """Workloads and devices have no stream of changes, so they are looked at again and again."""
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


def _there(kind: int, item: Any) -> list[Any]:  # noqa: ANN401  # any message
    """What is gone has no line; of pods the last one says that they end."""
    return [] if kind in (list_pb2.CHANGE_TYPE_BOOKMARK, list_pb2.CHANGE_TYPE_DELETED) else [item]

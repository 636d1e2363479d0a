# SPDX-License-Identifier: Apache-2.0
"""What happened on the node."""

from collections.abc import Sequence

from agent.kinds.ages import age
from agent.kinds.kube_shape import event_object, kind_of
from agent.kinds.registry import DEFAULT_NAMESPACE, Named
from agent.kinds.shown import Ask, Shown, Watch
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import node_pb2 as pb


def _object_of(event: pb.Event) -> str:
    """With its kind, and the container where one is meant."""
    if not event.object_name:
        return "node"
    container = f"/{event.container}" if event.container else ""
    return f"{kind_of(event).lower()}/{event.namespace}/{event.object_name}{container}"


COLUMNS: Columns[pb.Event] = (
    Column("LAST SEEN", lambda event: age(event.last_seen)),
    Column("TYPE", lambda event: event.type),
    Column("REASON", lambda event: event.reason),
    Column("OBJECT", _object_of),
    Column("MESSAGE", lambda event: f"{event.message} (x{event.count})" if event.count > 1 else event.message),
    Column("FIRST SEEN", lambda event: age(event.first_seen), wide=True),
    Column("PLANE", lambda event: event.plane, wide=True),
)


def event_name(event: pb.Event) -> str:
    return f"event/{event.id}"


def event_listing(events: Sequence[pb.Event]) -> Listing[pb.Event]:
    return Listing(
        "Event", events, COLUMNS, event_name, "no events",
        named=lambda one: Named(one.namespace or DEFAULT_NAMESPACE, one.id),
        objects=lambda events: [event_object(one) for one in events],
    )  # fmt: skip


SHOWN = Shown(
    lambda _kind, _how: (Ask("kepd.v1.NodeService/ListEvents", pb.ListEventsRequest(), pb.ListEventsResponse),),
    lambda _kind, answers: event_listing(answers[0].events),
    lambda how: Watch(
        Ask("kepd.v1.NodeService/WatchEvents", pb.WatchEventsRequest(), pb.WatchEventsResponse),
        "event", pb.ListEventsResponse, "events", how.with_objects,
    ),
)  # fmt: skip

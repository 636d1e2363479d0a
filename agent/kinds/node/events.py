# SPDX-License-Identifier: Apache-2.0
"""What happened on the node."""

from agent.kinds.ages import age
from agent.kinds.kind import Kind
from agent.kinds.kube_shape import kind_of
from agent.kinds.shown import Shown
from agent.kinds.table import FACTS, Column, Columns, Object

KIND = Kind("events", "event", ("ev",), observed_as="Event")


def _object_of(made: Object) -> str:
    """With its kind, and the container where one is meant."""
    event = made[FACTS]
    if not event["objectName"]:
        return "node"
    container = f"/{event['container']}" if event["container"] else ""
    return f"{kind_of(event).lower()}/{event['namespace']}/{event['objectName']}{container}"


def _message(event: Object) -> str:
    return f"{event['message']} (x{event['count']})" if event["count"] > 1 else str(event["message"])


COLUMNS: Columns[Object] = (
    Column("LAST SEEN", lambda event: age(event["lastTimestamp"] or "")),
    Column("TYPE", lambda event: event["type"]),
    Column("REASON", lambda event: event["reason"]),
    Column("OBJECT", _object_of),
    Column("MESSAGE", _message),
    Column("FIRST SEEN", lambda event: age(event["firstTimestamp"] or ""), wide=True),
    Column("PLANE", lambda event: event[FACTS]["plane"], wide=True),
)


SHOWN = Shown(
    ("kepd.v1.NodeService",),
    COLUMNS,
    kind="Event",
    empty="no events",
    called=lambda event: f"event/{event['metadata']['name']}",
    has_labels=False,
    is_watched=True,
    shows_last=False,
)

# SPDX-License-Identifier: Apache-2.0
"""Faults of Services as events of the API server: which ones, what they say, and who writes them.

An event's name follows from what it says of which object, so that several nodes that see the same fault want to create
the same event, and the server lets one of them. A fault of this node alone has the node in its name.
"""

from datetime import UTC, datetime
from hashlib import sha256

from agent.model.event import Event
from agent.model.finding import printable

CONTROLLER = "kepd.dev/services"
OF_OBJECTS = frozenset({"InvalidService", "InvalidEndpointSlice", "AddressConflict"})
"""Every node sees these."""
OF_THIS_NODE = frozenset(
    {"ServiceQuarantined", "ServiceTooLarge", "BackendConflict", "FailedToStartServiceHealthcheck"}
)
MOST_NOTE_BYTES = 1000
LONGEST_NAME, LONGEST_INSTANCE = 230, 128
DEFAULT_NAMESPACE = "default"


def is_written(event: Event) -> bool:
    return event.is_warning and event.reason in OF_OBJECTS | OF_THIS_NODE


def is_shared(event: Event) -> bool:
    """Whether other nodes see it as well, and one of them is enough."""
    return event.reason in OF_OBJECTS


def event_name(event: Event, node: str) -> str:
    who = "" if is_shared(event) else node
    told = "\0".join((event.object_uid, event.namespace, event.object_name, event.reason, _note(event), who))
    return f"{(event.object_name or node)[:LONGEST_NAME]}.{sha256(told.encode()).hexdigest()[:16]}"


def event_namespace(event: Event) -> str:
    """A node has none, and its events are in `default`."""
    return event.namespace or DEFAULT_NAMESPACE


def event_body(event: Event, node: str, now_s: float) -> dict[str, object]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(event, node), "namespace": event_namespace(event)},
        "eventTime": micro_time(now_s),
        "reportingController": CONTROLLER,
        "reportingInstance": node[:LONGEST_INSTANCE],
        "action": "Program",
        "reason": event.reason,
        "regarding": _regarding(event, node),
        "note": _note(event),
        "type": "Warning",
    }


def series_body(count: int, now_s: float) -> dict[str, object]:
    """A merge patch: it was seen so often by now."""
    return {"series": {"count": count, "lastObservedTime": micro_time(now_s)}}


def _regarding(event: Event, node: str) -> dict[str, str]:
    if not event.object_name:
        return {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    is_slice = event.reason == "InvalidEndpointSlice"
    found = {
        "apiVersion": "discovery.k8s.io/v1" if is_slice else "v1",
        "kind": "EndpointSlice" if is_slice else "Service",
        "namespace": event.namespace,
        "name": event.object_name,
    }
    return found | ({"uid": event.object_uid} if event.object_uid else {})


def _note(event: Event) -> str:
    """Bounded in bytes, and never cut within a character."""
    text = printable(event.public or event.message).encode()
    return text.decode() if len(text) <= MOST_NOTE_BYTES else text[: MOST_NOTE_BYTES - 3].decode(errors="ignore") + "…"


def micro_time(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

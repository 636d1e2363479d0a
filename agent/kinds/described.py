# SPDX-License-Identifier: Apache-2.0
"""What descriptions of objects are made of: entries, tables and events, in kubectl's words."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from agent.kinds.ages import Stamp, age, seconds_of
from agent.kinds.table import Object, names_of

if TYPE_CHECKING:
    from agent.wire.kepd.v1 import reason_pb2

WIDTH = 18


class Described(msgspec.Struct, frozen=True):
    """`event_filters`, as List of events takes them: which events belong below the lines."""

    lines: Sequence[str]
    event_filters: Sequence[str] = ()


def event_lines(events: Sequence[Object]) -> Iterator[str]:
    yield "Events:" if events else "Events:  <none>"
    rows = [(event["type"], event["reason"], _seen(event), event["message"]) for event in events]
    yield from grid(("Type", "Reason", "Age", "Message"), rows)


def _seen(event: Object) -> str:
    since, count = age(event["lastTimestamp"] or ""), event["count"]
    return f"{since} (x{count})" if count > 1 else since


def reason_lines(reasons: "Sequence[reason_pb2.Reason]") -> Iterator[str]:
    """Cause and words first, then what follows and what helps; the less important ones in a line each."""
    if not reasons:
        return
    first = reasons[0]
    yield cause_of(first)
    if first.next:
        yield f"  next: {first.next}"
    if first.command:
        yield f"  try:  {first.command}"
    yield from (f"- also: {cause_of(one)}" for one in reasons[1:])


def reason_entries(reasons: "Sequence[reason_pb2.Reason]") -> Iterator[tuple[str, str]]:
    """The same as entries of a description."""
    for one in reasons[:1]:
        yield from (("Why", cause_of(one)), ("Next", one.next), ("Try", one.command))
    yield from (("Also", cause_of(one)) for one in reasons[1:])


def cause_of(reason: "reason_pb2.Reason") -> str:
    return f"{reason.cause}: {reason.words}" if reason.words else reason.cause


def entries_of(indent: str, entries: Iterator[tuple[str, str]]) -> Iterator[str]:
    """What is empty is left out; lines of a message stand below each other."""
    for title, value in entries:
        if value:
            head = f"{indent}{title + ':':{WIDTH}} "
            yield head + value.strip("\n").replace("\n", "\n" + " " * len(head))


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if not rows:
        return
    whole = [titles, *([" ".join(cell.split()) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in whole) for place in range(len(titles))]
    for row in whole:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def joined(given: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={given[name]}" for name in sorted(given))


def moment(at: Stamp | str) -> str:
    at_s = seconds_of(at) if isinstance(at, str) else at.seconds
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ} ({age(at)} ago)" if at_s else ""


def events_of(namespace: str, name: str, kind: str | None = None) -> str:
    """Those of one object, or (empty) of the node itself; `kind`: of this kind alone, of a pod an empty word."""
    return f"namespace={namespace},objectName={name}" + (f",objectKind={kind}" if kind is not None else "")


def events_of_object(made: Object, kind: str | None = None) -> str:
    return events_of(*names_of(made), kind)

# SPDX-License-Identifier: Apache-2.0
"""Objects as rows, as `kubectl get` asks for them: the columns that kepctl has, in kubectl's order."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from agent.kinds.ages import age

Object = dict[str, Any]
# kubectl writes this one by itself where it is wanted.
LEFT_OUT = "NAMESPACE"
AGES = {
    "AGE": ("metadata", "creationTimestamp"),
    "LAST SEEN": ("", "lastTimestamp"),
    "FIRST SEEN": ("", "firstTimestamp"),
    "LAST SCHEDULE": ("status", "lastScheduleTime"),
}


class Title(msgspec.Struct, frozen=True):
    title: str
    wide: bool


def _shown(columns: Sequence[Title]) -> list[int]:
    """Their places: the name comes first, for kubectl writes the kind before what is first."""
    places = [place for place, one in enumerate(columns) if one.title != LEFT_OUT]
    return sorted(places, key=lambda place: columns[place].title != "NAME")


def definitions(columns: Sequence[Title]) -> list[Object]:
    return [
        {
            "name": columns[place].title.capitalize(), "type": "string", "format": "name" if not number else "",
            "description": "", "priority": int(columns[place].wide),
        }
        for number, place in enumerate(_shown(columns))
    ]  # fmt: skip


def row(columns: Sequence[Title], cells: Sequence[str], made: Object, include: str) -> Object:
    shown = [_aged(columns[place].title, cells[place], made) for place in _shown(columns)]
    return {"cells": shown, **({} if include == "None" else {"object": _included(made, include)})}


def _included(made: Object, include: str) -> Object:
    if include == "Object":
        return made
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made.get("metadata", {})}


def _aged(title: str, cell: str, made: Object) -> str:
    """Times since go on between the changes of a row."""
    if title not in AGES:
        return cell
    where, name = AGES[title]
    text = (made.get(where) or {}).get(name) if where else made.get(name)
    return age(Timestamp(seconds=int(datetime.fromisoformat(text).timestamp()))) if text else cell


def table(columns: Sequence[Title] | None, rows: Iterable[Object], metadata: Object) -> Object:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions(columns) if columns is not None else [],
        "rows": list(rows),
    }

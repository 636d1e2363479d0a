# SPDX-License-Identifier: Apache-2.0
"""Objects as rows, as `kubectl get` asks for them: the columns of an API server, or those that kepctl has."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agent.kinds.table import Column, Object

# kubectl writes this one by itself where it is wanted.
LEFT_OUT = "NAMESPACE"
# What they show changes with time alone.
AGES = frozenset({"AGE", "DURATION", "FIRST SEEN", "LAST SCHEDULE", "LAST SEEN", "LAST USED", "SEEN", "SINCE"})

Columns = Sequence[Column[Object]]


def _shown(columns: Columns) -> list[Column[Object]]:
    """The name comes first, for kubectl writes the kind before what is first."""
    return sorted(
        (column for column in columns if column.title != LEFT_OUT),
        key=lambda column: column.title != "NAME" or column.wide,
    )


def definitions(columns: Columns) -> list[Object]:
    return [
        {
            "name": column.title.capitalize(), "type": "string", "format": "name" if not number else "",
            "description": "", "priority": int(column.wide),
        }
        for number, column in enumerate(_shown(columns))
    ]  # fmt: skip


def row(columns: Columns, told: Object, made: Object, include: str, cache: dict[Any, Any]) -> msgspec.Raw:
    """`told` is what the columns are made of, and `made` the object as it is shown; `cache` has what was made of both
    before."""
    told = {**told, **made}
    ages = [column.cell(told) for column in columns if column.title in AGES]
    known: tuple[list[str], msgspec.Raw] | None = cache.get(include)
    if known is not None and known[0] == ages:
        return known[1]
    shown: Mapping[str, object] = {} if include == "None" else {"object": _included(made, include)}
    encoded = msgspec.Raw(msgspec.json.encode({"cells": [column.cell(told) for column in _shown(columns)], **shown}))
    cache[include] = ages, encoded
    return encoded


def _included(made: Object, include: str) -> Object:
    if include == "Object":
        return made
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made.get("metadata", {})}


def table(columns: Columns | None, rows: Iterable[object], metadata: Object) -> Object:
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions(columns) if columns is not None else [],
        "rows": list(rows),
    }

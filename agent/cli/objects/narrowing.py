# SPDX-License-Identifier: Apache-2.0
"""`--field-selector`, `--show-labels` and `-L`: what `get` makes of rows by the objects that they show."""

import json
import re
from collections.abc import Sequence
from typing import Any

from agent.cli.session import CommandFailed
from agent.kinds.kind import Kind
from agent.kinds.table import Row, Table
from agent.model.exit_codes import USAGE
from agent.model.text.jsonpath import read_path, shown

FIELDS = (
    "metadata.name", "metadata.namespace", "status.phase", "involvedObject.kind", "involvedObject.name",
    "involvedObject.namespace", "reason", "type",
)  # fmt: skip
TERM = re.compile(r"([^=!]+)(==|=|!=)(.*)", re.DOTALL)


class _Title:
    def __init__(self, title: str) -> None:
        self.title = title


def with_fields(table: Table, selector: str) -> Table:
    """The rows whose objects have all that the selector asks for."""
    for part in selector.split(","):
        found = TERM.fullmatch(part.strip())
        if found is None or found[1] not in FIELDS:
            text = f'--field-selector: "{part}" is not known; expected FIELD=VALUE or FIELD!=VALUE'
            raise CommandFailed(f"{text}, of {', '.join(FIELDS)}", USAGE)
        field, sign, value = found.groups()
        table.rows = [row for row in table.rows if (value in _values(row, field)) == (sign != "!=")]
    table.empty = f"no {table.kind} with {selector}"
    return table


def with_kinds(table: Table, kind: Kind) -> None:
    """Names that can be typed again where several kinds are listed."""
    titles = [column.title for column in table.columns]
    for row in table.rows if "NAME" in titles else ():
        place = titles.index("NAME")
        row.cells[place] = f"{kind.singular}/{row.cells[place]}"  # type: ignore[index]


def _values(row: Row, field: str) -> list[str]:
    """A pod is called in full or as its manifest has it."""
    if field == "metadata.name":
        return [row.name, *row.short.split()]
    if field == "metadata.namespace":
        return [row.namespace]
    return [shown(one) for one in read_path(f".{field}", json.loads(row.object))] or [""]


def labelled(table: Table, keys: Sequence[str], *, has_all: bool) -> Table:
    """With a column for each key, and one of all labels."""
    titles = [key.rpartition("/")[2].upper() for key in keys]
    table.columns = [*table.columns, *map(_Title, titles), *([_Title("LABELS")] if has_all else [])]
    table.rows = [_with_labels(row, keys, has_all=has_all) for row in table.rows]
    return table


def _with_labels(row: Row, keys: Sequence[str], *, has_all: bool) -> Row:
    labels = _labels(json.loads(row.object))
    every = ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"
    cells = [*row.cells, *(labels.get(key, "") for key in keys), *([every] if has_all else [])]
    return Row(cells, row.shown, row.namespace, row.name, row.short, row.object)


def _labels(made: dict[str, Any]) -> dict[str, str]:
    """Of what only kepd has there are none."""
    return (made.get("metadata") or {}).get("labels") or {}

# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps, Secrets and what else has no life of its own: objects of the manifests."""

from collections.abc import Generator, Mapping
from typing import Any

from agent.kinds.ages import age
from agent.kinds.kind import Kind
from agent.kinds.parts import created, part
from agent.kinds.selection import chosen
from agent.kinds.shown import Objects, Shown
from agent.kinds.table import FACTS, Column, Columns, Object

SERVICE = "kepd.v1.ObjectService"
Made = dict[str, Any]


def _keys(made: Object) -> int:
    return sum(len(made.get(name) or {}) for name in ("data", "binaryData", "stringData"))


NAMES: Columns[Object] = (
    Column("NAMESPACE", lambda made: made["metadata"].get("namespace") or "-"),
    Column("NAME", lambda made: made["metadata"]["name"]),
)
AGE: Column[Object] = Column("AGE", lambda made: age(created(made)))
SOURCE: Column[Object] = Column("SOURCE", lambda made: part(made, FACTS).get("source", ""), wide=True)
COLUMNS: Columns[Object] = (*NAMES, Column("DATA", lambda made: str(_keys(made))), SOURCE)


def shown_objects(columns: Columns[Object] | Mapping[str, Columns[Object]]) -> Shown:
    """`columns`: of all objects, or by their kinds."""
    return Shown((SERVICE,), columns)


def found_object(kind: Kind, namespace: str, name: str) -> Generator[Objects, Any, Made]:
    """The one that is to be described."""
    objects = yield Objects(SERVICE, kind.plural)
    return chosen(kind, namespace, name, objects)


SHOWN = shown_objects(COLUMNS)

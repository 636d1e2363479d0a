# SPDX-License-Identifier: Apache-2.0
"""A status that a client wrote, over that which the node tells. What the node tells later on is newer. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

Object = dict[str, Any]
CONDITIONS = "conditions"


class ToldStatus(msgspec.Struct, frozen=True):
    """Of the object with this uid: by field, what the node told when it was written, and what was written. Conditions
    are by their types."""

    uid: str
    fields: dict[str, tuple[Any, Any]]
    conditions: dict[str, tuple[Any, Any]]


def told_status(uid: str, shown: Object, wanted: Object, before: ToldStatus | None) -> ToldStatus:
    """`shown` is what the node tells alone."""
    names = (shown.keys() | wanted.keys()) - {CONDITIONS}
    fields = {name: (shown.get(name), wanted.get(name)) for name in names if shown.get(name) != wanted.get(name)}
    of_node, given = _by_type(shown.get(CONDITIONS)), _by_type(wanted.get(CONDITIONS))
    conditions = {name: (of_node.get(name), one) for name, one in given.items() if of_node.get(name) != one}
    known = before.conditions if before is not None and before.uid == uid else {}
    conditions |= {name: pair for name, pair in known.items() if pair[1] == given.get(name) and name not in conditions}
    return ToldStatus(uid, fields, conditions)


def with_told(made: Object, told: ToldStatus) -> Object:
    if made["metadata"].get("uid") != told.uid:
        return made
    status = dict(made.get("status") or {})
    for name, (base, value) in told.fields.items():
        if status.get(name) == base:
            status[name] = value
    status = {name: value for name, value in status.items() if value is not None}
    if told.conditions:
        conditions = _by_type(status.get(CONDITIONS))
        conditions |= {name: one for name, (base, one) in told.conditions.items() if conditions.get(name) == base}
        status[CONDITIONS] = list(conditions.values())
    return {**made, "status": status}


def _by_type(conditions: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    listed: Sequence[Any] = conditions if isinstance(conditions, list) else ()
    return {str(one.get("type")): one for one in listed if isinstance(one, dict)}

# SPDX-License-Identifier: Apache-2.0
"""Which objects a request means, by labels, by fields and by name."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent.kinds.selectors import parse_selector
from agent.kinds.shown import labels_of
from agent.model.refused import Refused
from kepd_door.shape.statuses import Failure

Object = dict[str, Any]
Test = Callable[[Object], bool]
BY_NAME = "metadata.name"
# What an API server takes a field for that an object does not have.
USUAL = {
    "spec.unschedulable": "false", "spec.hostNetwork": "false", "spec.restartPolicy": "Always",
    "spec.schedulerName": "default-scheduler", "status.phase": "Pending",
}  # fmt: skip


class Selection:
    """`name` is one that a field selector asks for: it may be the short one of a pod, so its store looks for it."""

    def __init__(self, query: Mapping[str, str], node: str = "") -> None:
        self._suffix = f"-{node}"
        self._fields: list[tuple[str, str, bool]] = []
        self.name = ""
        for part in filter(None, query.get("fieldSelector", "").split(",")):
            path, sign, value = part.partition("=")
            if not sign or not path:
                raise Failure(400, f'"{part[:100]}" is no part of a field selector; expected KEY=VALUE or KEY!=VALUE')
            is_equal = not path.endswith("!")
            path, value = path.removesuffix("!").strip(), value.removeprefix("=").strip()
            if path == BY_NAME and is_equal:
                self.name = value
            else:
                self._fields.append((path, value, is_equal))
        try:
            self._has_labels = parse_selector(query.get("labelSelector", ""))
        except Refused as error:
            raise Failure(400, str(error)) from error

    def holds(self, made: Object) -> bool:
        if not self._has_labels(labels_of(made)):
            return False
        return all(self._is(made, path, value) == is_equal for path, value, is_equal in self._fields)

    def _is(self, made: Object, path: str, value: str) -> bool:
        found = field(made, path) or USUAL.get(path, "")
        if path == "involvedObject.name":
            # Of a pod that was asked for by the name in its manifest.
            return value in (found, found.removesuffix(self._suffix))
        # An event is of a kind and a name here, and says no more of its object.
        return found == value or (path.startswith("involvedObject.") and not found)


def field(made: Object, path: str) -> str:
    """Empty for what is not there."""
    found: Any = made
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)


def part_of(
    found: Sequence[Any], query: Mapping[str, str], key_of: Callable[[Any], tuple[str, str]]
) -> tuple[Sequence[Any], str, int]:
    """A page of what is in the order of its keys: those of it, where the next begins, and how many are left."""
    try:
        limit = int(query.get("limit") or 0)
    except ValueError as error:
        raise Failure(400, f"limit is {query['limit'][:20]!r}; expected a number") from error
    if token := query.get("continue", ""):
        begin = _place(token)
        found = [one for one in found if key_of(one) > begin]
    if limit <= 0 or len(found) <= limit:
        return found, "", 0
    return found[:limit], _token(key_of(found[limit - 1])), len(found) - limit


def _token(key: tuple[str, str]) -> str:
    return urlsafe_b64encode("/".join(key).encode()).decode()


def _place(token: str) -> tuple[str, str]:
    try:
        namespace, _, name = urlsafe_b64decode(token).decode().partition("/")
    except ValueError as error:
        raise Failure(400, f"continue is {token[:40]!r}; expected what the page before gave") from error
    return namespace, name

# SPDX-License-Identifier: Apache-2.0
"""Objects that are as small as they can be, but for one list or map of theirs, which is as long as asked."""

import copy
from collections.abc import Iterator
from typing import Any

from kepd_door.shape.protobuf import all_types

Step = tuple[str, str, str]
"""A field, its mark (`*` a list, `%` a map) and its type."""
CONTAINERS = {"containers": [{"name": "a", "image": "r.test/i:1"}]}
SELECTOR = {"matchLabels": {"a": "b"}}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": CONTAINERS}
JOB = {"template": {"spec": {**CONTAINERS, "restartPolicy": "Never"}}}
SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "Pod": ("v1", CONTAINERS),
    "Deployment": ("apps/v1", {"selector": SELECTOR, "template": TEMPLATE}),
    "DaemonSet": ("apps/v1", {"selector": SELECTOR, "template": TEMPLATE}),
    "StatefulSet": ("apps/v1", {"selector": SELECTOR, "template": TEMPLATE, "serviceName": "s"}),
    "Job": ("batch/v1", JOB),
    "CronJob": ("batch/v1", {"schedule": "* * * * *", "jobTemplate": {"spec": JOB}}),
    "Service": ("v1", {"selector": {"a": "b"}, "ports": [{"port": 80}]}),
    "NetworkPolicy": ("networking.k8s.io/v1", {"podSelector": {}}),
    "PodDisruptionBudget": ("policy/v1", {"selector": SELECTOR, "minAvailable": 1}),
    "ConfigMap": ("v1", {}),
    "Secret": ("v1", {}),
}
NAMING = frozenset({
    "containerPort", "devicePath", "hostname", "image", "ip", "key", "mountPath", "name", "path", "port", "topologyKey",
    "value",
})  # fmt: skip
DEEPEST = 8


def grown(kind: str) -> Iterator[tuple[str, "Grown"]]:
    for path in _paths(kind):
        # What pods are made of is looked at once, with pods.
        if kind == "Pod" or not any(code == "PodSpec" for _, _, code in path):
            yield f"{kind}.{'.'.join(field for field, _, _ in path)}", Grown(kind, path)


class Grown:
    def __init__(self, kind: str, path: tuple[Step, ...]) -> None:
        self._kind, self._path = kind, path

    def of(self, size: int) -> dict[str, Any]:
        version, spec = SPECS[self._kind]
        made: dict[str, Any] = {"apiVersion": version, "kind": self._kind, "metadata": {"name": "x"}}
        if spec:
            made["spec"] = copy.deepcopy(spec)
        inner: Any = made
        for field, mark, code in self._path[:-1]:
            inner = inner.setdefault(field, [] if mark else {})
            if mark:
                inner.extend([] if inner else [_item(code, 0)])
                inner = inner[0]
        field, mark, code = self._path[-1]
        inner[field] = (
            [_item(code, number) for number in range(size)]
            if mark == "*"
            else {f"k{number}": _scalar("", code, number) for number in range(size)}
        )
        return made


def _paths(code: str, at: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    for field, mark, inner in all_types().get(code, {}).values():
        path = (*at, (field, mark, inner))
        if mark:
            yield path
        is_again = sum(known == inner for _, _, known in at) > 1
        if inner in all_types() and mark != "%" and len(path) < DEEPEST and not is_again:
            yield from _paths(inner, path)


def _item(code: str, number: int) -> Any:
    fields = all_types().get(code)
    if fields is None:
        return _scalar("", code, number)
    return {
        field: _scalar(field, inner, number)
        for field, mark, inner in fields.values()
        if not mark and inner not in all_types() and field in NAMING
    }


def _scalar(field: str, code: str, number: int) -> Any:
    if code in ("i", "I"):
        return number % 60_000 + 1
    if code == "b":
        return True
    if code == "y":
        return "eA=="
    return f"/p/x{number}" if field in ("mountPath", "devicePath", "path") else f"x{number}"

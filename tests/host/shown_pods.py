# SPDX-License-Identifier: Apache-2.0
"""Pods of a daemon, flat: what tests look at, without what is empty."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

from agent.kinds.pods.pod_parts import containers, created, id_of, labels_of, name_of, namespace_of, state_of, uid_of
from agent.kinds.table import FACTS, Object

LIST_PODS = ("api", "ObjectService/List", '{"kind": "pods"}')


def listed_pods(ctl: Callable[..., CompletedProcess[str]]) -> list[dict[str, Any]]:
    done = ctl(*LIST_PODS)
    assert done.returncode == 0, done.stderr
    return pods_in(done.stdout)


def pods_in(text: str) -> list[dict[str, Any]]:
    """Of what `kepctl api ObjectService/List` prints."""
    return [flat(made) for made in json.loads(text).get("objects", [])]


def flat(pod: Object) -> dict[str, Any]:
    status = pod["status"]
    conditions = [
        {**condition, "status": True} if condition["status"] == "True" else {**condition, "status": False}
        for condition in status["conditions"]
    ]
    shown = {
        "namespace": namespace_of(pod), "name": name_of(pod), "uid": uid_of(pod), "createdAt": created(pod),
        "labels": labels_of(pod), "ip": status.get("podIP"), "conditions": conditions,
        "containers": [_container(kind, each) for kind, each in containers(pod)],
        **{name: status.get(name) for name in ("phase", "reason", "message", "qosClass")},
        **pod[FACTS], "sandboxId": pod[FACTS].get("sandboxID"),
    }  # fmt: skip
    return _set(shown)


def _container(kind: str, status: Object) -> dict[str, Any]:
    state, detail = state_of(status)
    last = status.get("lastState", {}).get("terminated")
    return _set({
        "name": status["name"], "kind": kind, "id": id_of(status), "image": status["image"],
        "imageId": status["imageID"], "state": state.capitalize(), "ready": status["ready"],
        "started": status["started"], "restartCount": status["restartCount"], "last": _set(last or {}),
        "resources": status.get("resources"), "stopSignal": status.get("stopSignal"),
        "devices": [
            {"resource": each["name"], "id": one["resourceID"], "health": one["health"]}
            for each in status.get("allocatedResourcesStatus", ()) for one in each["resources"]
        ],
        **{name: detail.get(name) for name in ("reason", "message", "exitCode", "startedAt", "finishedAt")},
    })  # fmt: skip


def _set(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}

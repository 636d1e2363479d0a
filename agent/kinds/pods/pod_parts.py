# SPDX-License-Identifier: Apache-2.0
"""Parts of a pod as `agent/pods/view/objects.py` makes it, for whoever shows pods or waits for them."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.parts import items, part
from agent.kinds.table import FACTS

Object = Mapping[str, Any]
RUNNING, TERMINATED, WAITING = "running", "terminated", "waiting"


def namespace_of(pod: Object) -> str:
    return str(pod["metadata"]["namespace"])


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def uid_of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def manifest_key(pod: Object) -> str:
    """By the name that its manifest has for it."""
    return f"{namespace_of(pod)}/{own(pod, 'manifestName')}"


def created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def labels_of(pod: Object) -> Mapping[str, str]:
    return part(pod, "metadata", "labels")


def own(pod: Object, name: str) -> str:
    """What only kepd knows of a pod: `status`, `cause`, `waitsFor`, `manifest`, `manifestName`, `nameServers`."""
    return str(part(pod, FACTS).get(name) or "")


def told(pod: Object, name: str) -> str:
    """A text of its status, such as `phase` or `message`."""
    return str(part(pod, "status").get(name) or "")


def status_word(pod: Object) -> str:
    """As in the column STATUS: the phase, or something more specific."""
    return own(pod, "status") or told(pod, "phase")


def is_ready(pod: Object) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in items(pod, "status", "conditions")
    )


def containers(pod: Object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each with its kind (init, sidecar, main or ephemeral), those that begin first before the others."""
    sidecars = part(pod, FACTS).get("sidecars") or ()
    for status in items(pod, "status", "initContainerStatuses"):
        yield "sidecar" if status.get("name") in sidecars else "init", status
    for status in items(pod, "status", "containerStatuses"):
        yield "main", status
    for status in items(pod, "status", "ephemeralContainerStatuses"):
        yield "ephemeral", status


def state_of(status: Object) -> tuple[str, dict[str, Any]]:
    """running, terminated or waiting, and what is said of that."""
    state = part(status, "state")
    word = next(iter(state), WAITING)
    return word, part(state, word)


def id_of(status: Object) -> str:
    """As the runtime has it."""
    return str(status.get("containerID") or "").removeprefix("containerd://")


def ports_of(pod: Object) -> dict[str, int]:
    """Those that have names."""
    return {
        str(port["name"]): int(port.get("containerPort", 0))
        for container in items(pod, "spec", "containers")
        for port in items(container, "ports")
        if port.get("name")
    }

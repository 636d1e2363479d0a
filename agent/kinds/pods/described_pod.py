# SPDX-License-Identifier: Apache-2.0
"""A pod in full, as `describe` tells it: what it is, its containers, conditions and volumes; each error is there once.

The daemon sends variables by name alone, so a value of the manifest, of a Secret or of a ConfigMap is only said
to be there. Each word comes from a manifest, so it is made printable here.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent.kinds.described import WIDTH, entries_of, grid, joined, moment, reason_entries
from agent.kinds.parts import items, part
from agent.kinds.pods.pod_parts import (
    TERMINATED,
    containers,
    created,
    id_of,
    labels_of,
    name_of,
    namespace_of,
    own,
    state_of,
    told,
    uid_of,
)
from agent.kinds.table import FACTS
from agent.model.finding import printable

if TYPE_CHECKING:
    from agent.wire.kepd.v1 import pod_pb2

KINDS = (("init", "Init Containers"), ("sidecar", "Sidecars"), ("main", "Containers"), ("ephemeral", "Ephemeral"))
Made = Mapping[str, Any]
LISTS = ("containers", "initContainers", "ephemeralContainers")
CLASSES = (("RDT Class", "rdt"), ("Block I/O Class", "blockio"))
UNSAID = "<as in the manifest>"


def pod_lines(pod: Made, why: "pod_pb2.ExplainPodResponse") -> Iterator[str]:
    yield from entries_of("", _of_pod(pod, why))
    manifests = containers_of(pod)
    for kind, title in KINDS:
        chosen = [status for of, status in containers(pod) if of == kind]
        if chosen:
            yield f"{title}:"
        for status in chosen:
            yield f"  {status['name']}:"
            yield from entries_of("    ", _of_container(status))
            yield from manifest_lines(manifests[status["name"]]) if status["name"] in manifests else ()
    yield "Conditions:"
    rows = [
        tuple(str(condition.get(name, "")) for name in ("type", "status", "reason", "message"))
        for condition in items(pod, "status", "conditions")
    ]
    yield from grid(("Type", "Status", "Reason", "Message"), rows)
    volumes = items(pod, FACTS, "volumes")
    yield "Volumes:" if volumes else "Volumes:  <none>"
    for volume in volumes:
        yield f"  {volume['name']}:  {volume['source']}"
        yield from (f"    {mount}" for mount in volume.get("mounts", ()))
    yield f"{'QoS Class:':{WIDTH}} {told(pod, 'qosClass')}"


def _of_pod(pod: Made, why: "pod_pb2.ExplainPodResponse") -> Iterator[tuple[str, str]]:
    status, phase = own(pod, "status"), told(pod, "phase")
    yield "Name", name_of(pod)
    yield "Namespace", namespace_of(pod)
    yield "UID", uid_of(pod)
    yield "Created", moment(created(pod))
    yield "Labels", joined(labels_of(pod))
    yield "Status", status if status in ("", phase) else f"{status} (phase {phase})"
    yield "Reason", told(pod, "reason")
    if why.reasons:
        yield from reason_entries(why.reasons)
    else:
        yield "Message", told(pod, "message")
        yield "Waits For", why.waits_for
    yield "IP", told(pod, "podIP")
    yield from _classes(part(pod, "metadata", "annotations"))
    owner = next(iter(items(pod, "metadata", "ownerReferences")), None)
    yield "Controlled By", f"{owner['kind']}/{owner['name']}" if owner is not None else ""
    yield "Manifest", own(pod, "manifest")
    yield "Requests", joined(part(pod, FACTS, "resources", "requests"))
    yield "Limits", joined(part(pod, FACTS, "resources", "limits"))


def _classes(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of caches and of block I/O: for the pod, and for containers by their names."""
    for title, domain in CLASSES:
        found: list[str] = []
        for name, value in sorted(annotations.items()):
            place = name.removeprefix(f"{domain}.resources.beta.kubernetes.io/")
            if place == "pod":
                found.insert(0, value)
            elif place.startswith("container."):
                found.append(f"{value} for {place.removeprefix('container.')}")
        yield title, printable(", ".join(found))


def _of_container(status: Made) -> Iterator[tuple[str, str]]:
    word, detail = state_of(status)
    yield "Container ID", id_of(status)
    yield "Image", str(status.get("image", ""))
    yield "Image ID", str(status.get("imageID", ""))
    yield "State", word.capitalize()
    yield from _instance(detail, has_ended=word == TERMINATED)
    if last := part(status, "lastState", "terminated"):
        yield "Last State", "Terminated"
        yield from _instance(last, has_ended=True)
    yield "Ready", str(status.get("ready"))
    yield "Restart Count", str(status.get("restartCount"))
    yield "Requests", joined(part(status, "resources", "requests")) or "none"
    yield "Limits", joined(part(status, "resources", "limits")) or "none"


def _instance(detail: Made, *, has_ended: bool) -> Iterator[tuple[str, str]]:
    yield "  Reason", str(detail.get("reason", ""))
    yield "  Message", str(detail.get("message", ""))
    yield "  Started", moment(detail.get("startedAt", ""))
    if has_ended:
        yield "  Exit Code", str(detail.get("exitCode", 0))
        yield "  Finished", moment(detail.get("finishedAt", ""))


def containers_of(pod: Made) -> Mapping[str, Made]:
    """What the manifest says of them, by name."""
    spec = part(pod, "spec")
    return {str(container.get("name", "")): container for name in LISTS for container in items(spec, name)}


def manifest_lines(one: Made) -> Iterator[str]:
    for title, name in (("Command", "command"), ("Args", "args")):
        if one.get(name):
            yield f"    {title}:"
            yield from (f"      {printable(line)}" for word in one[name] for line in str(word).split("\n"))
    yield from _section("Environment Variables from", map(_whole_source, items(one, "envFrom")))
    yield from _section("Environment", map(_variable, items(one, "env")), "<none>")
    yield from _section("Mounts", map(_mount, items(one, "volumeMounts")), "<none>")


def _section(title: str, lines: Iterator[str], empty: str = "") -> Iterator[str]:
    told = [f"      {printable(line)}" for line in lines]
    if told or empty:
        yield f"    {title}:" + ("" if told else f"  {empty}")
    yield from told


def _whole_source(one: Made) -> str:
    kind, name = ("Secret", "secretRef") if "secretRef" in one else ("ConfigMap", "configMapRef")
    source = part(one, name)
    prefix = f" with prefix '{one['prefix']}'" if one.get("prefix") else ""
    return f"{source.get('name', '')}  {kind}{prefix}{_optional(source)}"


def _variable(one: Made) -> str:
    return f"{one.get('name', '')}:  {_value(part(one, 'valueFrom'))}"


def _value(source: Made) -> str:
    match next(iter(source), ""):
        case "secretKeyRef" as name:
            key = part(source, name)
            return f"<set to the key '{key.get('key', '')}' in secret '{key.get('name', '')}'>{_optional(key)}"
        case "configMapKeyRef" as name:
            key = part(source, name)
            return f"<set to the key '{key.get('key', '')}' of config map '{key.get('name', '')}'>{_optional(key)}"
        case "fileKeyRef" as name:
            key = part(source, name)
            place = f"file '{key.get('path', '')}' in volume '{key.get('volumeName', '')}'"
            return f"<set to the key '{key.get('key', '')}' of {place}>{_optional(key)}"
        case "fieldRef" as name:
            field = part(source, name)
            return f"({field.get('apiVersion', 'v1')}:{field.get('fieldPath', '')})"
        case "resourceFieldRef" as name:
            field = part(source, name)
            of = f" of {field['containerName']}" if field.get("containerName") else ""
            return f"({field.get('resource', '')}{of})"
    return UNSAID


def _optional(source: Made) -> str:
    return "  (optional)" if source.get("optional") else ""


def _mount(one: Made) -> str:
    how = "ro" if one.get("readOnly") else "rw"
    inside = one.get("subPath") or one.get("subPathExpr")
    path = f', path="{inside}"' if inside else ""
    return f"{one.get('mountPath', '')} from {one.get('name', '')} ({how}{path})"

# SPDX-License-Identifier: Apache-2.0
"""A pod in full, as `describe` tells it: what it is, its containers, conditions and volumes; each error is there once.

The daemon sends variables by name alone, so a value of the manifest, of a Secret or of a ConfigMap is only said
to be there. Each word comes from a manifest, so it is made printable here.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.described import WIDTH, entries_of, grid, joined, moment, reason_entries
from agent.kinds.pods.parts import items, part
from agent.model.finding import printable
from agent.wire.kepd.v1 import pod_pb2

KINDS = (("init", "Init Containers"), ("sidecar", "Sidecars"), ("main", "Containers"), ("ephemeral", "Ephemeral"))
Made = Mapping[str, Any]
LISTS = ("containers", "initContainers", "ephemeralContainers")
CLASSES = (("RDT Class", "rdt"), ("Block I/O Class", "blockio"))
UNSAID = "<as in the manifest>"


def pod_lines(pod: pod_pb2.Pod, why: pod_pb2.ExplainPodResponse) -> Iterator[str]:
    yield from entries_of("", _of_pod(pod, why))
    manifests = containers_of(pod.spec)
    for kind, title in KINDS:
        chosen = [one for one in pod.containers if one.kind == kind]
        if chosen:
            yield f"{title}:"
        for one in chosen:
            yield f"  {one.name}:"
            yield from entries_of("    ", _of_container(one))
            yield from manifest_lines(manifests[one.name]) if one.name in manifests else ()
    yield "Conditions:"
    rows = [(one.type, str(one.status), one.reason, one.message) for one in pod.conditions]
    yield from grid(("Type", "Status", "Reason", "Message"), rows)
    yield "Volumes:" if pod.volumes else "Volumes:  <none>"
    for volume in pod.volumes:
        yield f"  {volume.name}:  {volume.source}"
        yield from (f"    {mount}" for mount in volume.mounts)
    yield f"{'QoS Class:':{WIDTH}} {pod.qos_class}"


def _of_pod(pod: pod_pb2.Pod, why: pod_pb2.ExplainPodResponse) -> Iterator[tuple[str, str]]:
    yield "Name", pod.name
    yield "Namespace", pod.namespace
    yield "UID", pod.uid
    yield "Created", moment(pod.created_at)
    yield "Labels", joined(pod.labels)
    yield "Status", pod.status if pod.status in ("", pod.phase) else f"{pod.status} (phase {pod.phase})"
    yield "Reason", pod.reason
    if why.reasons:
        yield from reason_entries(why.reasons)
    else:
        yield "Message", pod.message
        yield "Waits For", why.waits_for
    yield "IP", pod.ip
    yield from _classes(pod.annotations)
    yield "Controlled By", f"{pod.owner.kind}/{pod.owner.name}" if pod.HasField("owner") else ""
    yield "Manifest", pod.manifest
    if pod.resources.requests or pod.resources.limits:
        yield "Requests", joined(pod.resources.requests)
        yield "Limits", joined(pod.resources.limits)


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


def _of_container(one: pod_pb2.Container) -> Iterator[tuple[str, str]]:
    yield "Container ID", one.id
    yield "Image", one.image
    yield "Image ID", one.image_id
    yield "State", one.state
    yield "  Reason", one.reason
    yield "  Message", one.message
    yield "  Started", moment(one.started_at)
    if one.state == "Terminated":
        yield "  Exit Code", str(one.exit_code)
        yield "  Finished", moment(one.finished_at)
    if one.HasField("last"):
        yield "Last State", "Terminated"
        yield "  Reason", one.last.reason
        yield "  Message", one.last.message
        yield "  Exit Code", str(one.last.exit_code)
        yield "  Started", moment(one.last.started_at)
        yield "  Finished", moment(one.last.finished_at)
    yield "Ready", str(one.ready)
    yield "Restart Count", str(one.restart_count)
    yield "Requests", joined(one.resources.requests) or "none"
    yield "Limits", joined(one.resources.limits) or "none"


def containers_of(spec: bytes) -> Mapping[str, Made]:
    """By name; none if the daemon sent no spec."""
    made = json.loads(spec or b"{}")
    return {str(one.get("name", "")): one for name in LISTS for one in items(made, name)}


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

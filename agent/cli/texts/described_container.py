# SPDX-License-Identifier: Apache-2.0
"""What `kepctl describe pod` tells of a container from its manifest: command, variables and mounts, in kubectl's words.

The daemon sends variables by name alone, so a value of the manifest, of a Secret or of a ConfigMap is only said
to be there. Each word comes from a manifest, so it is made printable here.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent.kinds.pods.workloads import items, part
from agent.model.finding import printable

Made = Mapping[str, Any]
LISTS = ("containers", "initContainers", "ephemeralContainers")
UNSAID = "<as in the manifest>"


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

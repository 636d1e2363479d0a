# SPDX-License-Identifier: Apache-2.0
"""What a path of Kubernetes' API means: a resource, a namespace, an object, a part of it."""

import re
from collections.abc import Mapping

import msgspec

from kepd_door.shape.resources import BY_PLACE, Resource

NAME = re.compile(r"[a-z0-9A-Z]([-._:a-z0-9A-Z]*[a-z0-9A-Z])?", re.ASCII)
LONGEST = 253
PROXIED = ("pods", "services")
# Of a namespace itself.
PARTS = (["status"], ["finalize"])


class Target(msgspec.Struct, frozen=True):
    """Empty `namespace`: all of them, or the kind has none; empty `name`: all objects; `part` is a subresource."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    part: str = ""


def target_of(path: str) -> Target | None:
    """None for what is no resource here. The path is decoded already."""
    steps = path.strip("/").split("/")
    if steps[0] == "api" and len(steps) > 2:
        group, version, rest = "", steps[1], steps[2:]
    elif steps[0] == "apis" and len(steps) > 3:
        group, version, rest = steps[1], steps[2], steps[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2:] not in PARTS:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PLACE.get((group, version, rest[0]))
    if rest[2:3] == ["proxy"] and resource is not None and resource.name in PROXIED:
        # What stands behind it is the path of another.
        rest = rest[:3]
    if resource is None or len(rest) > 3 or (namespace and not resource.has_namespace):
        return None
    words = [*([namespace] if namespace else []), *rest[1:]]
    if not all(NAME.fullmatch(word) and len(word) <= LONGEST for word in words):
        return None
    return Target(resource, namespace, *rest[1:])


def verb_of(method: str, target: Target, query: Mapping[str, str]) -> str:
    """As Kubernetes' rules of access call it."""
    if method in ("GET", "HEAD"):
        if query.get("watch") in ("1", "true", "True"):
            return "watch"
        return "get" if target.name else "list"
    if method == "DELETE":
        return "delete" if target.name else "deletecollection"
    return {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(method, "")

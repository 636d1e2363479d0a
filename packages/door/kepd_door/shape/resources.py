# SPDX-License-Identifier: Apache-2.0
"""Kinds as resources of Kubernetes' API: the group and the plural they have there, and what may be done with them.

Kinds that Kubernetes does not have are in the group `kepd.dev`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agent.kinds.kind import Kind
from agent.kinds.registry import KINDS

Object = dict[str, Any]
OWN_GROUP = "kepd.dev"
READ = ("get", "list", "watch")
WRITE = ("create", "delete", "deletecollection", "patch", "update")


class Resource(msgspec.Struct, frozen=True):
    """`name` stands in URLs; `kind` None: it has no objects of its own, and is answered by the door."""

    group: str
    version: str
    name: str
    singular: str
    object_kind: str
    has_namespace: bool
    short: tuple[str, ...] = ()
    verbs: tuple[str, ...] = READ
    kind: Kind | None = None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As messages have it."""
        return f"{self.name}.{self.group}" if self.group else self.name

    @property
    def is_written(self) -> bool:
        return "update" in self.verbs and self.kind is not None


def _plural(kind: str) -> str:
    word = kind.lower()
    return f"{word[:-1]}ies" if word.endswith("cy") else word + ("es" if word.endswith("s") else "s")


def _resource(kind: Kind) -> Resource:
    if kind.api:
        name, singular = _plural(kind.api), kind.api.lower()
        # Words that Kubernetes has for something else would be taken by the first of both.
        short = tuple(word for word in kind.short if word not in (name, singular) and len(word) < 7 and word != "ep")
        verbs = READ if kind.is_made else tuple(sorted((*READ, *WRITE)))
        return Resource(kind.group, "v1", name, singular, kind.api, kind.has_namespace, short, verbs, kind)
    if shown := kind.observed_as:
        # Other nodes may stand in manifests, for topology.
        verbs = tuple(sorted((*READ, *WRITE))) if kind.written_as else READ
        return Resource("", "v1", kind.plural, kind.singular, shown, kind.has_namespace, kind.short, verbs, kind)
    shown = kind.singular.capitalize()
    return Resource(OWN_GROUP, "v1", kind.plural, kind.singular, shown, kind.has_namespace, kind.short, READ, kind)


REVIEWS = tuple(
    Resource(f"{group}.k8s.io", "v1", f"{kind.lower()}s", "", kind, False, (), ("create",))
    for group, kind in (
        ("authorization", "SelfSubjectAccessReview"),
        ("authorization", "SelfSubjectRulesReview"),
        ("authentication", "SelfSubjectReview"),
    )
)
METRICS = (
    Resource("metrics.k8s.io", "v1beta1", "nodes", "", "NodeMetrics", False, (), ("get", "list")),
    Resource("metrics.k8s.io", "v1beta1", "pods", "", "PodMetrics", True, (), ("get", "list")),
)
# What a manifest has of them is read as slices; no file of kinds tells how they are shown.
ENDPOINTS = Kind("endpoints", "endpoints", ("ep",), "Endpoints")
WRITTEN = tuple(sorted((*READ, *WRITE)))
OLD_ENDPOINTS = Resource("", "v1", "endpoints", "endpoints", "Endpoints", True, ("ep",), WRITTEN, ENDPOINTS)
RESOURCES: Sequence[Resource] = (*map(_resource, KINDS), OLD_ENDPOINTS, *REVIEWS, *METRICS)
BY_PLACE: Mapping[tuple[str, str, str], Resource] = {(one.group, one.version, one.name): one for one in RESOURCES}
NAMESPACES = BY_PLACE["", "v1", "namespaces"]


def groups(resources: Iterable[Resource]) -> dict[str, str]:
    """Their versions by their names, the core left out."""
    return {one.group: one.version for one in resources if one.group}

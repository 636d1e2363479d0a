# SPDX-License-Identifier: Apache-2.0
"""What there is, as clients ask for it first: groups, their resources, and both in one document.

What a node does not have is absent, so that a client never offers it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kepd_door.shape.resources import Resource, groups

Object = dict[str, Any]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSIONS = ("v2", "v2beta1")


def api_versions(address: str) -> Object:
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def _group(name: str, version: str) -> Object:
    one = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [one], "preferredVersion": one}


def group_list(resources: Sequence[Resource]) -> Object:
    found = [_group(name, version) for name, version in groups(resources).items()]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}


def one_group(resources: Sequence[Resource], name: str) -> Object | None:
    version = groups(resources).get(name)
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, version)} if version else None


def resource_list(resources: Sequence[Resource], group: str, version: str) -> Object | None:
    of_group = [one for one in resources if (one.group, one.version) == (group, version)]
    if not of_group:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": [made for one in of_group for made in _described(one)],
    }


def _described(one: Resource) -> Iterator[Object]:
    made: Object = {
        "name": one.name,
        "singularName": one.singular,
        "namespaced": one.has_namespace,
        "kind": one.object_kind,
        "verbs": list(one.verbs),
    }
    if one.short:
        made["shortNames"] = list(one.short)
    if one.kind is not None and one.kind.is_in_all:
        made["categories"] = ["all"]
    yield made
    for name, kind, verbs in _parts(one):
        yield {
            "name": f"{one.name}/{name}", "singularName": "", "namespaced": one.has_namespace, "kind": kind,
            "verbs": list(verbs), **_group_of_part(kind),
        }  # fmt: skip


def _parts(one: Resource) -> Sequence[tuple[str, str, tuple[str, ...]]]:
    return one.kind.subresources if one.kind is not None else ()


def _group_of_part(kind: str) -> Object:
    group = {"Scale": "autoscaling", "Eviction": "policy"}.get(kind)
    return {"group": group, "version": "v1"} if group else {}


def aggregated(resources: Sequence[Resource], version: str, *, is_core: bool) -> Object:
    """Everything in one answer."""
    names = {one.group: one.version for one in resources if (not one.group) == is_core}
    items = [
        {
            "metadata": {"name": name} if name else {"creationTimestamp": None},
            "versions": [
                {
                    "version": of,
                    "freshness": "Current",
                    "resources": [_aggregated(one) for one in resources if (one.group, one.version) == (name, of)],
                }
            ],
        }
        for name, of in names.items()
    ]
    return {
        "kind": "APIGroupDiscoveryList", "apiVersion": f"apidiscovery.k8s.io/{version}", "metadata": {},
        "items": items,
    }  # fmt: skip


def _aggregated(one: Resource) -> Object:
    made: Object = {
        "resource": one.name,
        "responseKind": {"group": one.group, "version": one.version, "kind": one.object_kind},
        "scope": "Namespaced" if one.has_namespace else "Cluster",
        "singularResource": one.singular,
        "verbs": list(one.verbs),
    }
    if one.short:
        made["shortNames"] = list(one.short)
    if one.kind is not None and one.kind.is_in_all:
        made["categories"] = ["all"]
    parts = [
        {
            "subresource": name,
            "responseKind": {"group": "", "version": "v1", **_group_of_part(kind), "kind": kind},
            "verbs": list(verbs),
        }
        for name, kind, verbs in _parts(one)
    ]
    return made | ({"subresources": parts} if parts else {})

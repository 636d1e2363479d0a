# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps, Secrets and what else has no life of its own: objects of the manifests."""

import json
from collections.abc import Sequence
from typing import Any

from agent.kinds.kube_shape import labels_of, manifest_object
from agent.kinds.registry import Kind, Named
from agent.kinds.shown import AnyListing, Ask, Shown
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import object_pb2 as pb

SERVICE = "kepd.v1.ObjectService"

COLUMNS: Columns[pb.Object] = (
    Column("NAMESPACE", lambda one: one.namespace or "-"),
    Column("NAME", lambda one: one.name),
    Column("DATA", lambda one: str(_keys(one))),
    Column("SOURCE", lambda one: one.source, wide=True),
)


def _keys(one: pb.Object) -> int:
    content = json.loads(one.content)
    return sum(len(content.get(part) or {}) for part in ("data", "binaryData", "stringData"))


def ask_for(kind: Kind, *, may_fail: bool = False) -> Ask:
    return Ask(f"{SERVICE}/ListObjects", pb.ListObjectsRequest(kind=kind.api), pb.ListObjectsResponse, may_fail)


def object_listing(kind: Kind, objects: Sequence[pb.Object], columns: Columns[pb.Object]) -> AnyListing:
    return Listing(
        kind.api, objects, columns, lambda one: f"{kind.singular}/{Named(one.namespace, one.name).key}",
        f"no {kind.plural}",
        named=lambda one: Named(one.namespace, one.name),
        labels=lambda one: labels_of(manifest_object(one)),
        objects=lambda objects: [manifest_object(one) for one in objects],
    )  # fmt: skip


def _listing(kind: Kind, answers: Sequence[Any]) -> AnyListing:
    return object_listing(kind, answers[0].objects, COLUMNS)


SHOWN = Shown(lambda kind, _how: (ask_for(kind),), _listing)

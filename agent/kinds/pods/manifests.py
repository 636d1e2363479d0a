# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps, Secrets and what else has no life of its own: objects of the manifests."""

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from agent.kinds.ages import age
from agent.kinds.kube_shape import labels_of, manifest_object
from agent.kinds.pods.parts import created_at
from agent.kinds.registry import Kind, Named
from agent.kinds.selection import chosen
from agent.kinds.shown import AnyListing, Ask, Shown
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import object_pb2 as pb

SERVICE = "kepd.v1.ObjectService"
Made = dict[str, Any]


def read_made(one: pb.Object) -> Made:
    made: Made = json.loads(one.content)
    return made


def _keys(one: pb.Object) -> int:
    content = read_made(one)
    return sum(len(content.get(part) or {}) for part in ("data", "binaryData", "stringData"))


NAMES: Columns[pb.Object] = (
    Column("NAMESPACE", lambda one: one.namespace or "-"),
    Column("NAME", lambda one: one.name),
)
AGE: Column[pb.Object] = Column("AGE", lambda one: age(created_at(read_made(one))))
SOURCE: Column[pb.Object] = Column("SOURCE", lambda one: one.source, wide=True)
COLUMNS: Columns[pb.Object] = (*NAMES, Column("DATA", lambda one: str(_keys(one))), SOURCE)


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


def shown_objects(columns: Columns[pb.Object] | Mapping[str, Columns[pb.Object]]) -> Shown:
    """`columns`: of all objects, or by their kinds."""

    def listing(kind: Kind, answers: Sequence[Any]) -> AnyListing:
        own = columns[kind.api] if isinstance(columns, Mapping) else columns
        return object_listing(kind, answers[0].objects, own)

    return Shown(lambda kind, _how: (ask_for(kind),), listing)


def found_object(kind: Kind, namespace: str, name: str) -> Generator[Ask, Any, pb.Object]:
    """The one that is to be described."""
    answer = yield ask_for(kind)
    found: pb.Object = chosen(kind, namespace, name, answer.objects)
    return found


SHOWN = shown_objects(COLUMNS)

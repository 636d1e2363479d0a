# SPDX-License-Identifier: Apache-2.0
"""What `kepctl get configmaps`, `secrets` and `servicecidrs` list: objects of the manifests."""

import json
from typing import Any

from agent.cli.client import Client
from agent.cli.kinds import Kind, Named
from agent.cli.kube_objects import labels_of, manifest_object
from agent.cli.session import CommandFailed
from agent.cli.table import Column, Columns, Listing
from agent.model.exit_codes import CONFLICT, FAILURE
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


def list_objects(daemon: Client, kind: Kind) -> Listing[pb.Object]:
    answer = daemon.call(f"{SERVICE}/ListObjects", pb.ListObjectsRequest(kind=kind.api), pb.ListObjectsResponse)
    return Listing(
        kind.api, answer.objects, COLUMNS, lambda one: f"{kind.singular}/{Named(one.namespace, one.name).key}",
        f"no {kind.plural}",
        named=lambda one: Named(one.namespace, one.name),
        labels=lambda one: labels_of(manifest_object(one)),
        objects=lambda objects: [manifest_object(one) for one in objects],
    )  # fmt: skip


def manifests_of(daemon: Client, kind: Kind) -> dict[str, dict[str, Any]]:
    """By `namespace/name`, where the manifests are read; the API server has them elsewhere."""
    try:
        listing = list_objects(daemon, kind)
    except CommandFailed as error:
        if error.exit_code not in (CONFLICT, FAILURE):
            raise
        return {}
    return {f"{one.namespace}/{one.name}": manifest_object(one) for one in listing.items}

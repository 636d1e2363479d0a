# SPDX-License-Identifier: Apache-2.0
"""File systems that kepd, containers and images use."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, Ask, How, Shown
from agent.kinds.table import Column, Columns, Listing
from agent.model.images.text import bytes_text
from agent.wire.kepd.v1 import node_pb2 as pb

COLUMNS: Columns[pb.Filesystem] = (
    Column("MOUNT", lambda one: one.mount),
    Column("DEVICE", lambda one: one.device),
    Column("TYPE", lambda one: one.type),
    Column("ROLES", lambda one: ",".join(one.roles)),
    Column("SIZE", lambda one: bytes_text(one.size_bytes) if one.size_bytes else "-"),
    Column("USED", lambda one: bytes_text(one.used_bytes) if one.size_bytes else "-"),
    Column("AVAIL", lambda one: bytes_text(one.available_bytes) if one.size_bytes else "-"),
    Column("USE%", lambda one: _share(one.used_bytes, one.used_bytes + one.available_bytes)),
    Column("IUSE%", lambda one: _share(one.inodes - one.inodes_free, one.inodes)),
    Column("HIGH", lambda one: f"{one.collects_at}%" if one.collects_at else "-"),
    Column("STATE", lambda one: one.state),
    Column("NEXT", lambda one: one.next or "-"),
    Column("MESSAGE", lambda one: one.message),
    Column("USED BY", lambda one: _used_by(one.used_by), wide=True),
    Column("PATHS", lambda one: ",".join(one.paths), wide=True),
)


def _used_by(parts: Iterable[pb.SpaceUse]) -> str:
    return ", ".join(f"{one.what} {bytes_text(one.bytes)}" for one in parts) or "-"


def _share(part: int, whole: int) -> str:
    return f"{part / whole * 100:.0f}%" if whole else "-"


def _asks(_kind: Kind, how: How) -> Sequence[Ask]:
    request = pb.ListFilesystemsRequest(with_use=how.with_objects or how.is_wide)
    return (Ask("kepd.v1.NodeService/ListFilesystems", request, pb.ListFilesystemsResponse),)


def _listing(_kind: Kind, answers: Sequence[Any]) -> AnyListing:
    return Listing(
        "Filesystem", answers[0].filesystems, COLUMNS, lambda one: f"filesystem/{one.mount}", "none is known"
    )


SHOWN = Shown(_asks, _listing)

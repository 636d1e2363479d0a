# SPDX-License-Identifier: Apache-2.0
"""The chain of hosts of each registry, as containerd's configuration has it."""

from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import image_pb2 as pb

COLUMNS: Columns[pb.Mirror] = (
    Column("REGISTRY", lambda one: one.registry),
    Column("URL", lambda one: one.url),
    Column("CAPABILITIES", lambda one: ",".join(one.capabilities)),
    Column("SOURCE", lambda one: one.source),
    Column("PROBLEM", lambda one: one.problem),
)


def _listing(answer: pb.ListMirrorsResponse) -> AnyListing:
    return Listing("Mirror", answer.mirrors, COLUMNS, lambda one: f"mirror/{one.registry}", "no mirrors")


SHOWN = shown_by("kepd.v1.ImageService/ListMirrors", pb.ListMirrorsRequest(), pb.ListMirrorsResponse, _listing)

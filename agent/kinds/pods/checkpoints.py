# SPDX-License-Identifier: Apache-2.0
"""Archives of containers' states."""

from agent.kinds.ages import age
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.model.images.text import bytes_text
from agent.wire.kepd.v1 import pod_pb2 as pb

COLUMNS: Columns[pb.Checkpoint] = (
    Column("NAME", lambda one: one.name),
    Column("STATE", lambda one: one.state),
    Column("SIZE", lambda one: bytes_text(one.size_bytes)),
    Column("AGE", lambda one: age(one.made_at)),
    Column("IMAGE", lambda one: one.image or "-"),
    Column("CRIU", lambda one: one.criu or "-"),
)


def _listing(answer: pb.ListCheckpointsResponse) -> AnyListing:
    return Listing("Checkpoint", answer.checkpoints, COLUMNS, lambda one: f"checkpoint/{one.name}", "none is there")


SHOWN = shown_by(
    "kepd.v1.PodService/ListCheckpoints", pb.ListCheckpointsRequest(), pb.ListCheckpointsResponse, _listing
)

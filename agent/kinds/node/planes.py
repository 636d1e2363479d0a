# SPDX-License-Identifier: Apache-2.0
"""Planes of the daemon, and how each of them is."""

from agent.kinds.ages import age
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import node_pb2 as pb

COLUMNS: Columns[pb.Plane] = (
    Column("PLANE", lambda plane: plane.name),
    Column("STATE", lambda plane: pb.PlaneState.Name(plane.state).removeprefix("PLANE_STATE_").lower()),
    Column("SINCE", lambda plane: age(plane.since)),
    Column("RESTARTS", lambda plane: str(plane.restarts)),
    Column("MESSAGE", lambda plane: plane.message),
)


def _listing(answer: pb.ListPlanesResponse) -> AnyListing:
    return Listing("Plane", answer.planes, COLUMNS, lambda plane: f"plane/{plane.name}")


SHOWN = shown_by("kepd.v1.NodeService/ListPlanes", pb.ListPlanesRequest(), pb.ListPlanesResponse, _listing)

# SPDX-License-Identifier: Apache-2.0
"""Enhancements of Kubernetes, and what has them here."""

from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import node_pb2 as pb

COLUMNS: Columns[pb.Feature] = (
    Column("KEP", lambda one: one.keps or "-"),
    Column("WHAT", lambda one: one.what),
    Column("STATE", lambda one: one.state),
    Column("WHY", lambda one: one.why),
)


def _listing(answer: pb.ListFeaturesResponse) -> AnyListing:
    return Listing("Feature", answer.features, COLUMNS, lambda one: f"feature/{one.keps or one.what}", "none is known")


SHOWN = shown_by("kepd.v1.NodeService/ListFeatures", pb.ListFeaturesRequest(), pb.ListFeaturesResponse, _listing)

# SPDX-License-Identifier: Apache-2.0
"""Containers of pods."""

from agent.kinds.ages import age
from agent.kinds.registry import Named
from agent.kinds.shown import AnyListing, shown_by
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import pod_pb2 as pb

COLUMNS: Columns[pb.Container] = (
    Column("CONTAINER", lambda one: one.id[:13]),
    Column("NAME", lambda one: one.name),
    Column("STATE", lambda one: one.state),
    Column("REASON", lambda one: one.reason),
    Column("IMAGE", lambda one: one.image),
    Column("AGE", lambda one: age(one.started_at)),
    Column("POD", lambda one: one.pod_name),
    Column("EXIT", lambda one: str(one.exit_code) if one.state == "Terminated" else "", wide=True),
)


def _listing(answer: pb.ListPodsResponse) -> AnyListing:
    containers = [one for pod in answer.pods for one in pod.containers]
    return Listing(
        "Container", containers, COLUMNS, lambda one: f"container/{one.id}", "no containers",
        named=lambda one: Named(one.pod_namespace, one.name),
    )  # fmt: skip


SHOWN = shown_by("kepd.v1.PodService/ListPods", pb.ListPodsRequest(), pb.ListPodsResponse, _listing)

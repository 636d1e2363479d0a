# SPDX-License-Identifier: Apache-2.0
"""Everything that waits because kepd makes it wait: calls of a kubelet, and pulls from a registry that asked for a
pause."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration

from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, Ask, Shown
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import cri_proxy_pb2 as pb

# A node may have only one of the two planes.
METHODS = ("kepd.v1.CriProxyService/ListHolds", "kepd.v1.ImageService/ListPullHolds")
WHY_SIGNS = 80


def seconds_text(duration: Duration) -> str:
    return f"{duration.ToNanoseconds() / 1e9:.1f} s"


COLUMNS: Columns[pb.Hold] = (
    Column("ID", lambda one: one.id),
    Column("REASON", lambda one: one.reason),
    Column("HELD", lambda one: seconds_text(one.held)),
    Column("ENDS IN", lambda one: seconds_text(one.ends_in) if one.HasField("ends_in") else "with an event"),
    Column("WHAT", lambda one: " ".join(part for part in (one.method, one.pod, one.container) if part)),
    Column("WAITS FOR", lambda one: ", ".join(one.waits_for)),
    Column("WHY", lambda one: one.why if len(one.why) <= WHY_SIGNS else f"{one.why[:WHY_SIGNS]}…"),
)


def _listing(_kind: Kind, answers: Sequence[Any]) -> AnyListing:
    held = [hold for answer in answers if answer is not None for hold in answer.holds]
    notes = ["kepctl release hold ID lets one go on"] if held else []
    return Listing("Hold", held, COLUMNS, lambda one: f"hold/{one.id}", "nothing is held", notes)


SHOWN = Shown(
    lambda _kind, _how: [Ask(one, pb.ListHoldsRequest(), pb.ListHoldsResponse, may_fail=True) for one in METHODS],
    _listing,
)

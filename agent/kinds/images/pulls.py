# SPDX-License-Identifier: Apache-2.0
"""Pulls of images: what comes, what waits and why, what has ended of late."""

from collections.abc import Sequence
from typing import Any

from agent.kinds.ages import age
from agent.kinds.amounts import rate, size
from agent.kinds.registry import Kind
from agent.kinds.shown import AnyListing, Ask, Shown, Watch
from agent.kinds.table import Column, Columns, Listing
from agent.wire.kepd.v1 import image_pb2 as pb

SERVICE = "kepd.v1.ImageService"
ENDED = frozenset({"done", "failed", "cancelled", "skipped"})
WIDEST = 60


def stage_line(pull: pb.Pull) -> str:
    if pull.stage == "queued":
        return f"waiting at {pull.position}: {pull.wait_text}" if pull.position else "waiting"
    if pull.stage == "unpacking" and pull.layers:
        return f"unpacking, {pull.layers_unpacked} of {len(pull.layers)} layers"
    if pull.stage == "lazy":
        return "lazy: bytes unknown, layers are fetched when they are read"
    if pull.stage == "failed":
        return f"failed: {pull.error}"
    if pull.stage == "skipped":
        return f"not fetched ahead: {pull.wait_text}"
    return pull.stage


def _short(pull: pb.Pull) -> str:
    """One long error would push all other columns out of sight."""
    line = stage_line(pull)
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1].rstrip()}…"


def _turn(pull: pb.Pull) -> int:
    """What runs, what waits, what is over."""
    return 2 if pull.stage in ENDED else 1 if pull.stage == "queued" else 0


COLUMNS: Columns[pb.Pull] = (
    Column("ID", lambda pull: pull.id),
    Column("IMAGE", lambda pull: pull.image),
    Column("STAGE", _short),
    Column("DONE", lambda pull: f"{pull.percent}%" if pull.total_bytes else ""),
    Column("RATE", lambda pull: rate(pull.rate_bytes_per_second)),
    Column("FOR", lambda pull: ", ".join(sorted({f"{one.namespace}/{one.pod}" for one in pull.requesters if one.pod}))),
    Column("AGE", lambda pull: age(pull.queued_at)),
    Column(
        "SIZE",
        lambda pull: size(pull.total_bytes or pull.size_bytes) if pull.total_bytes or pull.size_bytes else "",
        wide=True,
    ),
    Column("CLASS", lambda pull: pull.pull_class, wide=True),
    Column("REGISTRY", lambda pull: pull.registry, wide=True),
    Column("WHOLE STAGE", stage_line, wide=True),
)


def _listing(_kind: Kind, answers: Sequence[Any]) -> AnyListing:
    limits = [
        f"{one.scope}: {one.running}{f' of {one.limit} running' if one.limit else ' running, without a limit'}"
        for one in answers[0].limits
    ]
    pulls = sorted(answers[0].pulls, key=_turn)
    return Listing(
        "Pull", pulls, COLUMNS, lambda pull: f"pull/{pull.id}", "no pulls", limits,
        labels=lambda pull: {"stage": pull.stage, "registry": pull.registry}, ended=lambda pull: pull.stage in ENDED,
    )  # fmt: skip


SHOWN = Shown(
    lambda _kind, _how: (Ask(f"{SERVICE}/ListPulls", pb.ListPullsRequest(), pb.ListPullsResponse),),
    _listing,
    lambda how: Watch(
        Ask(f"{SERVICE}/WatchImagePulls", pb.WatchImagePullsRequest(), pb.WatchImagePullsResponse),
        "pull", pb.ListPullsResponse, "pulls", how.with_objects,
    ),
)  # fmt: skip

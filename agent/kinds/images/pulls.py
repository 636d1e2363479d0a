# SPDX-License-Identifier: Apache-2.0
"""Pulls of images: what comes, what waits and why, what has ended of late."""

from agent.kinds.ages import age
from agent.kinds.amounts import rate, size
from agent.kinds.kind import Kind
from agent.kinds.shown import Shown
from agent.kinds.table import Column, Columns, Object

KIND = Kind("pulls", "pull", has_namespace=False)

SERVICE = "kepd.v1.ImageService"
ENDED = frozenset({"done", "failed", "cancelled", "skipped"})
WIDEST = 60


def stage_line(pull: Object) -> str:
    stage: str = pull["stage"]
    if stage == "queued":
        return f"waiting at {pull['position']}: {pull['waitText']}" if pull["position"] else "waiting"
    if stage == "unpacking" and pull["layers"]:
        return f"unpacking, {pull['layersUnpacked']} of {len(pull['layers'])} layers"
    if stage == "lazy":
        return "lazy: bytes unknown, layers are fetched when they are read"
    if stage == "failed":
        return f"failed: {pull['error']}"
    if stage == "skipped":
        return f"not fetched ahead: {pull['waitText']}"
    return stage


def _stage(pull: Object) -> str:
    return stage_line(pull["status"])


def _short(pull: Object) -> str:
    """One long error would push all other columns out of sight."""
    line = _stage(pull)
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 1].rstrip()}…"


def pods_of(pull: Object) -> str:
    """Whom it is for."""
    return ", ".join(sorted({f"{one['namespace']}/{one['pod']}" for one in pull["status"]["requesters"] if one["pod"]}))


def _size(pull: Object) -> str:
    count = pull["status"].get("totalBytes") or pull["status"].get("sizeBytes")
    return size(count) if count else ""


COLUMNS: Columns[Object] = (
    Column("ID", lambda pull: pull["metadata"]["name"]),
    Column("IMAGE", lambda pull: pull["status"]["image"]),
    Column("STAGE", _short),
    Column("DONE", lambda pull: f"{pull['status'].get('percent', 0)}%" if pull["status"].get("totalBytes") else ""),
    Column("RATE", lambda pull: rate(pull["status"]["rateBytesPerSecond"])),
    Column("FOR", pods_of),
    Column("AGE", lambda pull: age(pull["status"].get("queuedAt", ""))),
    Column("SIZE", _size, wide=True),
    Column("CLASS", lambda pull: pull["status"]["pullClass"], wide=True),
    Column("REGISTRY", lambda pull: pull["status"]["registry"], wide=True),
    Column("WHOLE STAGE", _stage, wide=True),
)


SHOWN = Shown(
    (SERVICE,),
    COLUMNS,
    kind="Pull",
    empty="no pulls",
    ended=lambda pull: pull["status"]["stage"] in ENDED,
    is_kubernetes=False,
    is_watched=True,
    shows_last=False,
)

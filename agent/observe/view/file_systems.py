# SPDX-License-Identifier: Apache-2.0
"""The file systems of a node, each once, with what is kept on it and what would make room."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from agent.model.nodes.file_system import (
    FileSystemReport,
    ImagesOnDisk,
    LookedAt,
    Room,
    SpaceUse,
    no_room_on,
    rooms_on,
)

MOST = 16
FULL_FROM = 0.9
ROLES = ("node", "logs", "image", "container", "content", "root")


def file_system_reports(
    places: Sequence[tuple[str, str]], looked: Mapping[str, LookedAt | str]
) -> tuple[FileSystemReport, ...]:
    """`places` are roles with paths; of a path that cannot be seen `looked` has the reason. Places on one device are
    one file system with several roles. What cannot be seen is shown as unknown, and nothing is decided on it."""
    together: dict[object, list[tuple[str, str]]] = {}
    for role, path in dict.fromkeys(places):
        found = looked.get(path, "not looked at yet")
        together.setdefault(path if isinstance(found, str) else found.device_number, []).append((role, path))
    return tuple(_report(group, looked) for group in list(together.values())[:MOST])


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What planes of this kepd do about space: collection of images, and whether it keeps pods; `short` are paths on
    file systems of which a threshold of eviction is met."""

    images: Sequence[ImagesOnDisk] = ()
    has_pods: bool = False
    short: Collection[str] = ()


def with_upkeep(report: FileSystemReport, upkeep: Upkeep) -> FileSystemReport:
    """The collection's own plan says what goes next."""
    if report.state in ("unknown", "read-only"):
        return report
    here = next((one for one in upkeep.images if not set(one.paths).isdisjoint(report.paths)), None)
    is_short = any(path in report.paths for path in upkeep.short)
    if is_short:
        report = replace(
            report, state="pressure", message="a threshold of eviction is met; see kepctl explain eviction"
        )
    elif here is not None and here.is_collecting:
        report = replace(report, state="collecting", message=f"more than {here.collects_at} % is used")
    return replace(report, collects_at=here.collects_at if here is not None else 0, next=_next(report, here, upkeep))


def _next(report: FileSystemReport, here: ImagesOnDisk | None, upkeep: Upkeep) -> str:
    can = {Room.IMAGES: here is not None, Room.CONTAINERS: upkeep.has_pods, Room.LOGS: upkeep.has_pods}
    rooms = [one for one in rooms_on(report.roles) if can[one]]
    if not rooms:
        return no_room_on(report.mount)
    images = here.next if here is not None else ""
    return ", ".join(text for one in rooms if (text := images if one is Room.IMAGES else str(one)))


def with_use(report: FileSystemReport, uses: Iterable[tuple[str, str, int]]) -> FileSystemReport:
    """`uses` are kinds, paths and bytes; what none of them explains is other."""
    found: dict[str, int] = {}
    for what, path, size in uses:
        if path in report.paths:
            found[what] = found.get(what, 0) + size
    other = max(report.used_bytes - sum(found.values()), 0)
    parts = [*(SpaceUse(what, size) for what, size in found.items()), SpaceUse("other", other)]
    return replace(report, used_by=tuple(parts)) if report.size_bytes else report


def _report(group: Sequence[tuple[str, str]], looked: Mapping[str, LookedAt | str]) -> FileSystemReport:
    roles = tuple(one for one in ROLES if any(role == one for role, _ in group))
    paths = tuple(dict.fromkeys(path for _, path in group))
    found = looked.get(paths[0], "not looked at yet")
    if isinstance(found, str):
        return FileSystemReport(mount=paths[0], roles=roles, paths=paths, state="unknown", message=found)
    state, message = _state(found)
    return FileSystemReport(
        mount=found.mount or paths[0],
        roles=roles,
        paths=paths,
        device=found.device,
        type=found.type,
        size_bytes=found.size_bytes,
        used_bytes=found.size_bytes - found.free_bytes,
        available_bytes=found.available_bytes,
        inodes=found.inodes,
        inodes_free=found.inodes_free,
        state=state,
        message=message,
    )


def _state(found: LookedAt) -> tuple[str, str]:
    if found.is_read_only:
        return "read-only", "mounted read-only, so nothing can be written or removed"
    if found.size_bytes <= 0:
        return "unknown", "says that it has no space at all"
    usable = found.size_bytes - found.free_bytes + found.available_bytes
    if usable and 1 - found.available_bytes / usable >= FULL_FROM:
        return "full", f"less than {round((1 - FULL_FROM) * 100)} % of its space is left"
    if found.inodes and found.inodes_free / found.inodes < 1 - FULL_FROM:
        return "full", f"less than {round((1 - FULL_FROM) * 100)} % of its inodes are left"
    return "ok", ""

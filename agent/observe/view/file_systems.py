# SPDX-License-Identifier: Apache-2.0
"""The file systems that matter on a node, each once, with what is kept on it (FSY-01, FSY-02)."""

from collections.abc import Mapping, Sequence

from agent.model.file_system import FileSystemReport, LookedAt

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

# SPDX-License-Identifier: Apache-2.0
"""A file system as a place on it sees it."""

import msgspec


class LookedAt(msgspec.Struct, frozen=True, kw_only=True):
    """What lies below a path. `inodes` is 0 where the file system has no fixed number of them."""

    device_number: int
    mount: str
    device: str
    type: str
    size_bytes: int
    available_bytes: int
    free_bytes: int
    inodes: int
    inodes_free: int
    is_read_only: bool = False


class FileSystemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file system with all that kepd and the runtime keep on it. `state` is ok, full, read-only or unknown, and
    `message` says why."""

    mount: str
    roles: tuple[str, ...]
    paths: tuple[str, ...]
    device: str = ""
    type: str = ""
    size_bytes: int = 0
    used_bytes: int = 0
    available_bytes: int = 0
    inodes: int = 0
    inodes_free: int = 0
    state: str = "ok"
    message: str = ""

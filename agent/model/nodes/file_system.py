# SPDX-License-Identifier: Apache-2.0
"""A file system as a place on it sees it, and what can make room there."""

from collections.abc import Collection
from enum import StrEnum

import msgspec


class Room(StrEnum):
    """What can be removed that no running pod needs."""

    IMAGES = "unused images"
    CONTAINERS = "dead containers"
    LOGS = "old logs"


# What else is kept on a node, such as records and volumes, belongs to pods or to kepd.
ROOM_OF_ROLE = {"image": Room.IMAGES, "content": Room.IMAGES, "container": Room.CONTAINERS, "logs": Room.LOGS}


def rooms_on(roles: Collection[str]) -> tuple[Room, ...]:
    """What makes room on a file system with these roles."""
    found = {ROOM_OF_ROLE[role] for role in roles if role in ROOM_OF_ROLE}
    return tuple(one for one in Room if one in found)


def no_room_on(path: str) -> str:
    return f"no removal can make room on {path}"


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


class SpaceUse(msgspec.Struct, frozen=True):
    """Bytes of one kind: images, layers, logs, volumes, other."""

    what: str
    bytes: int


class FileSystemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file system with all that kepd and the runtime keep on it. `state` is ok, collecting, pressure, full,
    read-only or unknown, and `message` says why. `collects_at`: the use in percent from which images are collected,
    0 = never; `next`: what would be removed next; `used_by`: bytes by what is kept, where that was asked for."""

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
    collects_at: int = 0
    next: str = ""
    used_by: tuple[SpaceUse, ...] = ()


class ImagesOnDisk(msgspec.Struct, frozen=True, kw_only=True):
    """What collection does on a file system of images, which has these paths: from which use in percent on (0 = not for
    its space), whether it has to now, and what goes next."""

    paths: tuple[str, ...]
    collects_at: int = 0
    is_collecting: bool = False
    next: str = ""

# SPDX-License-Identifier: Apache-2.0
"""The file systems that images lie on, and how much has to become free on each.

A runtime may keep the layers of images in one place per snapshotter and what it downloaded in another, on one file
system or several. Each has thresholds of its own, and an image that lies on two counts for the fuller one of those that
need room.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from agent.model.images.store import Filesystem

FULL = 100


class DiskRules(msgspec.Struct, frozen=True, kw_only=True):
    """Percentages of use: a collection begins at the high one and ends at the low one."""

    high: int = 85
    low: int = 80
    inode_high: int = 90
    inode_low: int = 85


class ImageDisk(msgspec.Struct, frozen=True, kw_only=True):
    """One file system. `path`: the first place of images on it, by which people know it; `paths` are all of them, and
    those of rules for it. `roles` are image and content."""

    path: str = ""
    paths: tuple[str, ...] = ()
    roles: tuple[str, ...] = ("image",)
    space: Filesystem = Filesystem()

    @property
    def device(self) -> int:
        return self.space.device_number


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """What has to become free on one of them; 0 where there is enough. With a problem nothing is removed for it."""

    path: str = ""
    device: int = 0
    missing_bytes: int = 0
    missing_inodes: int = 0
    used_percent: int = 0
    problem: str = ""
    is_failed: bool = False

    @property
    def is_some(self) -> bool:
        return bool(self.missing_bytes or self.missing_inodes)


def need_of(disk: ImageDisk, rules: DiskRules, previous: Sequence[Need], *, is_on: bool) -> Need:
    """`previous`: of the same run; one that the high threshold began goes on until the low one."""
    space = disk.space
    need = Need(path=disk.path, device=disk.device, used_percent=space.used_percent)
    if not is_on:
        return need
    if not space.is_measured:
        return msgspec.structs.replace(need, problem="invalid capacity 0 on image filesystem")
    if space.is_read_only:
        problem = f"{disk.path} is mounted read-only, so no image can be removed there"
        return msgspec.structs.replace(need, problem=problem, is_failed=True)
    began = next((one for one in previous if one.device == disk.device), need)
    missing = inodes = 0
    if rules.high < FULL and (began.missing_bytes or space.used_percent >= rules.high):
        missing = space.capacity_bytes * (FULL - rules.low) // FULL - space.available_bytes
    if rules.inode_high < FULL and (began.missing_inodes or space.used_inodes_percent >= rules.inode_high):
        inodes = space.inodes * (FULL - rules.inode_low) // FULL - space.free_inodes
    return msgspec.structs.replace(need, missing_bytes=max(0, missing), missing_inodes=max(0, inodes))


def counts_for(devices: Collection[int], needs: Sequence[Need]) -> Need | None:
    """The need that the end of an image helps. One of which no place is known lies with the first."""
    some = [one for one in needs if one.is_some and lies_on(devices, one.device, needs)]
    return max(some, key=lambda one: one.used_percent, default=None)


def lies_on(devices: Collection[int], device: int, needs: Sequence[Need]) -> bool:
    return device in devices if devices else bool(needs) and needs[0].device == device


class Freed:
    """How much removals give back, by file system, while a plan is made."""

    def __init__(self, needs: Sequence[Need]) -> None:
        self._needs = needs
        self._bytes: dict[int, int] = {}

    def add(self, devices: Collection[int], size_bytes: int) -> None:
        need = counts_for(devices, self._needs)
        if need is not None:
            self._bytes[need.device] = self._bytes.get(need.device, 0) + size_bytes

    def helps(self, devices: Collection[int]) -> bool:
        """Whether an image lies where there is still too little."""
        need = counts_for(devices, self._needs)
        return need is not None and bool(need.missing_inodes or self._bytes.get(need.device, 0) < need.missing_bytes)


def joined_disks(
    places: Iterable[tuple[str, str, Filesystem]], rules_at: Iterable[tuple[str, Filesystem]] = ()
) -> tuple[ImageDisk, ...]:
    """`places` are roles, paths and what was measured there. Places on one device are one file system; what cannot be
    measured is one by itself."""
    found: dict[object, ImageDisk] = {}
    for role, path, space in places:
        key = space.device_number if space.is_measured else path
        known = found.get(key, ImageDisk(path=path, roles=(), space=space))
        roles, paths = tuple(dict.fromkeys((*known.roles, role))), tuple(dict.fromkeys((*known.paths, path)))
        found[key] = msgspec.structs.replace(known, roles=roles, paths=paths)
    for path, space in rules_at:
        if space.is_measured and space.device_number in found:
            known = found[space.device_number]
            found[space.device_number] = msgspec.structs.replace(known, paths=(*known.paths, path))
    return tuple(found.values())

# SPDX-License-Identifier: Apache-2.0
"""Control groups in memory that show and refuse what the kernel shows and refuses."""

import errno
import os
from collections.abc import Iterable
from pathlib import PurePath

from agent.model.nodes.control_group import GroupShape

PAGE_BYTES = 4096
UNLIMITED = str((1 << 63) - PAGE_BYTES)
LEGACY = {
    "cpu": {"cpu.shares": "1024", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1", "cpu.cfs_burst_us": "0"},
    "memory": {"memory.limit_in_bytes": UNLIMITED},
    "pids": {"pids.max": "max"},
    "hugetlb": {"hugetlb.2MB.limit_in_bytes": UNLIMITED},
}
UNIFIED = {
    "cpu": {"cpu.weight": "100", "cpu.max": "max 100000", "cpu.max.burst": "0"},
    "memory": {"memory.max": "max", "memory.min": "0"},
    "pids": {"pids.max": "max"},
    "hugetlb": {"hugetlb.2MB.max": "max"},
}
SWITCH = "cgroup.subtree_control"
QUOTA_AND_BURST = {1: ("cpu.cfs_quota_us", "cpu.cfs_burst_us"), 2: ("cpu.max", "cpu.max.burst")}


class FakeControlGroups:
    """`files` has what was written or stands by default, by path. `refuses` are paths whose writes fail."""

    def __init__(self, shape: GroupShape | None = None) -> None:
        self._shape = shape or GroupShape()
        self.files: dict[str, str] = {}
        self.groups: set[str] = {"", *(self._shape.controllers if self._shape.version == 1 else ())}
        self.refuses: set[str] = set()
        self.writes: list[str] = []
        if self._shape.version > 1:
            self.files[SWITCH] = ""

    def shape(self) -> GroupShape:
        return self._shape

    def read(self, paths: Iterable[str]) -> dict[str, str | None]:
        return {path: "" if path in self.groups else self.files.get(path) for path in paths}

    def make(self, path: str) -> None:
        for place in reversed([path, *map(str, PurePath(path).parents)]):
            if place not in (".", *self.groups):
                self.groups.add(place)
                self._fill(place)

    def _fill(self, place: str) -> None:
        if self._shape.version == 1:
            self.files.update(
                {f"{place}/{name}": value for name, value in LEGACY[place.split("/", maxsplit=1)[0]].items()}
            )
            return
        self.files[f"{place}/{SWITCH}"] = ""
        above = place.rpartition("/")[0]
        for controller in self.files[f"{above}/{SWITCH}".lstrip("/")].split():
            self._show(place, controller)

    def _show(self, place: str, controller: str) -> None:
        for name, value in UNIFIED[controller].items():
            self.files.setdefault(f"{place}/{name}", value)

    def write(self, path: str, value: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path in self.refuses:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        self.writes.append(f"{path} {value}")
        if path.endswith(SWITCH):
            self._switch(path, [one.lstrip("+") for one in value.split()])
        else:
            place, _, file = path.rpartition("/")
            files = {**self.files, path: _kept(file, value)}
            quota, burst = (files.get(f"{place}/{one}", "0") for one in QUOTA_AND_BURST[self._shape.version])
            if quota.split()[0].isdigit() and int(burst) > int(quota.split()[0]):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
            self.files = files

    def _switch(self, path: str, controllers: list[str]) -> None:
        self.files[path] = " ".join(sorted({*self.files[path].split(), *controllers}))
        place = path.rpartition("/")[0]
        for group in self.groups - {""}:
            if group.rpartition("/")[0] == place:
                for controller in controllers:
                    self._show(group, controller)

    def remove(self, group: str) -> None:
        below = group.strip("/")
        places = {below, *(f"{one}/{below}" for one in self._shape.controllers)}

        def is_gone(path: str) -> bool:
            return any(path == place or path.startswith(f"{place}/") for place in places)

        self.groups = {one for one in self.groups if not is_gone(one)}
        self.files = {path: text for path, text in self.files.items() if not is_gone(path)}


def _kept(file: str, value: str) -> str:
    """Figures as the kernel keeps them; what is none is refused."""
    if value == "max" and file.endswith(".max"):
        return value
    if file == "cpu.max":
        quota, period = value.split()
        return f"{quota if quota == 'max' else int(quota)} {int(period)}"
    if not value.lstrip("-").isdigit():
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), file)
    number = int(value)
    if file.startswith(("memory.", "hugetlb.")):
        return UNLIMITED if number < 0 else str(number // PAGE_BYTES * PAGE_BYTES)
    return str(max(number, 2) if file == "cpu.shares" else number)

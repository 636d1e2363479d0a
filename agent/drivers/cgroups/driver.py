# SPDX-License-Identifier: Apache-2.0
"""Control groups as the kernel shows them: a tree of directories with one file per limit.

Never: knows what a limit means, or leaves the root. Blocking; called in threads. Methods raise OSError.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent.model.nodes.control_group import GroupShape

ROOT = Path("/sys/fs/cgroup")
PAGES = Path("/sys/kernel/mm/hugepages")
MEMORY = Path("/proc/meminfo")
PAGE_SIZE = re.compile(r"hugepages-(\d+)kB\Z")
COUNTED = ("cpu", "memory", "pids", "hugetlb")
MODE = 0o755


class ControlGroups:
    def __init__(self, root: Path = ROOT) -> None:
        self.root = root

    def shape(self) -> GroupShape:
        listed = self.root / "cgroup.controllers"
        if listed.exists():
            version, controllers = 2, frozenset(listed.read_text().split()) & frozenset(COUNTED)
            has_swap_limit = any(self.root.glob("*/memory.swap.max"))
        else:
            version = 1
            controllers = frozenset(one for one in COUNTED if (self.root / one / "cgroup.procs").exists())
            has_swap_limit = (self.root / "memory" / "memory.memsw.limit_in_bytes").exists()
        return GroupShape(
            version=version,
            controllers=controllers,
            hugepage_bytes=tuple(_page_sizes()),
            has_swap_limit=has_swap_limit,
            swap_bytes=_swap_bytes(),
            has_cpu_burst=(self.root / "cpu/cpu.cfs_burst_us").exists() or any(self.root.glob("*/cpu.max.burst")),
        )

    def read(self, paths: Iterable[str]) -> dict[str, str | None]:
        """The text of files, "" for directories, None for what is not there."""
        return {path: _read(self._path(path)) for path in paths}

    def make(self, path: str) -> None:
        """A group, with those above it; one that is there is fine."""
        self._path(path).mkdir(mode=MODE, parents=True, exist_ok=True)

    def write(self, path: str, value: str) -> None:
        """One value. The kernel hears it as one write, or not at all."""
        handle = os.open(self._path(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(handle, value.encode())
        finally:
            os.close(handle)

    def remove(self, group: str) -> None:
        """The empty groups that a pod leaves, in every hierarchy; one that is in use stays."""
        below = group.strip("/")
        if not below or ".." in Path(below).parts or not self.root.is_dir():
            return
        for hierarchy in (self.root, *(one for one in self.root.iterdir() if one.is_dir() and not one.is_symlink())):
            for path in reversed(groups_from(hierarchy / below)):
                with suppress(OSError):
                    path.rmdir()

    def _path(self, path: str) -> Path:
        if path.startswith("/") or ".." in Path(path).parts:
            raise ValueError(f"{path!r} is not inside {self.root}")
        return self.root / path


def groups_from(top: Path) -> list[Path]:
    """A group and those in it, each after the one it is in. Without recursion: a container may nest its own."""
    found = [top]
    for path in found:
        with suppress(OSError), os.scandir(path) as entries:
            found += [path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except IsADirectoryError:
        return ""
    except OSError:
        return None


def _page_sizes() -> list[int]:
    names = (path.name for path in PAGES.iterdir()) if PAGES.is_dir() else ()
    return sorted(int(found[1]) << 10 for found in map(PAGE_SIZE.match, names) if found)


def _swap_bytes() -> int:
    lines = MEMORY.read_text().splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("SwapTotal:")), 0)

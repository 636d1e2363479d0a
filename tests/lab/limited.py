# SPDX-License-Identifier: Apache-2.0
"""A memory limit around a daemon, as a unit or a DaemonSet gives it: beyond it the kernel ends the process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


class Limited:
    """A control group with a limit; `prefix` makes a command run in it."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.is_v1 = folder.is_relative_to(V1)
        name = "memory.limit_in_bytes" if self.is_v1 else "memory.max"
        (folder / name).write_text(str(limit_bytes))

    def prefix(self, *before: str) -> tuple[str, ...]:
        return (*before, "sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def peak_bytes(self) -> int:
        """With caches, which the kernel takes back first."""
        return int((self.folder / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")).read_text())

    def was_killed(self) -> bool:
        lines = (self.folder / ("memory.oom_control" if self.is_v1 else "memory.events")).read_text().split("\n")
        return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in lines)


@contextmanager
def limited(limit_bytes: int) -> Iterator[Limited]:
    root = V1 if (V1 / "memory.limit_in_bytes").exists() or (V1 / "cgroup.procs").exists() else V2
    folder = root / f"kepd-limited-{os.getpid()}"
    folder.mkdir()
    try:
        yield Limited(folder, limit_bytes)
    finally:
        with suppress(OSError):
            folder.rmdir()

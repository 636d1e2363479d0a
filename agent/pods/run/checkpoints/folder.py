# SPDX-License-Identifier: Apache-2.0
"""The directory with archives of checkpoints. They hold the memory of containers, so it is root's alone.

Blocking; called in threads. Never: gives away what an archive holds, or touches a file that kepd did not name.
"""

import os
import stat
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from agent.config.sections.checkpoints import PodCheckpoints
from agent.model.pods.checkpoint import CheckpointReport
from agent.pods.plan.scarcity.checkpoints import (
    Archive,
    archive_of,
    freed_first,
    in_order,
    superfluous,
)
from agent.pods.run.checkpoints.archive import ArchiveText, NotAnArchive, described

DIRECTORY_MODE, FILE_MODE = 0o700, 0o600
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_KNOWN = 1000


class CheckpointFolder:
    """`writing` are names of archives that are not finished. `states` and `size_bytes` are as of the last look."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writing: set[str] = set()
        self.states: Counter[str] = Counter()
        self.size_bytes = 0
        self._known: dict[tuple[str, int, int], ArchiveText | None] = {}

    @property
    def counted(self) -> tuple[Counter[str], int]:
        return self.states, self.size_bytes

    def make(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        self.directory.chmod(DIRECTORY_MODE)

    def archives(self) -> list[Archive]:
        """Finished ones."""
        return [one for one in self._all() if one.name not in self.writing]

    def listed(self) -> Sequence[CheckpointReport]:
        """Newest first."""
        found = [self._report(one) for one in in_order(self._all())]
        self.states = Counter(one.state for one in found)
        self.size_bytes = sum(one.size_bytes for one in found)
        return found

    def described(self, name: str) -> ArchiveText | None:
        """None for one that is not there, not finished, or broken."""
        return self._described(name) if name not in self.writing and archive_of(name, 0) is not None else None

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        if name in self.writing or archive_of(name, 0) is None:
            return False
        try:
            (self.directory / name).unlink()
        except FileNotFoundError:
            return False
        return True

    def tidy(self, rules: PodCheckpoints, now_wall_s: float) -> list[str]:
        """Delete surplus archives; return their names."""
        return [one.name for one in superfluous(self.archives(), rules, now_wall_s) if self.remove(one.name)]

    def make_room(self, needed_bytes: int) -> list[str]:
        """Oldest first, until there is so much more room."""
        return [one.name for one in freed_first(self.archives(), needed_bytes) if self.remove(one.name)]

    def _all(self) -> list[Archive]:
        found = []
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    archive = archive_of(entry.name, facts.st_blocks * 512)
                    if archive is not None and stat.S_ISREG(facts.st_mode):
                        found.append(archive)
        return found

    def _report(self, one: Archive) -> CheckpointReport:
        if one.name in self.writing:
            return CheckpointReport(
                name=one.name, state="writing", size_bytes=one.size_bytes, made_at_s=one.made_wall_s
            )
        says = self._described(one.name)
        return CheckpointReport(
            name=one.name,
            state="broken" if says is None else "ready",
            size_bytes=one.size_bytes,
            made_at_s=one.made_wall_s,
            image=says.image if says is not None else "",
            criu=says.criu if says is not None else "",
        )

    def _described(self, name: str) -> ArchiveText | None:
        """None for what is no archive of a checkpoint. Each is read once."""
        try:
            with open(os.open(self.directory / name, READ), "rb") as file:  # noqa: PTH123  # flags that Path has not
                facts = os.fstat(file.fileno())
                key = (name, facts.st_size, facts.st_mtime_ns)
                if key not in self._known:
                    self._known[key] = _read(file, facts)
        except OSError:
            return None
        while len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return self._known.get(key)


def _read(file: BinaryIO, facts: os.stat_result) -> ArchiveText | None:
    if not stat.S_ISREG(facts.st_mode):
        return None
    try:
        return described(file, facts.st_size)
    except NotAnArchive:
        return None

# SPDX-License-Identifier: Apache-2.0
"""The kernel's mount table, as far as a lab cares.

Owns: which mounts are below a directory, which file system holds it, and the lazy unmount.
Never: unmounts anything outside the directory it was given.
"""

import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Mount", "detach", "file_system_of", "mounts_below"]

MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo."""

    point: Path
    file_system: str


def _mounts() -> list[Mount]:
    """In mount order; a later line hides an earlier one at the same point."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        found.append(Mount(Path(point), fields[fields.index("-") + 1]))
    return found


def mounts_below(directory: Path) -> list[Mount]:
    """Deepest first, the order in which they can be taken away."""
    below = [mount for mount in _mounts() if mount.point != directory and mount.point.is_relative_to(directory)]
    below.reverse()  # of several at one point the last goes first
    return sorted(below, key=lambda mount: len(mount.point.parts), reverse=True)


def file_system_of(directory: Path) -> str:
    """Type of the file system that holds `directory`."""
    holding = [mount for mount in _mounts() if directory.is_relative_to(mount.point)]
    deepest = max(len(mount.point.parts) for mount in holding)
    return [mount for mount in holding if len(mount.point.parts) == deepest][-1].file_system


def detach(mount: Mount) -> None:
    """Unmount now by name, later in fact if something still uses it."""
    if libc.umount2(os.fsencode(mount.point), MNT_DETACH) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"umount: {os.strerror(number)}", str(mount.point))

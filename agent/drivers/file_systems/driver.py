# SPDX-License-Identifier: Apache-2.0
"""What lies below a path: which mount, how large, how full. Blocking, for a file system over a network may hang; called
in threads. Methods raise OSError where a path cannot be seen from here."""

import os
from pathlib import Path

from agent.model.nodes.file_system import LookedAt

MOUNTS = Path("/proc/self/mountinfo")
SEPARATOR = "-"


class FileSystems:
    def look(self, path: str) -> LookedAt:
        """By a descriptor, so that both answers are of the same place."""
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            found, device = os.fstatvfs(handle), os.fstat(handle).st_dev
        finally:
            os.close(handle)
        mount, source, kind = _mount_of(device, os.path.realpath(path))
        return LookedAt(
            device_number=device,
            mount=mount,
            device=source,
            type=kind,
            size_bytes=found.f_blocks * found.f_frsize,
            available_bytes=found.f_bavail * found.f_frsize,
            free_bytes=found.f_bfree * found.f_frsize,
            inodes=found.f_files,
            inodes_free=found.f_favail,
            is_read_only=bool(found.f_flag & os.ST_RDONLY),
        )


def _mount_of(device: int, path: str) -> tuple[str, str, str]:
    """The mount with this number that a path lies below; of several the longest."""
    number = f"{os.major(device)}:{os.minor(device)}"
    found = ("", "", "")
    for line in MOUNTS.read_text("utf-8", "replace").splitlines():
        words = line.split(" ")
        if SEPARATOR not in words[6:]:
            continue
        point = words[4].replace("\\040", " ")
        kind, source = [*words[words.index(SEPARATOR, 6) + 1 :], "", ""][:2]
        is_above = f"{path}/".startswith(f"{point.rstrip('/')}/")
        if is_above and (words[2] == number or not found[0]) and len(point) >= len(found[0]):
            found = (point, source, kind)
    return found

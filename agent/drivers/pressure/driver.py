# SPDX-License-Identifier: Apache-2.0
"""The kernel's pressure files. They are in memory, so reading does not wait for a disk; without them, empty texts."""

from pathlib import Path

FOLDER = Path("/proc/pressure")


class KernelPressure:
    """Of the whole node."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def texts(self) -> tuple[str, str]:
        """Disk and memory, as the kernel writes them."""
        return self._read("io"), self._read("memory")

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text("ascii", "replace")
        except OSError:
            return ""

# SPDX-License-Identifier: Apache-2.0
"""State files in memory, with the failures a disk has."""

from pathlib import Path

from agent.model.images.store import Filesystem

GIB = 2**30


class FakeStateFiles:
    """Same methods as the driver. `failure` is raised by every write until it is None again."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.aside: dict[str, bytes] = {}
        self.failure: OSError | None = None
        self.writes: list[str] = []
        self.disk = Filesystem(capacity_bytes=100 * GIB, available_bytes=90 * GIB, inodes=1000, free_inodes=900)
        self.disks: dict[str, Filesystem] = {}

    def close(self) -> None:
        """Nothing to close."""

    async def read(self, name: str) -> bytes | None:
        return self.files.get(_checked(name))

    async def read_folder(self, folder: str) -> dict[str, bytes]:
        prefix = f"{_checked(folder)}/"
        return {
            name.removeprefix(prefix): content
            for name, content in sorted(self.files.items())
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        }

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        del is_durable
        if self.failure is not None:
            raise self.failure
        self.files[_checked(name)] = content
        self.writes.append(name)

    async def remove(self, name: str) -> None:
        self.files.pop(_checked(name), None)

    async def set_aside(self, name: str) -> str:
        self.aside[name] = self.files.pop(_checked(name))
        return f"{name}.aside"

    async def measure(self, path: str) -> Filesystem:
        if not Path(path).is_absolute():
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.disks.get(path, self.disk)


def _checked(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} is not a name inside the directory")
    return name

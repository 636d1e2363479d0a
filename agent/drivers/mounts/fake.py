# SPDX-License-Identifier: Apache-2.0
"""Mounts that only remember what was asked for."""

from pathlib import Path

__all__ = ["FakeMounts"]


class FakeMounts:
    """`mounted` has paths with their sizes; a bind is a link."""

    def __init__(self) -> None:
        self.mounted: dict[Path, int] = {}

    def tmpfs(self, path: Path, size_bytes: int, *, is_secret: bool) -> None:
        del is_secret
        if not path.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        self.mounted.setdefault(path, size_bytes)

    def huge_pages(self, path: Path, page_bytes: int, size_bytes: int) -> None:
        if not path.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if page_bytes & (page_bytes - 1):
            raise OSError(22, "Invalid argument", str(path))
        self.mounted.setdefault(path, size_bytes)

    def bind(self, source: Path, target: Path) -> None:
        if not source.exists() or not target.exists():
            raise FileNotFoundError(2, "No such file or directory", str(target))
        self.mounted.setdefault(target, 0)

    def is_mounted(self, path: Path) -> bool:
        return path in self.mounted

    def unmount_below(self, directory: Path) -> None:
        self.mounted = {path: size for path, size in self.mounted.items() if not path.is_relative_to(directory)}

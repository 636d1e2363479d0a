# SPDX-License-Identifier: Apache-2.0
"""Mounts that only remember what was asked for."""

import os
from pathlib import Path

from agent.model.pods.mount_access import Access


class FakeMounts:
    """`mounted` has paths with their sizes; a bind is a link."""

    def __init__(self) -> None:
        self.mounted: dict[Path, int] = {}

    def tmpfs(self, path: Path, size_bytes: int, access: Access, *, is_secret: bool) -> None:
        del is_secret
        if not path.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        self._mount(path, size_bytes, access)

    def huge_pages(self, path: Path, page_bytes: int, size_bytes: int, access: Access) -> None:
        if not path.is_dir():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if page_bytes & (page_bytes - 1):
            raise OSError(22, "Invalid argument", str(path))
        self._mount(path, size_bytes, access)

    def _mount(self, path: Path, size_bytes: int, access: Access) -> None:
        """All at once, as in the kernel: whoever makes no directory private by its umask cannot do so here."""
        if path not in self.mounted:
            os.chown(path, -1, -1 if access.group is None else access.group)
            path.chmod(access.mode)
            self.mounted[path] = size_bytes

    def bind(self, source: Path, target: Path) -> None:
        if not source.exists() or not target.exists():
            raise FileNotFoundError(2, "No such file or directory", str(target))
        self.mounted.setdefault(target, 0)

    def is_mounted(self, path: Path) -> bool:
        return path in self.mounted

    def unmount_below(self, directory: Path) -> None:
        self.mounted = {path: size for path, size in self.mounted.items() if not path.is_relative_to(directory)}

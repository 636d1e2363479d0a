# SPDX-License-Identifier: Apache-2.0
"""What a disk has when the power goes: of each file what it had when it was last synced, and nothing before that."""

import os
from pathlib import Path

import pytest


class Disk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: dict[tuple[int, int], bytes] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, lambda handle, sync=getattr(os, name): self._sync(handle, sync))

    def _sync(self, handle: int, sync: object) -> None:
        facts, place = os.fstat(handle), f"/proc/self/fd/{handle}"
        if os.path.isfile(place):
            self._synced[facts.st_dev, facts.st_ino] = Path(place).read_bytes()
        assert callable(sync)
        sync(handle)

    def lost(self, directory: Path) -> list[str]:
        """Files below it that would not be as they are."""
        lost = []
        for path in sorted(directory.rglob("*")):
            if path.is_file() and not path.is_symlink():
                facts = path.stat()
                if self._synced.get((facts.st_dev, facts.st_ino)) != path.read_bytes():
                    lost.append(path.name)
        return lost


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)

# SPDX-License-Identifier: Apache-2.0
"""What a disk has when the power goes: of each file what it had when it was last synced, and nothing before that."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest


class Disk:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: dict[tuple[int, int], bytes] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, partial(self._sync, getattr(os, name)))

    def _sync(self, sync: Callable[[int], None], handle: int) -> None:
        facts, place = os.fstat(handle), Path(f"/proc/self/fd/{handle}")
        if place.is_file():
            self._synced[facts.st_dev, facts.st_ino] = place.read_bytes()
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

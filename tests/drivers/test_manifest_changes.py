# SPDX-License-Identifier: Apache-2.0
"""Manifest files that kepd changes."""

import errno
import os
from pathlib import Path

import pytest

from agent.drivers.manifests.changing import FILE_MODE, write_whole


def test_a_file_is_written_whole_with_the_mode_that_it_had(tmp_path: Path) -> None:
    there, new = tmp_path / "there.yaml", tmp_path / "new.yaml"
    there.write_text("a")
    there.chmod(0o604)

    for path in (there, new):
        write_whole(path, b"b", FILE_MODE)

    assert [(path.read_text(), path.stat().st_mode & 0o777) for path in (there, new)] == [
        ("b", 0o604),
        ("b", FILE_MODE),
    ]


def test_a_full_disk_leaves_the_file_as_it_was_and_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SYS-16."""
    path = tmp_path / "there.yaml"
    path.write_text("a")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"b", FILE_MODE)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("there.yaml", "a")]

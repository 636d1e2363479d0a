# SPDX-License-Identifier: Apache-2.0
"""What is said to be durable is on the disk as it is, whatever Python keeps in buffers."""

from pathlib import Path

from agent.drivers.atomic_files import write_file
from agent.drivers.state_files.driver import StateFiles
from tests.fakes.power import Disk, disk

__all__ = ["disk"]


async def test_state_files_and_files_of_one_write_are_synced_whole(tmp_path: Path, disk: Disk) -> None:
    write_file(tmp_path / "a", b"x")
    write_file(tmp_path / "a", b"y" * 100_000)
    files = StateFiles(tmp_path)
    await files.write("pods/b.json", b"1")
    await files.write("pods/b.json", b"2" * 100_000)
    files.close()

    assert disk.lost(tmp_path) == []

    write_file(tmp_path / "a", b"z", is_durable=False)
    assert disk.lost(tmp_path) == ["a"]

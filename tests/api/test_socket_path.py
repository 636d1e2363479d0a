# SPDX-License-Identifier: Apache-2.0
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agent.api.socket_path import PathTaken, admit, listen_at


def test_a_dead_socket_is_replaced_and_gets_its_rights(short_path: Path) -> None:
    path = short_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    listener = listen_at(path, 0o660)
    mode = stat.S_IMODE(path.stat().st_mode)
    listener.close()

    assert mode == 0o660


def test_a_live_socket_is_refused_with_the_name_of_its_process(short_path: Path) -> None:
    path = short_path / "s"
    first = listen_at(path, 0o600)

    with pytest.raises(PathTaken, match=rf"is in use by uid \d+ \(pid {os.getpid()}, "):
        listen_at(path, 0o600)
    assert path.exists()
    first.close()


def test_what_is_no_socket_is_left_alone(short_path: Path) -> None:
    path = short_path / "s"
    path.write_text("precious")

    with pytest.raises(PathTaken, match="is not a socket"):
        listen_at(path, 0o600)
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_is_told(short_path: Path) -> None:
    with pytest.raises(PathTaken, match="107 bytes"):
        listen_at(short_path / ("x" * 120), 0o600)


CONNECT = """
import os, socket, sys
gid = int(sys.argv[2]); os.setgroups([gid]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
with socket.socket(socket.AF_UNIX) as link:
    try: link.connect(sys.argv[1])
    except PermissionError: sys.exit(13)
"""


@pytest.mark.node
@pytest.mark.parametrize(
    ("gids", "able"),
    [([4711, 4712], [True, True, False]), ([4712], [False, True, False]), ([], [False, False, False])],
)
def test_each_group_that_has_a_level_can_connect(short_path: Path, gids: list[int], able: list[bool]) -> None:
    """The group of the operate level opened nothing by itself."""
    for folder in short_path.parents:
        if folder.stat().st_uid == 0 and str(folder) != "/":
            folder.chmod(folder.stat().st_mode | 0o011)
    path = short_path / "s"
    listener = listen_at(path, 0o660)
    short_path.chmod(0o750)
    for before in ([4711, 4713], gids):
        for one in (short_path, path):
            admit(str(one), before)

    def connects(gid: int) -> bool:
        return subprocess.run([sys.executable, "-c", CONNECT, str(path), str(gid)], check=False).returncode == 0

    assert [connects(gid) for gid in (4711, 4712, 4713)] == able
    listener.close()

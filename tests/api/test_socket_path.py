# SPDX-License-Identifier: Apache-2.0
import os
import socket
import stat
from pathlib import Path

import pytest

from agent.api.socket_path import PathTaken, listen_at


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

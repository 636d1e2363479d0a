# SPDX-License-Identifier: Apache-2.0
"""What scripts/vagrant refuses before it begins, in a line each. That it runs, no test here shows: docs/support.md."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.host.process import ROOT

FREE = "echo 'Mem: 24 20 1 0 3 {}'"


def refused(folder: Path, programs: dict[str, str], arguments: tuple[str, ...] = ("bare",), **settings: str) -> str:
    """What is said of it where programs answer as given."""
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KEPD_VM_CACHE": str(folder / "cache"), **settings}
    command = [str(ROOT / "scripts/vagrant"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stderr
    return done.stderr


ROOT_ID, ROOM, DISK = {"id": "echo 0"}, {"free": FREE.format(8)}, {"df": "echo 99G"}


@pytest.mark.parametrize(
    ("programs", "settings", "line"),
    [
        ({"id": "echo 1000"}, {}, "needs root, to make a network and mounts of its own"),
        (
            ROOT_ID,
            {"KEPD_BOX": "other/box"},
            "KEPD_BOX is other/box: the box that is made here is debian/bookworm64; unset it, or run vagrant itself",
        ),
        ({**ROOT_ID, "free": FREE.format(2)}, {}, "2 GiB of memory are available; the machine needs 3"),
        (
            {**ROOT_ID, **ROOM, "df": "echo 11G"},
            {"KEPD_VM_CACHE": "/tmp"},
            "11 GiB are free in /tmp; a box and its machine need 12: KEPD_VM_CACHE names another place",
        ),
    ],
)
def test_what_cannot_work_is_said_in_a_line(
    tmp_path: Path, programs: dict[str, str], settings: dict[str, str], line: str
) -> None:
    assert refused(tmp_path, programs, **settings) == f"scripts/vagrant: {line}\n"


def test_packages_that_cannot_be_had_are_named(tmp_path: Path) -> None:
    programs = {**ROOT_ID, **ROOM, **DISK, "dpkg": "exit 1", "apt-get": "exit 100"}
    said = refused(tmp_path, programs)

    assert said.startswith("scripts/vagrant: missing:")
    assert "vagrant-libvirt" in said
    assert said.count("\n") == 1


def test_a_command_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    assert "needs a command" in refused(tmp_path, {}, ("run",))

# SPDX-License-Identifier: Apache-2.0
"""Commands for devices in real control groups: what leaves its session, forks twice or ignores its end is ended too."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.drivers.cgroups.commands import FOLDER, HIERARCHIES, PROCESSES, CommandGroups
from agent.drivers.cgroups.driver import ROOT
from kepd_devices.run import commands
from kepd_devices.run.commands import CommandFailed, DeviceCommands
from tests.host.process import ROOT as TREE

pytestmark = [pytest.mark.node, pytest.mark.timeout(60)]

IS_UNIFIED = (ROOT / "cgroup.controllers").exists()
# All that this machine has, so that both ways of ending a group are shown where both can be.
PRESENT = [""] if IS_UNIFIED else [name for name, folder in HIERARCHIES if (ROOT / folder / PROCESSES).exists()]
WITHIN_S = 40.0
# Leaves its session and its parent, ignores what can be ignored, and keeps no pipe.
LEAVES = "setsid sh -c 'trap \"\" TERM HUP; (sleep 600 & echo $! > {pid}; wait)' < /dev/null > /dev/null 2>&1 &"
RUNS = """
import asyncio, sys
from kepd_devices.run.commands import DeviceCommands
from agent.drivers.cgroups.commands import CommandGroups
from pathlib import Path
command, own, note = sys.argv[1:]
groups = CommandGroups("one", "", lambda text: Path(note).write_text(text), own=Path(own))
asyncio.run(DeviceCommands(groups).run([command], {}, 600))
"""


class Place:
    """A group of the test's own as that of the process, in one hierarchy."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.own = folder / "own"
        self.note = folder / "note"
        self.pid = folder / "pid"
        path = f"kepd-test-{os.getpid()}"
        self.own.write_text(f"1:{name}:/{path}\n")
        self.top = ROOT / ("" if IS_UNIFIED else dict(HIERARCHIES)[name]) / path
        self.top.mkdir()

    def groups(self, noted: str = "") -> CommandGroups:
        return CommandGroups("one", noted, lambda text: void(self.note.write_text(text)), own=self.own)

    def script(self, text: str) -> str:
        path = self.folder / "command"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def remains(self) -> list[str]:
        """Groups of commands; those above them stay."""
        return [str(one) for one in self.top.glob(f"{FOLDER}/one/*") if one.is_dir()]

    def remove(self) -> None:
        if self.pid.exists() and is_alive(self.pid):
            os.kill(int(self.pid.read_text()), signal.SIGKILL)
        for path in sorted([self.top, *(one for one in self.top.rglob("*") if one.is_dir())], reverse=True):
            until(lambda path=path: not (path / PROCESSES).read_text(), f"{path} is empty")
            path.rmdir()


def void(_: object) -> None:
    """A file's writer returns a length."""


def is_alive(pid: Path) -> bool:
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    return state.exists() and state.read_text().split()[2] != "Z"


def until(condition, what: str) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


@pytest.fixture(params=PRESENT)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, request.param)
    yield made
    made.remove()


async def test_what_left_the_session_ends_with_the_command(place: Place) -> None:
    """DVD-23: it ends well, and so does what it started, also while that holds its output."""
    script = place.script(
        LEAVES.format(pid=place.pid) + f"\nwhile [ ! -s {place.pid} ]; do sleep 0.01; done; sleep 60 &"
    )
    began_s = time.monotonic()
    await DeviceCommands(place.groups()).run([script], {}, 30)

    assert not is_alive(place.pid)
    assert time.monotonic() - began_s < 10
    assert place.remains() == []


async def test_what_left_the_session_ends_when_the_time_is_over(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVD-23: what ignores the first signal has a while, and then no choice."""
    monkeypatch.setattr(commands, "GRACE_S", 0.5)
    script = place.script(
        LEAVES.format(pid=place.pid) + f"\nwhile [ ! -s {place.pid} ]; do sleep 0.01; done; sleep 600"
    )
    with pytest.raises(CommandFailed, match="did not end within 1 s"):
        await DeviceCommands(place.groups()).run([script], {}, 1)

    assert not is_alive(place.pid)
    assert place.remains() == []


def test_what_a_killed_kepd_left_running_is_ended_by_the_next(place: Place) -> None:
    """DVD-23: found by its group, also where the next one is in another."""
    script = place.script(LEAVES.format(pid=place.pid) + "\nsleep 600")
    argv = [sys.executable, "-c", RUNS, script, str(place.own), str(place.note)]
    with subprocess.Popen(argv, cwd=TREE) as first:
        until(lambda: place.pid.exists() and place.pid.read_text(), "it runs")
        first.kill()
    was_alive = is_alive(place.pid)
    place.own.write_text("")
    left = place.groups(place.note.read_text()).end_old()

    assert was_alive
    assert left == []
    assert not is_alive(place.pid)
    assert not (place.top / FOLDER).exists()


async def test_commands_of_another_kepd_are_left_alone(place: Place) -> None:
    """DVD-23: two may run beside each other, each with a directory of its own."""
    other = place.top / FOLDER / "other" / "1"
    other.mkdir(parents=True)
    await DeviceCommands(place.groups(str(other.parent))).begin()

    assert other.exists()


async def test_a_command_sees_nothing_of_how_it_was_started(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVD-23: its environment is what it is told, signals are as for any program, and it leads a session."""
    monkeypatch.setenv("SECRET", "word")
    out = place.folder / "out"
    script = place.script(
        f"env > {out}; grep SigIgn /proc/self/status >> {out}; ps -o sid= -p $$ >> {out}; echo $$ >> {out}"
    )
    await DeviceCommands(place.groups()).run([script, "a b"], {"DEVICE_NAME": "x"}, 30)
    *variables, ignored, session, own = out.read_text().split("\n")[:-1]

    # What a shell adds by itself.
    told = {one for one in variables if one.partition("=")[0] not in ("PWD", "OLDPWD", "SHLVL", "_")}
    assert told == {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEVICE_NAME=x"}
    assert ignored.split() == ["SigIgn:", "0" * 16]
    assert session.strip() == own


async def test_a_program_that_cannot_be_started_says_so(place: Place) -> None:
    """DVD-23."""
    path = place.folder / "empty"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    done = DeviceCommands(place.groups())
    with pytest.raises(CommandFailed, match="empty cannot be started"):
        await done.run([str(path)], {}, 30, "d/x")

    assert done.printed == {"d/x": "it printed: Exec format error"}
    assert place.remains() == []


async def test_without_a_group_a_command_runs_and_people_are_told(tmp_path: Path) -> None:
    """DVD-23: where control groups cannot be written, as in many containers."""
    (tmp_path / "own").write_text("1:name=systemd:/gone\n")
    done = DeviceCommands(CommandGroups("one", "", void, root=tmp_path, own=tmp_path / "own"))
    await done.run(["/bin/true"], {}, 30)

    (problem,) = done.problems
    assert "commands have no control group of their own" in problem

# SPDX-License-Identifier: Apache-2.0
"""A control group for each command that is run, so that all that it starts is found and ended: a process leaves its
session at will, and its group only if somebody moves it.

    <the group of this process>/kepd-devices/<id of this kepd>/<number>

Below the group of this process: what limits kepd limits its commands, and a service manager that ends kepd ends them
too. Where groups can be made is written down, for a kepd that starts in another one. Never: moves a process; a command
enters by itself. Blocking; methods raise OSError.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from agent.drivers.cgroups.driver import MODE, ROOT, groups_from

OWN = Path("/proc/self/cgroup")
FOLDER = "kepd-devices"
# By name as /proc has it. Of version 2 first, also beside version 1: it ends a group with all in it at once.
HIERARCHIES = (("", "unified"), ("name=systemd", "systemd"), ("pids", "pids"), ("freezer", "freezer"))
PROCESSES, KILL = "cgroup.procs", "cgroup.kill"
GONE_S, LOOK_S = 2.0, 0.01


class CommandGroup:
    """Of one command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def entrance(self) -> str:
        """A process that writes 0 there is in the group, and so is what it starts from then on."""
        return str(self.path / PROCESSES)

    def members(self) -> list[int]:
        """Those that have not ended."""
        return [int(one) for group in groups_from(self.path) for one in _lines(group / PROCESSES)]

    def signal(self, number: int) -> None:
        for one in self.members():
            with suppress(ProcessLookupError):
                os.kill(one, number)

    def kill(self) -> None:
        """What is started meanwhile is there still where the kernel cannot do it at once."""
        if (end := self.path / KILL).exists():
            end.write_text("1")
        else:
            self.signal(signal.SIGKILL)

    def remove(self) -> None:
        """Once it is empty."""
        for group in reversed(groups_from(self.path)):
            with suppress(FileNotFoundError):
                group.rmdir()


class CommandGroups:
    def __init__(
        self, instance: str, noted: str, note: Callable[[str], None], root: Path = ROOT, own: Path = OWN
    ) -> None:
        """`noted` is where an earlier life made groups; `note` writes down where this one does, and raises OSError."""
        self._instance = instance
        self._noted = noted
        self._note = note
        self._root = root
        self._own = own
        self._numbers = count(1)

    def make(self) -> CommandGroup:
        """One that is new, in the first hierarchy where this process may."""
        problem: OSError = FileNotFoundError(f"{self._root} has no hierarchy with the group of this process")
        for place in self._places():
            try:
                return self._make_in(place)
            except OSError as error:
                problem = error
        raise problem

    def _make_in(self, place: Path) -> CommandGroup:
        place.mkdir(mode=MODE, parents=True, exist_ok=True)
        if self._noted != str(place):
            self._note(str(place))
            self._noted = str(place)
        while True:
            path = place / str(next(self._numbers))
            with suppress(FileExistsError):  # of an earlier life, with what cannot be ended
                path.mkdir(mode=MODE)
                return CommandGroup(path)

    def end_old(self) -> list[int]:
        """Of an earlier life of this kepd, before the first one of this; which processes cannot be ended."""
        left: list[int] = []
        noted = Path(self._noted)
        places = dict.fromkeys([*self._places(), *([noted] if self._is_ours(noted) else [])])
        for place in places:
            for path in _directories(place):
                left += _ended(CommandGroup(path))
            for empty in (place, place.parent):
                with suppress(OSError):
                    empty.rmdir()
        return left

    def _is_ours(self, place: Path) -> bool:
        is_inside = place.is_relative_to(self._root) and ".." not in place.parts
        return is_inside and place.parts[-2:] == (FOLDER, self._instance)

    def _places(self) -> Iterator[Path]:
        lines = [line.split(":", 2) for line in self._own.read_text().splitlines()]
        own = {name: path.strip("/") for _, name, path in lines if ".." not in path.split("/")}
        is_unified = (self._root / "cgroup.controllers").exists()
        for name, folder in (("", ""),) if is_unified else HIERARCHIES:
            if name in own and (self._root / folder / own[name] / PROCESSES).exists():
                yield self._root / folder / own[name] / FOLDER / self._instance


def _ended(group: CommandGroup) -> list[int]:
    until_s = time.monotonic() + GONE_S
    while True:
        group.kill()
        if not (left := group.members()) or time.monotonic() >= until_s:
            break
        time.sleep(LOOK_S)
    if not left:
        with suppress(OSError):
            group.remove()
    return left


def _directories(path: Path) -> list[Path]:
    try:
        return [one for one in path.iterdir() if one.is_dir()]
    except FileNotFoundError:
        return []


def _lines(path: Path) -> list[str]:
    """Of a group that is gone, none."""
    try:
        return path.read_text().split()
    except OSError:
        return []

# SPDX-License-Identifier: Apache-2.0
"""Everything of one lab on this machine: finding it, and taking it away whether its owner ended well or crashed.

Owns: the traces outside the lab's directory (processes, cgroups, CNI results, shim sockets) and the order in which
they go: processes, mounts, cgroups, shared files, directory.
Never: goes by a program's name alone; what is ended or deleted carries the lab's namespace, cgroup, socket or path.
"""

import os
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from tests.lab.containerd import shim_sockets
from tests.lab.errors import LabError
from tests.lab.mounts import detach, mounts_below
from tests.lab.netns import namespace_inode
from tests.lab.place import Place, dead_places

__all__ = ["lab_processes", "leftovers", "sweep", "sweep_dead"]

CGROUP_ROOT = Path("/sys/fs/cgroup")
CNI_RESULTS = Path("/var/lib/cni/results")
WITHIN_S = 30.0
POLL_S = 0.01
SHIM_NAME_PREFIX = "containerd-shim"  # the kernel cuts names to 15 characters


def sweep_dead(parent: Path) -> list[str]:
    """Take away what earlier labs left whose owner died without cleaning; returns their names."""
    names = []
    for place in dead_places(parent):
        sweep(place)
        names.append(place.name)
    return names


def sweep(place: Place) -> set[Path]:
    """Take away all of a lab; returns the shim sockets it had, which nothing names once the directory is gone."""
    sockets = shim_sockets(place)
    _end_processes(place)
    for mount in mounts_below(place.directory):
        detach(mount)
    _remove_cgroups(place)
    for path in (*cni_results(place), *sockets):
        path.unlink(missing_ok=True)
    _remove_directory(place)
    return sockets


def _remove_directory(place: Place) -> None:
    """The lock file goes last: a lab that starts meanwhile must not take this one for dead and clean it too."""
    for path in place.directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != place.owner_file:
            path.unlink()
    with suppress(FileNotFoundError):
        place.owner_file.unlink(missing_ok=True)
        place.directory.rmdir()


def leftovers(place: Place, sockets: Iterable[Path] = ()) -> list[str]:
    """One line for each thing of the lab that is still on the machine."""
    found = [f"process {pid}: {' '.join(_argv(pid)) or _name(pid)}" for pid in sorted(lab_processes(place))]
    found += [f"mount {mount.point} ({mount.file_system})" for mount in mounts_below(place.directory)]
    found += [f"cgroup {path}" for path in cgroups(place)]
    found += [f"interface {name}" for _, name in socket.if_nameindex() if name == place.bridge]
    found += [f"file {path}" for path in (*cni_results(place), *sorted(set(sockets))) if path.exists()]
    if place.directory.exists():
        found.append(f"directory {place.directory}")
    return found


def lab_processes(place: Place) -> set[int]:
    """Living processes in the lab's network namespace or cgroups, and its shims; never this one."""
    inode = namespace_inode(place.netns)
    found = {pid for cgroup in cgroups(place) for pid in _members(cgroup)}
    for pid in _all_pids():
        argv = _argv(pid)
        is_shim = _name(pid).startswith(SHIM_NAME_PREFIX) and str(place.containerd_socket) in argv
        if is_shim or (inode is not None and _netns_inode(pid) == inode):
            found.add(pid)
    return {pid for pid in found if pid != os.getpid() and _is_alive(pid)}


def cgroups(place: Place) -> list[Path]:
    """The lab's cgroup in each hierarchy with all below it, deepest first."""
    tops = []
    for directory, below, _ in os.walk(CGROUP_ROOT):
        if place.name in below:
            tops.append(Path(directory, place.name))
            below.remove(place.name)
    every = [Path(directory) for top in tops for directory, _, _ in os.walk(top)]
    return sorted(every, key=lambda path: len(path.parts), reverse=True)


def cni_results(place: Place) -> list[Path]:
    """Cached results of the lab's network, and those of the loopback network that name a sandbox of the lab."""
    if not CNI_RESULTS.is_dir():
        return []
    mark = f"{place.directory}/".encode()
    return [
        path
        for path in sorted(CNI_RESULTS.iterdir())
        if path.name.startswith(f"{place.name}-") or mark in _content(path)
    ]


def _content(path: Path) -> bytes:
    with suppress(OSError):  # another runtime took it away meanwhile
        return path.read_bytes()
    return b""


def _end_processes(place: Place) -> None:
    """SIGKILL until nothing lives; shims first, so that none reports or restarts while the rest goes."""
    deadline_monotonic = time.monotonic() + WITHIN_S
    while pids := lab_processes(place):
        for pid in sorted(pids, key=lambda pid: not _name(pid).startswith(SHIM_NAME_PREFIX)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _thaw(place)
        if time.monotonic() > deadline_monotonic:
            raise LabError(
                f"{place.name}: processes {sorted(pids)} survive SIGKILL since {WITHIN_S} s; nothing removed"
            )
        time.sleep(POLL_S)


def _thaw(place: Place) -> None:
    """A frozen process dies only when it is thawed."""
    for cgroup in cgroups(place):
        for file, word in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with suppress(OSError):
                if (cgroup / file).exists():
                    (cgroup / file).write_text(word, "ascii")


def _remove_cgroups(place: Place) -> None:
    """The kernel says busy for a moment after the last process went."""
    deadline_monotonic = time.monotonic() + WITHIN_S
    while paths := cgroups(place):
        for path in paths:
            with suppress(OSError):
                path.rmdir()
        if time.monotonic() > deadline_monotonic:
            raise LabError(f"{place.name}: cgroups stay busy since {WITHIN_S} s: {', '.join(map(str, paths))}")
        if cgroups(place):
            time.sleep(POLL_S)


def _all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _members(cgroup: Path) -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in (cgroup / "cgroup.procs").read_text("ascii").split()]
    return []


def _argv(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    return []


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").rstrip("\n")
    return ""


def _netns_inode(pid: int) -> int | None:
    with suppress(OSError):
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    return None


def _is_alive(pid: int) -> bool:
    """A zombie is no longer alive; only its parent can take the entry away."""
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        return state not in {"Z", "X"}
    return False

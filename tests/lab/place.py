# SPDX-License-Identifier: Apache-2.0
"""Where one lab lives: its number and every name, path and address that follows from it.

Owns: the claim on a number, which is a directory that appears complete and already locked, so that several labs
run side by side and a later one can tell the dead from the living.
Never: starts a process or deletes a file; sweep.py does the cleaning.
"""

import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError

__all__ = ["Place", "claim", "dead_places", "default_parent"]

PREFIX = "kepd-lab-"
NEW_PREFIX = ".kepd-lab-new-"
NUMBERS = 0x8000
SOCKET_PATH_LIMIT = 107
LONGEST_SOCKET = "containerd.sock.ttrpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One lab's directory and number; all other names derive from these two."""

    parent: Path
    number: int

    @property
    def name(self) -> str:
        """Name of the lab, its CNI network and its cgroup."""
        return f"{PREFIX}{self.number:04x}"

    @property
    def directory(self) -> Path:
        return self.parent / self.name

    @property
    def bridge(self) -> str:
        """Interface name, which the kernel limits to 15 characters."""
        return f"kl{self.number:04x}br0"

    @property
    def subnet(self) -> str:
        return f"10.{128 + (self.number >> 8)}.{self.number & 255}.0/24"

    @property
    def cgroup_parent(self) -> str:
        return f"/{self.name}"

    @property
    def owner_file(self) -> Path:
        """Locked by the living process that owns the lab."""
        return self.directory / "owner"

    @property
    def netns(self) -> Path:
        return self.directory / "net"

    @property
    def containerd_socket(self) -> Path:
        return self.directory / "containerd.sock"

    @property
    def containerd_config(self) -> Path:
        return self.directory / "etc" / "config.toml"

    @property
    def containerd_state(self) -> Path:
        return self.directory / "state"

    @property
    def throttle_socket(self) -> Path:
        return self.directory / "throttle.sock"

    @property
    def cdi(self) -> Path:
        """Where its runtime looks for CDI files, if it knows of them; never in the machine's own places."""
        return self.directory / "cdi"

    @property
    def pod_logs(self) -> Path:
        return self.directory / "pods"

    def log(self, part: str) -> Path:
        """Where a part of the lab writes what it has to say."""
        return self.directory / "log" / f"{part}.log"


def default_parent() -> Path:
    """The directory for temporary files, resolved, so that paths in the mount table compare equal."""
    return Path(tempfile.gettempdir()).resolve()


def claim(parent: Path) -> tuple[Place, int]:
    """Take a free number below `parent`; returns the place and the descriptor whose lock says that the owner lives."""
    longest = len(os.fsencode(parent / f"{PREFIX}0000" / LONGEST_SOCKET))
    if longest > SOCKET_PATH_LIMIT:
        raise LabError(
            f"{parent}: too long for a lab: its unix sockets would have paths of {longest} bytes, "
            f"{SOCKET_PATH_LIMIT} are allowed; set TMPDIR to a shorter directory such as /tmp"
        )
    draft = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=parent))
    draft.chmod(0o711)
    owner = os.open(draft / "owner", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(owner, fcntl.LOCK_EX)
    for _ in range(100):
        place = Place(parent=parent, number=secrets.randbelow(NUMBERS))
        with suppress(OSError):  # taken: a directory with content is never replaced
            draft.rename(place.directory)
            return place, owner
    os.close(owner)
    (draft / "owner").unlink()
    draft.rmdir()
    raise LabError(f"{parent}: no free lab number in 100 attempts; remove old {PREFIX}* directories there")


@contextmanager
def _lock_of_dead(place: Place) -> Iterator[bool]:
    """Hold the lab's lock if nobody does; yields whether the lab is ours to clean."""
    try:
        owner = os.open(place.owner_file, os.O_RDWR)
    except FileNotFoundError:
        yield place.directory.is_dir()  # its cleaning was cut short after the lock file went
        return
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            yield os.path.samestat(os.fstat(owner), place.owner_file.stat())
            return
        yield False
    except BlockingIOError:
        yield False
    finally:
        os.close(owner)


def _is_own_directory(path: Path) -> bool:
    """In a directory open to all, a name alone proves nothing."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def dead_places(parent: Path) -> Iterator[Place]:
    """Labs below `parent` whose owner is gone; each is locked while the caller holds it."""
    for directory in sorted(parent.glob(f"{PREFIX}[0-9a-f][0-9a-f][0-9a-f][0-9a-f]")):
        if not _is_own_directory(directory):
            continue
        place = Place(parent=parent, number=int(directory.name.removeprefix(PREFIX), 16))
        with _lock_of_dead(place) as is_dead:
            if is_dead:
                yield place

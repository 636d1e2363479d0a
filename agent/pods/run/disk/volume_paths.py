# SPDX-License-Identifier: Apache-2.0
"""Paths that pods mount, in their volumes and of the node. Blocking; called in threads.

In a volume containers may put links of their own. Each step is opened from the one above, so that nothing can be put in
the way meanwhile, and links inside a volume are followed as far as they stay inside. Of the node's paths those that a
container may change are walked like a volume's, so that no container leads another, or kepd, out of them; links that
an administrator made are followed. Never: opens what it found: a pipe would block; or gives away what kepd lives by.
"""

import os
import stat
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path, PurePath

from agent.pods.run.disk.atomic_files import make_directory, make_directory_at, make_file
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.volume_plan import MOUNT_PROBLEM, PlannedVolume

MOST_LINKS = 40
STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
DIRECTORY_MODE, FILE_MODE = 0o755, 0o644
SYSTEM = tuple(map(Path, ("/boot", "/dev", "/etc", "/lib", "/proc", "/sys", "/usr")))
TESTS = {
    "Directory": (stat.S_ISDIR, "directory"),
    "File": (stat.S_ISREG, "file"),
    "Socket": (stat.S_ISSOCK, "socket"),
    "CharDevice": (stat.S_ISCHR, "character device"),
    "BlockDevice": (stat.S_ISBLK, "block device"),
}


def open_inside(root: Path, path: str, *, makes: bool = True) -> int:
    """A descriptor that stands for a path and reads nothing. Raises OSError, and ConfigProblem for a way out."""
    parts = deque(Path(path).parts)
    if ".." in parts or path.startswith("/"):
        raise ConfigProblem(f"{path!r} points outside of its volume")
    opened = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    links = 0
    try:
        while parts:
            part = parts.popleft()
            if part == "..":
                os.close(opened.pop())
                if not opened:
                    raise ConfigProblem(f"{path!r} points outside of its volume through a link")
                continue
            below = _step(opened[-1], part, makes=makes)
            if not stat.S_ISLNK(os.fstat(below).st_mode):
                opened.append(below)
                continue
            target = os.readlink("", dir_fd=below)
            os.close(below)
            links += 1
            if target.startswith("/") or links > MOST_LINKS:
                raise ConfigProblem(f"{path!r} points outside of its volume through the link {part}")
            parts.extendleft(reversed(Path(target).parts))
        return opened.pop()
    finally:
        for handle in opened:
            os.close(handle)


def _step(handle: int, part: str, *, makes: bool) -> int:
    """One part further; a directory that is missing is made like the one above it."""
    try:
        return os.open(part, STEP, dir_fd=handle)
    except FileNotFoundError:
        if not makes:
            raise
    make_directory_at(handle, part, stat.S_IMODE(os.fstat(handle).st_mode))
    return os.open(part, STEP, dir_fd=handle)


def read_inside(root: Path, path: str, most_bytes: int) -> bytes | None:
    """The beginning of a file; None if there is none, or something else."""
    try:
        handle = open_inside(root, path, makes=False)
    except (OSError, ConfigProblem):
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        with Path(f"/proc/self/fd/{handle}").open("rb") as source:
            return source.read(most_bytes)
    except OSError:
        return None
    finally:
        os.close(handle)


class HostPaths:
    """`own` are directories that no pod gets; `logs` are those that pods get to read."""

    def __init__(self, own: Sequence[Path], logs: Sequence[Path]) -> None:
        self._own, self._logs = own, logs

    def parted(self, path: str, written: Collection[str]) -> tuple[Path, str]:
        """The highest directory above that containers may change, and the way on from there; the path itself where
        there is none. Who may change the system, or what is above kepd's directories, has the node anyway."""
        place, own = PurePath(path), [one.resolve() for one in (*self._own, *SYSTEM)]
        above = [
            one
            for one in written
            if place != PurePath(one) and place.is_relative_to(one)
            and not any(each.is_relative_to(Path(one).resolve()) for each in own)
        ]  # fmt: skip
        root = Path(min(above, key=len)) if above else Path(path)
        return root, str(place.relative_to(root)) if above else ""

    def check(self, volume: PlannedVolume, written: Collection[str] = ()) -> None:
        """Make it if it has to be made. Raises ConfigProblem."""
        root, below = self.parted(volume.host_path, written)
        self._refuse_own(volume, root.resolve())
        try:
            _make(root, below, volume.check)
            mode = _mode(root, below)
        except OSError as error:
            raise _problem(volume, f"cannot be created: {error.strerror}") from error
        except ConfigProblem as error:
            raise _problem(volume, f"lies below {root}, which containers may change: {error}") from error
        test, name = TESTS.get(volume.check.removesuffix("OrCreate"), (None, ""))
        if test is not None and not test(mode):
            raise _problem(volume, f"is not a {name}", "hostPath type check failed: ")

    def _refuse_own(self, volume: PlannedVolume, real: Path) -> None:
        closed = self._own if volume.is_read_only else (*self._own, *self._logs)
        found = next((one for one in closed if real.is_relative_to(one.resolve())), None)
        if found is not None:
            how = "to write to" if found in self._logs else "at all"
            text = f"is in {found}, which kepd gives no container {how}; expected a directory of yours"
            raise _problem(volume, text)


def _problem(volume: PlannedVolume, text: str, head: str = "hostPath ") -> ConfigProblem:
    return ConfigProblem(f'volume "{volume.name}" cannot be mounted: {head}{volume.host_path} {text}', MOUNT_PROBLEM)


def _make(root: Path, below: str, kind: str) -> None:
    if kind not in ("DirectoryOrCreate", "FileOrCreate"):
        return
    way = PurePath(below) if kind == "DirectoryOrCreate" else PurePath(below).parent
    if below:
        handle = open_inside(root, str(way))
        try:
            if kind == "FileOrCreate":
                make_file(Path(f"/proc/self/fd/{handle}", PurePath(below).name), FILE_MODE)
        finally:
            os.close(handle)
    elif not root.exists():
        make_directory(root, DIRECTORY_MODE) if kind == "DirectoryOrCreate" else make_file(root, FILE_MODE)


def _mode(root: Path, below: str) -> int:
    """0 where nothing is; the runtime may make that."""
    try:
        handle = open_inside(root, below, makes=False) if below else os.open(root, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return os.fstat(handle).st_mode
    finally:
        os.close(handle)

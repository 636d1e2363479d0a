# SPDX-License-Identifier: Apache-2.0
"""Trees of directories that containers may have filled: measured and removed, whatever is in them.

Owns: walking without recursion, without a path (a tree may be deeper than any path can be long) and with few open
descriptors. Each directory is opened from the one above it. Who measures goes at a pace: so many entries a second,
behind everybody else's reads, and not for ever.
Never: crosses a mount, also a bind mount on the same device: what is mounted belongs to others. Never follows a link.
Blocking; called in threads. What is kept in memory are the names of the directories that are still to be visited.
"""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ENOSYS, ESTALE, EXDEV
from pathlib import Path
from time import monotonic, sleep

import msgspec

from agent.model.openat2 import NO_LINKS, NO_MOUNTS, open_within
from agent.pods.plan.scarcity.storage_use import TreeUse

ENTRIES_A_SECOND = 20_000
LONGEST_S = 600.0
WORTH_WAITING_S = 0.02
# Of linux/ioprio.h.
OF_THREAD, IDLE, USUAL = 1, 3 << 13, 0
NUMBERS = {"x86_64": 251, "aarch64": 30}
STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MOST_OPEN, ALWAYS_OPEN = 32, 2
CLOSED = -1
# Of files that have several names; beyond that each name counts.
MOST_LINKED = 10_000
BLOCK_BYTES = 512
AT_ONCE = 500
MOST_SHOWN = 200
REASONS = {
    EXDEV: "something is mounted there; kepd leaves it alone",
    # What systemd makes of openat2 where a unit says RestrictSUIDSGID, as an older drop-in for pods leaves it.
    ENOSYS: "kepd may not call openat2 here; its unit needs the drop-in pods.conf of this version (kepd setup)",
}


class DiskPace:
    """`went` is called after some entries, in the thread that walks."""

    def __init__(self, now_s: Callable[[], float] = monotonic, wait: Callable[[float], None] = sleep) -> None:
        self._now_s, self._wait = now_s, wait
        self._began_s = now_s()
        self._entries = 0
        self._is_stopped = False

    def went(self, entries: int) -> None:
        self._entries += entries
        ahead_s = self._entries / ENTRIES_A_SECOND - (self._now_s() - self._began_s)
        if ahead_s > WORTH_WAITING_S and not self._is_stopped:
            self._wait(ahead_s)

    @property
    def is_over(self) -> bool:
        """Whoever makes files faster than they are counted keeps no walk from its end."""
        return self._is_stopped or self._now_s() - self._began_s > LONGEST_S

    def stop(self) -> None:
        """For the thread that waits for another one's walk."""
        self._is_stopped = True


@contextmanager
def idle_reads() -> Iterator[None]:
    """Reads of this thread come after those of all others, where the disk's scheduler has an order."""
    _set_class(IDLE)
    try:
        yield
    finally:
        _set_class(USUAL)


def _set_class(value: int) -> None:
    """A unit may forbid it; then reads are as usual."""
    number = NUMBERS.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, OF_THREAD, 0, value)


class _Level(msgspec.Struct):
    """A directory on the way down. `left` are directories in it that were not visited yet."""

    name: str
    identity: tuple[int, int]
    handle: int
    left: list[str]


def remove_tree(root: Path) -> None:
    """Remove a directory with everything in it. What cannot be removed (a mount, an immutable file, a bad block) keeps
    nothing else; then the first such OSError is raised, EXDEV for a mount."""

    def unlink_files(handle: int) -> list[str]:
        below = []
        with os.scandir(handle) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                    continue
                try:
                    os.unlink(entry.name, dir_fd=handle)
                except OSError as error:
                    walk.note(error, walk.entered, entry.name)
        return below

    walk = _TreeWalk(unlink_files, lambda above, name: os.rmdir(name, dir_fd=above))
    walk.run(root)
    if walk.fault is not None:
        raise walk.fault


def tree_use(root: Path, pace: DiskPace | None = None) -> TreeUse:
    """What the files in a directory take on their disk, hard links once; nothing where there is none. What moves or
    vanishes meanwhile may be left out, and what is not reached when the walk is over."""
    pace = pace or DiskPace()
    found = TreeUse()
    linked: set[tuple[int, int]] = set()

    def measure_files(handle: int) -> list[str]:
        nonlocal found
        below, blocks, inodes = [], 0, 1
        with os.scandir(handle) as entries:
            for number, entry in enumerate(entries, 1):
                if number % AT_ONCE == 0:
                    pace.went(AT_ONCE)
                    if pace.is_over:
                        break
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    identity = status.st_dev, status.st_ino
                    if status.st_nlink > 1 and identity in linked:
                        continue
                    if status.st_nlink > 1 and len(linked) < MOST_LINKED:
                        linked.add(identity)
                    blocks, inodes = blocks + status.st_blocks, inodes + 1
        found += TreeUse(blocks * BLOCK_BYTES, inodes)
        pace.went(inodes % AT_ONCE)
        return below

    if root.is_dir():
        _TreeWalk(measure_files, lambda _above, _name: None, lambda: pace.is_over).run(root)
    return found


class _TreeWalk:
    """One walk, the deepest first. `look` gets each directory once and answers with the names of those in it.

    `leave` hears of each directory, by the one above it, when everything below is done. What cannot be entered or left
    is passed over; the first such is `fault`. The deepest level is always open, and so are the first two.
    """

    def __init__(
        self,
        look: Callable[[int], list[str]],
        leave: Callable[[int, str], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.fault: OSError | None = None
        self.entered = ""
        self._look = look
        self._leave = leave
        self._is_over = is_over
        self._levels: list[_Level] = []

    def note(self, error: OSError, *names: str) -> None:
        """Of a tree that is full of them, the first one is enough."""
        if self.fault is None:
            path = "/".join([*(level.name for level in self._levels), *names])
            shown = path if len(path) <= MOST_SHOWN else f"{path[:MOST_SHOWN]}…"
            self.fault = OSError(error.errno, REASONS.get(error.errno or 0, error.strerror), shown)

    def run(self, root: Path) -> None:
        handle = os.open(root.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._levels = [_Level(str(root.parent), (0, 0), handle, [root.name])]
        try:
            while (len(self._levels) > 1 or self._levels[0].left) and not self._is_over():
                if self._levels[-1].left:
                    self._down(self._levels[-1].left.pop())
                else:
                    self._up()
        finally:
            for level in self._levels:
                _close(level)

    def _down(self, name: str) -> None:
        level = _Level(name, (0, 0), CLOSED, [])
        self.entered = name
        try:
            level.handle = _step(self._levels[-1].handle, name)
            level.identity = _identity(level.handle)
            level.left = self._look(level.handle)
        except OSError as error:
            _close(level)
            self.note(error, name)
            return
        self._levels.append(level)
        if len(self._levels) > MOST_OPEN:
            _close(self._levels[-MOST_OPEN + ALWAYS_OPEN - 1])

    def _up(self) -> None:
        done, above = self._levels[-1], self._levels[-2]
        try:
            if above.handle == CLOSED:
                above.handle = _back(done, above)
        except OSError as error:
            # The way up is lost. The first two levels are open, and what is left below them goes on.
            self.note(error, "..")
            while len(self._levels) > ALWAYS_OPEN:
                _close(self._levels.pop())
            return
        _close(self._levels.pop())
        try:
            self._leave(above.handle, done.name)
        except OSError as error:
            self.note(error, done.name)


def _step(handle: int, name: str) -> int:
    """Open a directory from the one above or below it. EXDEV where that would cross a mount, also a bind mount."""
    return open_within(handle, name, STEP, NO_MOUNTS | NO_LINKS)


def _back(below: _Level, above: _Level) -> int:
    """The way up from a directory, unless it was moved meanwhile."""
    handle = _step(below.handle, "..")
    if _identity(handle) != above.identity:
        os.close(handle)
        raise OSError(ESTALE, "it was moved while kepd was reading it", below.name)
    return handle


def _identity(handle: int) -> tuple[int, int]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino


def _close(level: _Level) -> None:
    if level.handle != CLOSED:
        os.close(level.handle)
        level.handle = CLOSED

# SPDX-License-Identifier: Apache-2.0
"""Paths inside volumes, where containers may put links of their own. Blocking; called in threads.

Each step is opened from the one above, so that nothing can be put in the way meanwhile. Links inside a volume are
followed as far as they stay inside. Never: opens what it found: a pipe would block.
"""

import os
import stat
from collections import deque
from pathlib import Path

from agent.pods.run.disk.atomic_files import make_directory_at
from agent.pods.runtime.environment import ConfigProblem

MOST_LINKS = 40
STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


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

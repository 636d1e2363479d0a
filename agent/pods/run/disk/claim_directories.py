# SPDX-License-Identifier: Apache-2.0
"""Directories that serve claims: `ROOT/NAMESPACE/CLAIM`. Blocking; called in threads. Functions raise OSError, and
ConfigProblem for a link that is in the way.

Each step is opened from the one above it, so that no link leads out of the root, whoever put it there.
"""

import os
from contextlib import suppress
from pathlib import Path

from agent.pods.run.disk.atomic_files import make_directory, make_directory_at
from agent.pods.run.disk.trees import DiskPace, idle_reads, remove_tree, tree_use
from agent.pods.runtime.environment import ConfigProblem
from agent.pods.runtime.volume_plan import MOUNT_PROBLEM

# Whoever a pod runs as may write into its own; nobody gets there but by a mount.
CLAIM_MODE, ABOVE_MODE = 0o777, 0o700
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_claim(directory: str) -> None:
    """There afterwards; what is there already stays as it is."""
    path = Path(directory)
    make_directory(path.parents[1], ABOVE_MODE)
    root = os.open(path.parents[1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        above = _made(root, path.parent.name, ABOVE_MODE)
        try:
            os.close(_made(above, path.name, CLAIM_MODE))
        finally:
            os.close(above)
    except NotADirectoryError as error:
        text = f"{directory} cannot be mounted: {error.filename} in it is a link or a file; kepd follows no link there"
        raise ConfigProblem(text, MOUNT_PROBLEM) from error
    finally:
        os.close(root)


def _made(above: int, name: str, mode: int) -> int:
    make_directory_at(above, name, mode)
    return os.open(name, STEP, dir_fd=above)


def is_there(directory: str) -> bool:
    return os.path.lexists(directory)


def claim_bytes(directory: str) -> int:
    with idle_reads():
        return tree_use(Path(directory), DiskPace()).bytes


def remove_claim(directory: str) -> None:
    """One that is gone is fine."""
    path = Path(directory)
    with suppress(FileNotFoundError):
        root = os.open(path.parents[1], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            above = os.open(path.parent.name, STEP, dir_fd=root)
        finally:
            os.close(root)
        try:
            remove_tree(Path(f"/proc/self/fd/{above}", path.name))
        finally:
            os.close(above)

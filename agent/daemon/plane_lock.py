# SPDX-License-Identifier: Apache-2.0
"""One process per plane and runtime: a lock file that the kernel frees when its holder dies.

Owns: the path (`/run/lock/kepd-PLANE-HASH.lock`) and the pid in it, for the message to the second one.
Never: waits. Two daemons that order the same containers would each undo what the other does.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PlaneTaken", "held_plane_lock"]

LOCK_DIRECTORY = Path("/run/lock")


class PlaneTaken(Exception):
    """Another process runs this plane for the same runtime."""


@contextmanager
def held_plane_lock(plane: str, scope: str, directory: Path = LOCK_DIRECTORY) -> Iterator[None]:
    """Hold the lock of a plane. `scope` is what there may be one plane of: a runtime endpoint, a network namespace."""
    digest = hashlib.sha256(scope.encode()).hexdigest()[:8]
    path = directory / f"kepd-{plane}-{digest}.lock"
    # O_NOFOLLOW: the directory is writable by all on many systems, so a link there is not to be trusted.
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise PlaneTaken(
                f"{path} is held by process {holder}, which runs the {plane} plane for {scope}; stop it first"
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)

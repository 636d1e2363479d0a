# SPDX-License-Identifier: Apache-2.0
"""One process per plane and runtime: a lock file that the kernel frees when its holder dies.

The file, `/run/lock/kepd-PLANE-HASH.lock`, holds the pid for the message to the second process.
Never: waits. Two daemons that order the same containers would each undo what the other does.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_DIRECTORY = Path("/run/lock")


class PlaneTaken(Exception):
    """Another process runs this plane for the same runtime."""


@contextmanager
def held_plane_lock(plane: str, scope: str, directory: Path = LOCK_DIRECTORY) -> Iterator[None]:
    """Hold the lock of a plane. `scope` is what there may be one plane of: a runtime endpoint, a network namespace."""
    digest = hashlib.sha256(scope.encode()).hexdigest()[:8]
    path = directory / f"kepd-{plane}-{digest}.lock"
    lock = _locked(path, f"the {plane} plane for {scope}")
    try:
        yield
    finally:
        # Removed while it is still held: whoever opened it meanwhile sees that its file is gone and opens anew.
        path.unlink(missing_ok=True)
        os.close(lock)


def _locked(path: Path, what: str) -> int:
    while True:
        # O_NOFOLLOW: the directory is writable by all on many systems, so a link there is not to be trusted.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(lock).st_uid != os.geteuid():
            # Anybody may write to the directory; a file that somebody else put there is no lock of ours.
            os.close(lock)
            path.unlink()
            continue
        try:
            take_lock(lock, path, f"runs {what}")
        except PlaneTaken:
            os.close(lock)
            raise
        if _is_at(lock, path):
            return lock
        os.close(lock)


def take_lock(lock: int, path: Path, deed: str) -> None:
    """Lock an opened file and write our pid into it. Raises PlaneTaken with the pid and the deed of who has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(lock, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise PlaneTaken(f"{path} is held by process {holder}, which {deed}; stop it first") from error
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


def _is_at(lock: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False

# SPDX-License-Identifier: Apache-2.0
"""One process per plane and runtime: a lock file that the kernel frees when its holder dies.

`/run/kepd-locks/PLANE-HASH.lock` holds the pid for the message to the second process. Locks lie in a directory of our
own, because in one that all may write to anyone could hold a lock, or put something else in its place. The services
plane may also run as user kepd, so its locks lie in a directory that this user shares with root and with no one else:

    /run/kepd-locks            root                0755
    /run/kepd-locks/services   user kepd, group root 0770; not group kepd, whose members read the API

tmpfiles.conf makes both. Without that file root makes them for itself, and another user, who may not, has locks in its
own run directory as long as no root ever ran kepd on this machine.

Never: waits, nor removes what it has not locked. Two daemons that order the same containers would each undo what the
other does.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_DIRECTORY = Path("/run/kepd-locks")
SHARED = ("services",)
"""Planes that more users than root may run."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class PlaneTaken(Exception):
    """Another process runs this plane for the same runtime, or no lock can say that none does."""


@contextmanager
def held_plane_lock(
    plane: str, scope: str, run_directory: str | Path, directory: Path = LOCK_DIRECTORY
) -> Iterator[None]:
    """Hold the lock of a plane. `scope` is what there may be one plane of: a runtime endpoint, a network namespace."""
    digest = hashlib.sha256(scope.encode()).hexdigest()[:8]
    what = f"the {plane} plane for {scope}"
    path = directory
    try:
        path = _place(plane, directory, Path(run_directory) / "locks") / f"{plane}-{digest}.lock"
        lock = _locked(path, what, 0o666 if plane in SHARED else 0o600)
    except OSError as error:
        raise PlaneTaken(
            f"{error.filename or path}, for the lock of {what}, cannot be made or opened: {error.strerror}; run "
            "`systemd-tmpfiles --create kepd.conf`"
        ) from error
    try:
        yield
    finally:
        # Removed while it is still held: whoever opened it meanwhile sees that its file is gone and opens anew.
        path.unlink(missing_ok=True)
        os.close(lock)


def _place(plane: str, directory: Path, own: Path) -> Path:
    """Where the locks of a plane lie. Raises PlaneTaken where no other user is kept out."""
    with suppress(PermissionError):
        _make(directory, 0o755)
    if not directory.exists():
        _make(own.parent, 0o755)
        _make(own, 0o700)
        _check(own, OTHERS_WRITE)
        return own
    _check(directory, OTHERS_WRITE)
    if plane not in SHARED:
        return directory
    shared = directory / plane
    with suppress(PermissionError):
        _make(shared, 0o700)
    if shared.exists():
        _check(shared, stat.S_IRWXO, is_owner_free=True)
    return shared


def _make(path: Path, mode: int) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=mode)
        path.chmod(mode)


def _check(path: Path, forbidden: int, *, is_owner_free: bool = False) -> None:
    """`is_owner_free`: root chose the owner, since no other user can write to the parent."""
    entry = path.lstat()
    is_ours = is_owner_free or entry.st_uid in (0, os.geteuid())
    if not stat.S_ISDIR(entry.st_mode) or not is_ours or entry.st_mode & forbidden:
        raise PlaneTaken(
            f"{path} is {stat.filemode(entry.st_mode)} of uid {entry.st_uid}, so other users could hold or replace "
            "locks of kepd; remove it and run `systemd-tmpfiles --create kepd.conf`"
        )


def _locked(path: Path, what: str, mode: int) -> int:
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                # The umask of the unit must not keep the other user of a shared lock out.
                os.fchmod(lock, mode)
            take_lock(lock, path, f"runs {what}")
        except BaseException:
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

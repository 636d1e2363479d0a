# SPDX-License-Identifier: Apache-2.0
"""Directories and files that appear with their mode and group, or not at all.

Each is made under a draft name beside its place and gets its name as the last step. So one that is there needs no
further look, whenever kepd died before; and its mode is the one asked for, whatever the umask of the process.
Never: changes what has the name already; `write_file` alone replaces it. Blocking; called in threads. Functions raise
OSError.
"""

import ctypes
import os
import stat
import zlib
from contextlib import suppress
from errno import EEXIST, EINVAL, EPERM
from pathlib import Path

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
ABOVE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
PRIVATE_MODE = 0o700
NO_REPLACE = 1

_LIBC = ctypes.CDLL(None, use_errno=True)


def make_directory(path: Path, mode: int, group: int | None = None, *, above_mode: int | None = None) -> None:
    """There afterwards, with those above it; what is there already stays as it is."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for place in reversed(missing):
        above = os.open(place.parent, ABOVE)
        try:
            if place == missing[0]:
                make_directory_at(above, place.name, mode, group)
            else:
                make_directory_at(above, place.name, mode if above_mode is None else above_mode)
        finally:
            os.close(above)
        if not place.is_dir():
            raise OSError(EEXIST, os.strerror(EEXIST), str(place))


def make_directory_at(above: int, name: str, mode: int, group: int | None = None) -> None:
    """One directory in an opened one. A set-group bit that it inherits stays."""
    draft = _draft_of(name)
    while not _exists(above, name):
        with suppress(FileExistsError):
            # One that is there is of a kepd that died, or of another thread that wants the same.
            os.mkdir(draft, PRIVATE_MODE, dir_fd=above)
        with suppress(FileNotFoundError):
            _give_rights(above, draft, mode, group)
            _take_name(above, draft, name)
    with suppress(OSError):
        os.rmdir(draft, dir_fd=above)


def _give_rights(above: int, draft: str, mode: int, group: int | None) -> None:
    handle = os.open(draft, DIRECTORY, dir_fd=above)
    try:
        if group is not None:
            os.fchown(handle, -1, group)
        wanted = mode | (os.fstat(handle).st_mode & stat.S_ISGID)
        os.fchmod(handle, wanted)
        found = stat.S_IMODE(os.fstat(handle).st_mode)
    finally:
        os.close(handle)
    if found != wanted:
        # The kernel drops the set-group bit without a word where the process may not set it for this group.
        text = (
            f"the kernel changed mode {wanted:04o} to {found:04o}: kepd lacks CAP_FSETID (systemd: drop-in pods.conf)"
        )
        raise OSError(EPERM, text, draft)


def make_file(path: Path, mode: int) -> None:
    above = os.open(path.parent, ABOVE)
    try:
        draft = _draft_of(path.name)
        while not _exists(above, path.name):
            handle = os.open(draft, FILE, mode, dir_fd=above)
            try:
                os.fchmod(handle, mode)
            finally:
                os.close(handle)
            with suppress(FileNotFoundError):
                _take_name(above, draft, path.name)
        with suppress(OSError):
            os.unlink(draft, dir_fd=above)
    finally:
        os.close(above)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """A file with this content; one that has it stays. What else has the name, such as a link, gives way unread."""
    above = os.open(path.parent, ABOVE)
    try:
        if _has(above, path.name, content, mode):
            return
        draft = _draft_of(path.name)
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=above)
        with os.fdopen(os.open(draft, FILE | os.O_EXCL, 0, dir_fd=above), "wb") as out:
            out.write(content)
            os.fchmod(out.fileno(), mode)
        os.rename(draft, path.name, src_dir_fd=above, dst_dir_fd=above)
    finally:
        os.close(above)


def _has(above: int, name: str, content: bytes, mode: int) -> bool:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        is_plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and stat.S_IMODE(found.st_mode) == mode
        return is_plain and file.read(len(content) + 1) == content


def _exists(above: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _draft_of(name: str) -> str:
    """The same at each try, so that a later kepd goes on with it; short, for names have a longest length."""
    return f".kepd-{zlib.crc32(os.fsencode(name)):08x}"


def _take_name(above: int, draft: str, name: str) -> None:
    """What has the name already stays. Raises FileNotFoundError where another thread was faster with the draft."""
    if _LIBC.renameat2(above, os.fsencode(draft), above, os.fsencode(name), NO_REPLACE) == 0:
        return
    number = ctypes.get_errno()
    if number == EINVAL:
        # File systems such as NFS know no such rename.
        if not _exists(above, name):
            os.rename(draft, name, src_dir_fd=above, dst_dir_fd=above)
    elif number != EEXIST:
        raise OSError(number, os.strerror(number), name)

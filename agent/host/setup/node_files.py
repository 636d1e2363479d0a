# SPDX-License-Identifier: Apache-2.0
"""Files and directories of a node below a root: looked at and written without following a symbolic link. Blocking.

A file or directory appears whole, with its mode and group, or not at all: it is made under another name and renamed.
"""

import errno
import grp
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from agent.host.setup.plan import ABSENT, MakeFolder, SetupFindings, WriteFile

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
ANY_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Our own are a tenth of it; of a longer one the beginning shows that it differs.
MOST_BYTES = 65536
PARENT_MODE = 0o755


class InTheWay(OSError):
    """Something is where a directory should be; the text says what and where."""


def group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise OSError(
            errno.ENOENT, f"there is no group {name}; expected: systemd-sysusers kepd.conf makes it"
        ) from None


class NodeFiles:
    def __init__(self, root: Path = Path("/"), group_of: Callable[[str], int] = group_id) -> None:
        self._root = root
        self._group_of = group_of

    def found(self, path: str) -> SetupFindings:
        try:
            with self._folder_of(path) as (folder, name):
                return _found_in(folder, name, path)
        except FileNotFoundError:
            return ABSENT
        except InTheWay as error:
            return SetupFindings("obstacle", what=str(error))
        except OSError as error:
            return SetupFindings("obstacle", what=f"{path} cannot be looked at: {error.strerror}")

    def names(self, path: str) -> tuple[str, ...]:
        """What a directory holds; nothing if it is none."""
        with suppress(OSError), self._folder_of(f"{path}/x") as (folder, _), os.scandir(folder) as listed:
            return tuple(sorted(one.name for one in listed))
        return ()

    def make_folder(self, step: MakeFolder) -> None:
        with self._folder_of(step.path, is_making=True) as (folder, name):
            draft = _draft(folder, name)
            os.mkdir(draft, 0o700, dir_fd=folder)
            handle = os.open(draft, FOLDER, dir_fd=folder)
            try:
                self._settle(handle, step)
            finally:
                os.close(handle)
            _rename(folder, draft, name)

    def write(self, step: WriteFile) -> None:
        """Only over what the plan has seen."""
        if self.found(step.path) != step.before:
            raise OSError(errno.EBUSY, "was changed since setup looked; expected: run kepd setup again", step.path)
        with self._folder_of(step.path, is_making=True) as (folder, name):
            draft = _draft(folder, name)
            with os.fdopen(os.open(draft, NEW_FILE, 0o600, dir_fd=folder), "wb") as target:
                target.write(step.content)
                target.flush()
                self._settle(target.fileno(), step)
            _rename(folder, draft, name)

    def _settle(self, handle: int, step: MakeFolder | WriteFile) -> None:
        os.fchown(handle, -1, self._group_of(step.group))
        os.fchmod(handle, step.mode)
        os.fsync(handle)

    @contextmanager
    def _folder_of(self, path: str, *, is_making: bool = False) -> Iterator[tuple[int, str]]:
        """The open directory of a path, step by step from the root, and the path's last name."""
        *above, name = PurePosixPath(path).parts[1:]
        handle = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for depth, part in enumerate(above, 1):
                place = "/" + "/".join(above[:depth])
                if is_making:
                    _make_parent(handle, part)
                deeper = _opened(handle, part, place)
                os.close(handle)
                handle = deeper
            yield handle, name
        finally:
            os.close(handle)


def _opened(folder: int, name: str, place: str) -> int:
    try:
        return os.open(name, FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        is_link = stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        raise InTheWay(f"{place} is {'a symbolic link' if is_link else 'no directory'}") from None


def _make_parent(folder: int, name: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, PARENT_MODE, dir_fd=folder)


def _found_in(folder: int, name: str, path: str) -> SetupFindings:
    mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode):
        return SetupFindings("folder")
    if not stat.S_ISREG(mode):
        return SetupFindings(
            "obstacle", what=f"{path} is {'a symbolic link' if stat.S_ISLNK(mode) else 'no regular file'}"
        )
    with os.fdopen(os.open(name, ANY_FILE, dir_fd=folder), "rb") as source:
        return SetupFindings("file", source.read(MOST_BYTES))


def _draft(folder: int, name: str) -> str:
    """A name that no reader takes for its own; what an interrupted setup left there goes."""
    draft = f".{name}.kepd-setup"
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(draft, dir_fd=folder, follow_symlinks=False).st_mode):
            os.rmdir(draft, dir_fd=folder)
        else:
            os.unlink(draft, dir_fd=folder)
    return draft


def _rename(folder: int, draft: str, name: str) -> None:
    os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)

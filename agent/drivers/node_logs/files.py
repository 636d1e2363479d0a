# SPDX-License-Identifier: Apache-2.0
"""Log files below a directory: opened without leaving it, whatever others put there meanwhile.

Blocking; called in threads. A refusal never says why, for the reason would tell what there is.
"""

import gzip
import os
import pwd
import re
import stat
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import ENOSYS
from grp import getgrnam
from pathlib import Path
from typing import BinaryIO

from agent.model.nodes.log import ListedFile, NoSuchLog
from agent.model.openat2 import BENEATH, NO_MAGIC, open_within

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
MOST_PATH_BYTES = 4096
CHUNK_BYTES = 64 << 10
HEAD_BYTES = 4 << 10
# Those of pods have a command of their own, the journal a program, and the others are no text or are private.
LEFT_OUT = frozenset({"pods", "containers", "journal", "private", "audit"})
FOR_ROOT = frozenset({"audit"})
NO_TEXT = frozenset({"btmp", "wtmp", "lastlog", "faillog"})
MOST_LISTED, MOST_VISITED, DEEPEST = 1000, 10_000, 3
MOST_ROTATED = 20
PACKED = ".gz"
NEWLINE = re.compile(rb"\n")


class LogFile:
    """An open file, whose content is unpacked where it is packed. `most_bytes` is how much is unpacked."""

    def __init__(self, handle: int, name: str, most_bytes: int) -> None:
        self.name = name
        self.is_packed = name.endswith(PACKED)
        self._handle: BinaryIO = os.fdopen(handle, "rb", 0)
        self._most_bytes = most_bytes
        self._content: BinaryIO | gzip.GzipFile = (
            gzip.GzipFile(fileobj=self._handle) if self.is_packed else self._handle
        )

    def close(self) -> None:
        self._content.close()
        self._handle.close()

    @property
    def identity(self) -> tuple[int, int]:
        facts = os.fstat(self._handle.fileno())
        return facts.st_dev, facts.st_ino

    def size(self) -> int:
        return os.fstat(self._handle.fileno()).st_size

    def place(self) -> int:
        return self._content.tell()

    def rewind(self, place: int = 0) -> None:
        self._content.seek(place)

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        """Nothing at its end; of a packed one also when it is broken, or when enough was unpacked."""
        if not self.is_packed:
            return self._content.read(size) or b""
        if self._content.tell() >= self._most_bytes:
            return b""
        with suppress(OSError, EOFError, zlib.error):
            return self._content.read(size)
        return b""

    def is_binary(self) -> bool:
        head = self.read(HEAD_BYTES)
        self.rewind()
        return b"\0" in head

    def begin_of_last(self, lines: int) -> tuple[int, int]:
        """Go to where the last lines begin. How many lines there are, at most so many, and that place."""
        return self._count(lines) if self.is_packed else self._search(lines)

    def _count(self, lines: int) -> tuple[int, int]:
        """What is packed can only be read from its beginning."""
        begins, end = deque([0], maxlen=lines + 1), 0
        self.rewind()
        while chunk := self.read():
            begins.extend(end + found.end() for found in NEWLINE.finditer(chunk))
            end += len(chunk)
        # The last one has nothing behind it where the file ends with a whole line.
        known = [place for place in begins if place < end][-lines:] if lines else []
        place = known[0] if known else end
        self.rewind(place)
        return len(known), place

    def _search(self, lines: int) -> tuple[int, int]:
        end = self.size()
        found, place = 0, end
        while place > 0 and lines:
            size = min(CHUNK_BYTES, place)
            self.rewind(place - size)
            chunk = self.read(size)
            at = len(chunk)
            if place == end and chunk.endswith(b"\n"):
                at -= 1
            while (at := chunk.rfind(b"\n", 0, at)) >= 0:
                found += 1
                if found == lines:
                    self.rewind(place - size + at + 1)
                    return lines, place - size + at + 1
            place -= size
        self.rewind(0 if lines else end)
        return found + (1 if end and lines else 0), 0 if lines else end


class LogFiles:
    """Below the directories, in this order. `is_root`: who reads may see what only root may."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = tuple(directories)

    def open(self, name: str, *, is_root: bool, most_bytes: int) -> LogFile:
        """Raises NoSuchLog."""
        with suppress(OSError, ValueError, UnicodeError):
            for directory, inner in self._places(name):
                handle = _opened(directory, inner, is_root=is_root)
                if handle is not None:
                    return LogFile(handle, inner, most_bytes)
        raise NoSuchLog(name)

    def older(self, name: str) -> list[str]:
        """Names of its rotated files, the oldest first. Which of them may be seen is said when they are opened."""
        for directory, inner in self._places(name):
            folder, base = os.path.split(inner)
            with suppress(OSError, ValueError):
                handle = _open_below(directory, folder or ".", FOLDER)
                try:
                    with os.scandir(handle) as entries:
                        found = [number for one in entries if (number := _number(one.name, base))]
                finally:
                    os.close(handle)
                return [str(Path(folder, one)) for _, one in sorted(found, reverse=True)[-MOST_ROTATED:]]
        return []

    def listed(self, *, is_root: bool) -> list[ListedFile]:
        """Newest first within the bounds of what is looked at."""
        found: dict[str, ListedFile] = {}
        for directory in self._directories:
            for one in _walk(directory, is_root=is_root):
                found.setdefault(one.name, one)
        return sorted(found.values(), key=lambda one: one.name)

    def _places(self, name: str) -> Iterator[tuple[str, str]]:
        """Of a path from the root only what lies below one of the directories, as far as its words go."""
        if not name or name.endswith("/") or "\0" in name or len(os.fsencode(name)) > MOST_PATH_BYTES:
            return
        for directory in self._directories:
            if not name.startswith("/"):
                yield directory, name
            elif name.startswith(f"{directory.rstrip('/')}/"):
                yield directory, name[len(directory.rstrip("/")) :].lstrip("/")


def _opened(directory: str, name: str, *, is_root: bool) -> int | None:
    with suppress(OSError):
        handle = _open_below(directory, name, READ)
        try:
            if _may_see(handle, directory, is_root=is_root):
                return handle
        except OSError:
            os.close(handle)
            raise
        os.close(handle)
    return None


def _open_below(directory: str, name: str, flags: int) -> int:
    top = os.open(directory, DIRECTORY)
    try:
        return open_within(top, name, flags, BENEATH | NO_MAGIC)
    except OSError as error:
        if error.errno != ENOSYS:
            raise
        return _step_by_step(top, name, flags)
    finally:
        os.close(top)


def _step_by_step(top: int, name: str, flags: int) -> int:
    """Where the kernel, or the filter of our unit, has no openat2: no link at all, and no way up."""
    words = [word for word in name.split("/") if word not in ("", ".")]
    if ".." in words or name.startswith("/"):
        raise PermissionError(name)
    handle = os.dup(top)
    for word in words[:-1]:
        above = handle
        try:
            handle = os.open(word, DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        finally:
            os.close(above)
    try:
        return os.open(words[-1] if words else ".", flags | os.O_NOFOLLOW, dir_fd=handle)
    finally:
        os.close(handle)


def _may_see(handle: int, directory: str, *, is_root: bool) -> bool:
    """By what is open, not by its name."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1 or facts.st_uid not in _owners():
        return False
    real = Path(f"/proc/self/fd/{handle}").readlink()
    top = Path(os.path.realpath(directory))
    if not real.is_relative_to(top) or _is_left_out(real.relative_to(top), is_root=is_root):
        return False
    if is_root:
        return True
    folders = [one for one in real.parents if one == top or top in one.parents]
    return _is_open_to_group(facts, stat.S_IROTH, stat.S_IRGRP) and all(
        _is_open_to_group(one.stat(), stat.S_IXOTH, stat.S_IXGRP) for one in folders
    )


def _is_open_to_group(facts: os.stat_result, others: int, group: int) -> bool:
    return bool(facts.st_mode & others) or (bool(facts.st_mode & group) and facts.st_gid == _adm())


def _is_left_out(inner: Path, *, is_root: bool) -> bool:
    first = inner.parts[0] if inner.parts else ""
    closed = LEFT_OUT - FOR_ROOT if is_root else LEFT_OUT
    return (first in closed and len(inner.parts) > 1) or inner.name.split(".")[0].split("-")[0] in NO_TEXT


def _number(name: str, base: str) -> tuple[int, str] | None:
    """`syslog.2.gz` of `syslog` is 2; a date counts from the newest. None if it is another file."""
    rest = name.removeprefix(base).removesuffix(PACKED)
    if not name.startswith(base) or name == base or rest[:1] not in (".", "-") or not rest[1:].isdecimal():
        return None
    number = int(rest[1:]) if len(rest) <= 1 + 18 else 0
    return (-number, name) if rest[0] == "-" else (number, name)


def _walk(directory: str, *, is_root: bool) -> Iterator[ListedFile]:
    visited = shown = 0
    with suppress(OSError):
        for path, folders, names, handle in os.fwalk(directory, follow_symlinks=False):
            inner = Path(path).relative_to(directory)
            depth = len(inner.parts)
            folders[:] = sorted(one for one in folders if depth < DEEPEST and (depth or one not in LEFT_OUT))
            facts = os.fstat(handle)
            if not is_root and not _is_open_to_group(facts, stat.S_IXOTH, stat.S_IXGRP):
                folders.clear()
                continue
            for name in sorted(names):
                visited += 1
                if visited > MOST_VISITED or shown >= MOST_LISTED:
                    return
                found = _seen(handle, name, inner / name, is_root=is_root)
                if found is not None:
                    shown += 1
                    yield found


def _seen(handle: int, name: str, inner: Path, *, is_root: bool) -> ListedFile | None:
    with suppress(OSError):
        facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
        is_fit = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1 and facts.st_uid in _owners()
        may = is_root or _is_open_to_group(facts, stat.S_IROTH, stat.S_IRGRP)
        if is_fit and may and not _is_left_out(inner, is_root=is_root):
            return ListedFile(str(inner), facts.st_size, facts.st_mtime)
    return None


def _owners() -> frozenset[int]:
    """Root, who writes for the system, and the daemon of syslog."""
    with suppress(KeyError):
        return frozenset({0, os.geteuid(), pwd.getpwnam("syslog").pw_uid})
    return frozenset({0, os.geteuid()})


def _adm() -> int:
    with suppress(KeyError):
        return getgrnam("adm").gr_gid
    return -1

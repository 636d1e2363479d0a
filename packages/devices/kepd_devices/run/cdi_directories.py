# SPDX-License-Identifier: Apache-2.0
"""The CDI files of this node, and the directory into which kepd writes its own.

Only regular files count that root owns and nobody else may write, opened by the descriptor of their directory and never
through a link: kepd is root, and does what they say. A file that did not change is not read again.
"""

import asyncio
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from agent.model.finding import Finding
from kepd_devices.cdi.merging import Catalogue, CdiFile, HostNode
from kepd_devices.cdi.spec import LONGEST_FILE_BYTES, CdiSpec, parse_spec

log = structlog.get_logger(plane="devices")

SUFFIXES = (".json", ".yaml")
MOST_FILES = 1000
FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
Stamp = tuple[int, int, int, int]


class _Known(msgspec.Struct, frozen=True):
    stamp: Stamp
    spec: CdiSpec | None
    findings: tuple[Finding, ...]


class CdiDirectories:
    """Later directories hide what earlier ones have. `owner` is who files have to belong to."""

    def __init__(self, directories: Sequence[Path], output: Path, owner: int = 0) -> None:
        self._directories = directories
        self._output = output
        self._owner = owner
        self._known: dict[str, _Known] = {}
        self.findings: tuple[Finding, ...] = ()

    async def catalogue(self) -> Catalogue:
        return await asyncio.to_thread(self.look)

    def look(self) -> Catalogue:
        findings: list[Finding] = []
        files: list[CdiFile] = []
        seen: dict[str, _Known] = {}
        for number, directory in enumerate(self._directories):
            for path, known in self._read(directory, findings):
                seen[path] = known
                findings += known.findings
                if known.spec is not None:
                    files.append(CdiFile(path, number, known.spec))
        self._known = seen
        found = Catalogue(files, [str(one) for one in self._directories])
        self._report((*findings, *found.findings()))
        return found

    def _report(self, findings: tuple[Finding, ...]) -> None:
        for one in findings:
            if one not in self.findings:
                log.warning("cdi_file_refused", finding=str(one))
        self.findings = findings

    def _read(self, directory: Path, findings: list[Finding]) -> Iterator[tuple[str, _Known]]:
        try:
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            findings.append(Finding(str(directory), "", f"cannot be read: {error.strerror}"))
            return
        try:
            everything = os.listdir(handle)  # noqa: PTH208  # by descriptor, so that no link is followed
            names = sorted(one for one in everything if one.endswith(SUFFIXES) and not one.startswith("."))
            if len(names) > MOST_FILES:
                findings.append(Finding(str(directory), "", f"has {len(names)} files; the first {MOST_FILES} are read"))
            for name in names[:MOST_FILES]:
                path = f"{directory}/{name}"
                with suppress(FileNotFoundError):  # gone since it was listed
                    yield path, self._file(handle, name, path)
        finally:
            os.close(handle)

    def _file(self, directory: int, name: str, path: str) -> _Known:
        try:
            handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            text = "is a link; expected a file of this directory" if error.errno == 40 else f"is unreadable: {error}"
            return _Known((0, 0, 0, 0), None, (Finding(path, "", text),))
        try:
            facts = os.fstat(handle)
            stamp = (facts.st_ino, facts.st_mtime_ns, facts.st_size, facts.st_mode << 32 | facts.st_uid)
            known = self._known.get(path)
            if known is not None and known.stamp == stamp:
                return known
            if why := self._distrust(facts):
                return _Known(stamp, None, (Finding(path, "", why),))
            with os.fdopen(os.dup(handle), "rb") as file:
                spec, findings = parse_spec(path, file.read(LONGEST_FILE_BYTES + 1))
            return _Known(stamp, spec, findings)
        finally:
            os.close(handle)

    def _distrust(self, facts: os.stat_result) -> str:
        if not stat.S_ISREG(facts.st_mode):
            return "is no regular file"
        if facts.st_uid != self._owner:
            return f"belongs to user {facts.st_uid}; expected root, whose rights what it says is done with"
        return "can be written by others than root; use chmod go-w" if facts.st_mode & WRITABLE else ""

    async def nodes(self, paths: Iterable[str]) -> Mapping[str, HostNode | None]:
        return await asyncio.to_thread(lambda: {path: _node(path) for path in paths})

    async def write(self, name: str, content: bytes) -> None:
        await asyncio.to_thread(self._write, name, content)

    def _write(self, name: str, content: bytes) -> None:
        """There whole or not at all; runtimes watch the directory, and pass over names that begin with a dot."""
        self._output.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        draft = self._output / f".{name}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(handle, "wb") as out:
            os.fchmod(handle, FILE_MODE)
            out.write(content)
            out.flush()
            os.fsync(handle)
        draft.replace(self._output / name)
        self._sync()

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._remove, name)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            (self._output / name).unlink()
            self._sync()

    def _sync(self) -> None:
        handle = os.open(self._output, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    async def names(self) -> list[str]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self._output))  # noqa: PTH208  # names are all that is asked for
        except FileNotFoundError:
            return []


def _node(path: str) -> HostNode | None:
    try:
        facts = os.stat(path)  # noqa: PTH116  # a link below /dev leads to its device, for the runtime too
    except OSError:
        return None
    kinds = ((stat.S_ISCHR, "c"), (stat.S_ISBLK, "b"), (stat.S_ISFIFO, "p"))
    kind = next((word for test, word in kinds if test(facts.st_mode)), "")
    return HostNode(
        type=kind,
        major=os.major(facts.st_rdev),
        minor=os.minor(facts.st_rdev),
        mode=stat.S_IMODE(facts.st_mode),
        uid=facts.st_uid,
        gid=facts.st_gid,
    )

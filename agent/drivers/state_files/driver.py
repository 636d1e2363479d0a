# SPDX-License-Identifier: Apache-2.0
"""A directory of small files that are there whole or not at all, also after a crash or a power cut.

Writes are atomic with fsync, in threads of their own so that the event loop never waits for a disk; what need not be
durable waits for none either (FP-14). Calls that change one name take effect in their order. Modes are 0600 and 0700.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from agent.model.image_store import Filesystem

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
ASIDE = ".aside"

Result = TypeVar("Result")


class StateFiles:
    """Names are relative, such as `pulled/abc.json`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"state-{directory.name}")
        self._quick = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"quick-{directory.name}")
        self._turns: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        """After the last call; waits for writes that have begun."""
        self._executor.shutdown()
        self._quick.shutdown()

    async def read(self, name: str) -> bytes | None:
        return await self._in_thread(partial(_read, self._path(name)))

    async def read_folder(self, folder: str) -> dict[str, bytes]:
        """All files of a folder by their names in it; leftovers of writes and what was kept aside are left out."""
        return await self._in_thread(partial(_read_folder, self._path(folder)))

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        """Replace or make a file. When this returns, it is on the disk. What is not durable outlives this process but
        not a power cut, and costs no wait for a disk."""
        path = self._path(name)
        executor = self._executor if is_durable else self._quick
        await self._in_turn(path, partial(write_file, path, content, is_durable=is_durable), executor)

    async def remove(self, name: str) -> None:
        """Delete a file; one that is gone is fine."""
        path = self._path(name)
        await self._in_turn(path, partial(path.unlink, missing_ok=True), self._quick)

    async def set_aside(self, name: str) -> str:
        """Take a file out of the way without deleting it. Answers with where it is now."""
        return await self._in_thread(partial(_set_aside, self._path(name)))

    async def measure(self, path: str) -> Filesystem:
        """Size and space of the file system that holds a path. Raises OSError."""
        return await self._in_thread(partial(measure_filesystem, path))

    def _path(self, name: str) -> Path:
        path = self.directory / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"{name!r} is not a name inside {self.directory}")
        return path

    async def _in_turn(self, path: Path, call: Callable[[], None], executor: ThreadPoolExecutor) -> None:
        """The turn ends with the call, also where its caller gave up: a thread cannot be stopped in the middle."""
        turn, loop = self._turns.setdefault(path, asyncio.Lock()), asyncio.get_running_loop()
        await turn.acquire()
        running = executor.submit(call)
        running.add_done_callback(lambda _: _release(turn, loop))
        await asyncio.wrap_future(running)

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _release(turn: asyncio.Lock, loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # a loop that has ended needs no turns
        loop.call_soon_threadsafe(turn.release)


def measure_filesystem(path: str) -> Filesystem:
    """What statvfs says, counting only space that users without privileges could take."""
    figures = os.statvfs(path)
    return Filesystem(
        capacity_bytes=figures.f_blocks * figures.f_frsize,
        available_bytes=figures.f_bavail * figures.f_frsize,
        inodes=figures.f_files,
        free_inodes=figures.f_favail,
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _read_folder(path: Path) -> dict[str, bytes]:
    found = {}
    with suppress(FileNotFoundError):
        for file in sorted(path.iterdir()):
            if file.is_file() and not file.name.startswith(".") and file.suffix != ASIDE:
                found[file.name] = file.read_bytes()
    return found


def write_file(path: Path, content: bytes, *, is_durable: bool = True) -> None:
    handle, draft = _draft_beside(path)
    try:
        os.fchmod(handle, FILE_MODE)
        with os.fdopen(handle, "wb") as out:
            out.write(content)
            out.flush()
            if is_durable:
                os.fsync(out.fileno())
        Path(draft).replace(path)
        if is_durable:
            _sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            Path(draft).unlink()
        raise


def _draft_beside(path: Path) -> tuple[int, str]:
    """The directory is nearly always there, so that looking for it first would cost more than it finds."""
    try:
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        return tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _set_aside(path: Path) -> str:
    target = path.with_name(f"{path.name}.{int(time.time())}{ASIDE}")
    path.rename(target)
    return str(target)

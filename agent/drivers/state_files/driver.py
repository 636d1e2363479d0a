# SPDX-License-Identifier: Apache-2.0
"""A directory of small files that are there whole or not at all, also after a crash or a power cut.

Writes are atomic with fsync, in threads of their own so that the event loop never waits for a disk; what need not be
durable waits for none either. Durable writes that wait at the same time go to the disk together: all contents,
then all names, with one fsync per directory. Calls that change one name take effect in their order. Modes are 0600 and
0700.
"""

import asyncio
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec

from agent.drivers.atomic_files import FILE_MODE, draft_beside, name_file, sync_directory, write_file
from agent.model.images.store import Filesystem

ASIDE = ".aside"
DRAFT = re.compile(r"\..+\.[a-z0-9_]{8}\Z")
# Each has an open file until its content is on the disk.
MOST_TOGETHER = 100

Result = TypeVar("Result")


class _Write(msgspec.Struct, eq=False):
    """A durable write on its way; `draft` is its file until it gets its name."""

    path: Path
    content: bytes
    done: Future[None]
    draft: str = ""
    handle: int = -1


class StateFiles:
    """Names are relative, such as `pulled/abc.json`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"state-{directory.name}")
        self._quick = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"quick-{directory.name}")
        self._waiting: deque[_Write] = deque()
        self._turns: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._began_s = time.time()
        self._executor.submit(_sweep, directory, self._began_s)

    def close(self) -> None:
        """After the last call; waits for writes that have begun."""
        self._executor.shutdown()
        self._quick.shutdown()

    async def read(self, name: str) -> bytes | None:
        return await self._in_thread(partial(_read, self._path(name)))

    async def read_folder(self, folder: str) -> dict[str, bytes]:
        """All files of a folder by their names in it; leftovers of writes and what was kept aside are left out."""
        return await self._in_thread(partial(_read_folder, self._path(folder), self._began_s))

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None:
        """Replace or make a file. When this returns, it is on the disk. What is not durable outlives this process but
        not a power cut, and costs no wait for a disk."""
        path = self._path(name)
        if is_durable:
            await self._in_turn(path, partial(self._commit, path, content))
        else:
            await self._in_turn(path, partial(self._quick.submit, write_file, path, content, is_durable=False))

    async def remove(self, name: str) -> None:
        """Delete a file; one that is gone is fine."""
        path = self._path(name)
        await self._in_turn(path, partial(self._quick.submit, path.unlink, missing_ok=True))

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

    async def _in_turn(self, path: Path, begin: Callable[[], Future[None]]) -> None:
        """The turn ends with the call, also where its caller gave up: a thread cannot be stopped in the middle."""
        turn = self._turns.setdefault(path, asyncio.Lock())
        await turn.acquire()
        running = asyncio.wrap_future(begin())
        running.add_done_callback(partial(_end_turn, turn))
        await asyncio.shield(running)

    def _commit(self, path: Path, content: bytes) -> Future[None]:
        """Whoever gets the thread first takes along all that wait then."""
        write = _Write(path, content, Future())
        self._waiting.append(write)
        self._executor.submit(self._write_waiting)
        return write.done

    def _write_waiting(self) -> None:
        _write_together([self._waiting.popleft() for _ in range(min(len(self._waiting), MOST_TOGETHER))])

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _end_turn(turn: asyncio.Lock, ended: asyncio.Future[None]) -> None:
    turn.release()
    if not ended.cancelled():
        # Who gave up does not ask any more.
        ended.exception()


def measure_filesystem(path: str) -> Filesystem:
    """What statvfs says, counting only space that users without privileges could take."""
    figures = os.statvfs(path)
    return Filesystem(
        capacity_bytes=figures.f_blocks * figures.f_frsize,
        available_bytes=figures.f_bavail * figures.f_frsize,
        inodes=figures.f_files,
        free_inodes=figures.f_favail,
        device_number=Path(path).stat().st_dev,
        is_read_only=bool(figures.f_flag & os.ST_RDONLY),
    )


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def sweep_state(state: Path) -> None:
    """At the start of a daemon, where it and its planes write. What pods have below that is not looked at."""
    for directory in (state, *state.glob("*")):
        _sweep(directory, time.time())


def _sweep(directory: Path, before_s: float) -> None:
    """Drafts of processes that died; this one's own are younger than it is."""
    with suppress(OSError):
        for file in directory.iterdir():
            if DRAFT.match(file.name) and stat.S_ISREG((facts := file.lstat()).st_mode) and facts.st_mtime < before_s:
                file.unlink()


def _read_folder(path: Path, before_s: float) -> dict[str, bytes]:
    found = {}
    _sweep(path, before_s)
    with suppress(FileNotFoundError):
        for file in sorted(path.iterdir()):
            if file.is_file() and not file.name.startswith(".") and file.suffix != ASIDE:
                found[file.name] = file.read_bytes()
    return found


def _write_together(writes: Sequence[_Write]) -> None:
    """Durable, each for itself: a write that fails fails alone. The first fsync takes the others' inodes along, and one
    per directory their names."""
    steps: tuple[Callable[[_Write], None], ...] = (_write_draft, _sync_draft, _rename_draft)
    for step in steps:
        writes = [one for one in writes if _is_done(one, partial(step, one))]
    for directory in {one.path.parent for one in writes}:
        inside = [one for one in writes if one.path.parent == directory]
        try:
            sync_directory(directory)
        except OSError as error:
            for one in inside:
                one.done.set_exception(error)
        else:
            for one in inside:
                one.done.set_result(None)


def _is_done(write: _Write, step: Callable[[], None]) -> bool:
    try:
        step()
    except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this write
        name_file(error, write.path)
        if write.handle >= 0:
            os.close(write.handle)
        with suppress(OSError):
            Path(write.draft).unlink()
        write.done.set_exception(error)
        return False
    return True


def _write_draft(write: _Write) -> None:
    write.handle, write.draft = draft_beside(write.path)
    os.fchmod(write.handle, FILE_MODE)
    with os.fdopen(write.handle, "wb", closefd=False) as out:
        out.write(write.content)


def _sync_draft(write: _Write) -> None:
    os.fsync(write.handle)
    handle, write.handle = write.handle, -1
    os.close(handle)


def _rename_draft(write: _Write) -> None:
    Path(write.draft).replace(write.path)


def _set_aside(path: Path) -> str:
    target = path.with_name(f"{path.name}.{int(time.time())}{ASIDE}")
    path.rename(target)
    return str(target)

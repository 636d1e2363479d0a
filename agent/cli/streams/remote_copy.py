# SPDX-License-Identifier: Apache-2.0
"""Files between here and a container: `tar` there, an archive on the streams of one command, and our end of it here.

Nothing is kept in between: an archive passes through a pipe, so that its size costs neither memory nor disk.
"""

import asyncio
import io
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp

from agent.cli.session import CommandFailed
from agent.cli.streams.archives import unpack
from agent.cli.streams.remote_streams import CLOSE, STATUS, STDERR, STDIN, STDOUT, V4, V5, exit_code_of, opened_socket

READ_BYTES = 64 << 10
MOST_WORDS_BYTES = 4 << 10


async def fetch(url: str, root: str, target: Path, left_out: Callable[[str], object]) -> None:
    """Unpack what the command at `url` writes."""
    read_end, write_end = os.pipe()

    def unpacked() -> None:
        with os.fdopen(read_end, "rb") as source:
            for reason in unpack(source, root, target):
                left_out(reason)

    work = asyncio.create_task(asyncio.to_thread(unpacked))
    try:
        code, words, _ = await _run(url, None, lambda data: _write_all(write_end, data))
    finally:
        os.close(write_end)
        await asyncio.wait([work])
    failed = work.exception()
    # What the command says of itself is nearer to the reason than what became of its archive.
    if code:
        raise CommandFailed(f"tar in the container ended with exit code {code}: {words or 'without a message'}")
    if failed is not None:
        raise failed


class Planned(tarfile.TarFile):
    """Writes nothing, and remembers what would be written: the entries, and where the content of each is."""

    def __init__(self, source: Path, name: str) -> None:
        super().__init__(fileobj=io.BytesIO(), mode="w")
        self.entries: list[tuple[tarfile.TarInfo, str]] = []
        self.add(source, arcname=name, filter=_plain)

    def addfile(self, tarinfo: tarfile.TarInfo, fileobj: Any = None) -> None:  # noqa: ANN401  # whatever has a name
        self.entries.append((tarinfo, fileobj.name if fileobj is not None else ""))

    @property
    def size(self) -> int:
        """Of the whole archive, whatever becomes of the files: an entry has the size that it was planned with."""
        blocks = sum(
            len(entry.tobuf(tarfile.DEFAULT_FORMAT)) + _rounded(entry.size if content else 0, tarfile.BLOCKSIZE)
            for entry, content in self.entries
        )
        return _rounded(blocks + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE)

    def write(self, out: BinaryIO) -> None:
        with tarfile.open(fileobj=out, mode="w|") as archive:
            for entry, content in self.entries:
                if content:
                    with Path(content).open("rb") as data:
                        archive.addfile(entry, data)
                else:
                    archive.addfile(entry)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


async def send(url: str, plan: Planned) -> None:
    """The archive of `plan`, for the command at `url` to read."""
    read_end, write_end = os.pipe()

    def packed() -> None:
        with suppress(BrokenPipeError), os.fdopen(write_end, "wb") as out:
            plan.write(out)

    work = asyncio.create_task(asyncio.to_thread(packed))
    try:
        code, words, _ = await _run(url, read_end, None, plan.size)
    finally:
        os.close(read_end)
        await asyncio.wait([work])
    failed = work.exception()
    if failed is not None:
        raise failed
    if code:
        raise CommandFailed(f"tar in the container ended with exit code {code}: {words or 'without a message'}")


async def exit_code(url: str) -> tuple[int, bool]:
    """The exit code of a command, and whether this runtime notices the end of its input."""
    code, _, protocol = await _run(url, None, None)
    return code, protocol == V5


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The container need not know who owns what here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def _run(
    url: str, feed: int | None, take: Callable[[bytes], bool] | None, size: int = 0
) -> tuple[int, str, str | None]:
    """The exit code, what it wrote to its standard error, and the protocol."""
    async with aiohttp.ClientSession() as session:
        opened = await opened_socket(session, url, V5, V4)
        feeding = asyncio.create_task(_feed(opened, feed, size)) if feed is not None else None
        code, words = 0, b""
        try:
            async for message in opened:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel == STDOUT and take is not None and not await asyncio.to_thread(take, data):
                    # Nobody wants the rest.
                    break
                if channel == STDERR:
                    words = (words + data)[:MOST_WORDS_BYTES]
                elif channel == STATUS:
                    code = exit_code_of(data)
        finally:
            if feeding is not None:
                feeding.cancel()
            await opened.close()
    return code, " ".join(words.decode(errors="replace").split()), opened.protocol


async def _feed(opened: aiohttp.ClientWebSocketResponse, source: int, size: int) -> None:
    while data := await asyncio.to_thread(os.read, source, READ_BYTES):
        size -= len(data)
        await opened.send_bytes(bytes((STDIN,)) + data)
    if opened.protocol == V5:
        await opened.send_bytes(bytes((CLOSE, STDIN)))
    elif size > 0:
        # The far side would wait for the rest for ever.
        await opened.close()


def _write_all(descriptor: int, data: bytes) -> bool:
    """False once nobody reads."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        return False
    return True

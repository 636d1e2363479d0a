# SPDX-License-Identifier: Apache-2.0
"""Files between here and a container: `tar` there, an archive on the streams of one command, and our end of it here.

Nothing is kept in between: an archive passes through a pipe, so that its size costs neither memory nor disk.
"""

import asyncio
import os
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import aiohttp

from agent.cli.archives import unpack
from agent.cli.remote_streams import CLOSE, STATUS, STDERR, STDIN, STDOUT, V4, V5, exit_code_of, opened_socket
from agent.cli.session import CommandFailed

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
        code, words = await _run(url, None, lambda data: _write_all(write_end, data))
    finally:
        os.close(write_end)
        await asyncio.wait([work])
    failed = work.exception()
    # What the command says of itself is nearer to the reason than what became of its archive.
    if code:
        raise CommandFailed(f"tar in the container ended with exit code {code}: {words or 'it said nothing'}")
    if failed is not None:
        raise failed


async def send(url: str, source: Path, name: str) -> None:
    """Pack `source` under another name, for the command at `url` to read."""
    read_end, write_end = os.pipe()

    def packed() -> None:
        with (
            suppress(BrokenPipeError),
            os.fdopen(write_end, "wb") as out,
            tarfile.open(fileobj=out, mode="w|") as archive,
        ):
            archive.add(source, arcname=name, filter=_plain)

    work = asyncio.create_task(asyncio.to_thread(packed))
    try:
        code, words = await _run(url, read_end, None)
    finally:
        os.close(read_end)
        await asyncio.wait([work])
    failed = work.exception()
    if failed is not None:
        raise failed
    if code:
        raise CommandFailed(f"tar in the container ended with exit code {code}: {words or 'it said nothing'}")


async def exit_code(url: str) -> int:
    """Of a command that is asked for nothing else."""
    return (await _run(url, None, None))[0]


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The container need not know who owns what here."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


async def _run(url: str, feed: int | None, take: Callable[[bytes], bool] | None) -> tuple[int, str]:
    """The exit code, and what it wrote to its standard error."""
    async with aiohttp.ClientSession() as session:
        opened = await opened_socket(session, url, V5, V4)
        feeding = asyncio.create_task(_feed(opened, feed)) if feed is not None else None
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
    return code, " ".join(words.decode(errors="replace").split())


async def _feed(opened: aiohttp.ClientWebSocketResponse, source: int) -> None:
    while data := await asyncio.to_thread(os.read, source, READ_BYTES):
        await opened.send_bytes(bytes((STDIN,)) + data)
    if opened.protocol == V5:
        await opened.send_bytes(bytes((CLOSE, STDIN)))


def _write_all(descriptor: int, data: bytes) -> bool:
    """False once nobody reads."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""The streams of a command in a container, over a WebSocket to the runtime.

Source: the remote command protocol v4 and v5 of Kubernetes (KEP-4006): one byte of channel before each message.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import MappingProxyType

import aiohttp

from agent.cli.session import CommandFailed
from agent.model.exit_codes import FAILURE, UNREACHABLE

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
OUTPUTS = MappingProxyType({STDOUT: 1, STDERR: 2})
READ_BYTES = 32 << 10
# Input that is read before the command takes it.
CHUNKS_AHEAD = 4
CONNECT_S = 10.0


async def opened_socket(session: aiohttp.ClientSession, url: str, *protocols: str) -> aiohttp.ClientWebSocketResponse:
    address = url.replace("http", "ws", 1)
    try:
        async with asyncio.timeout(CONNECT_S):
            return await session.ws_connect(address, protocols=protocols, max_msg_size=0, autoclose=True)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise CommandFailed(f"the runtime gives no stream at {url.rpartition('/')[0]}: {error}", UNREACHABLE) from error


async def run_streams(url: str, *, has_stdin: bool, is_tty: bool, greeting: str = "") -> int:
    """Until the command, or the container, ends. Its exit code. The greeting says that the streams are open."""
    async with aiohttp.ClientSession() as session:
        opened = await opened_socket(session, url, V5, V4)
        if greeting:
            sys.stderr.write(f"kepctl: {greeting}\n")
            sys.stderr.flush()
        with _raw_terminal(is_wanted=is_tty and has_stdin):
            return await _carried(opened, has_stdin=has_stdin, is_tty=is_tty)


async def _carried(opened: aiohttp.ClientWebSocketResponse, *, has_stdin: bool, is_tty: bool) -> int:
    async with asyncio.TaskGroup() as group:
        works = [_send_input(opened)] if has_stdin else []
        works += [_send_sizes(opened)] if is_tty else []
        tasks = [group.create_task(work) for work in works]
        try:
            return await _receive(opened)
        except asyncio.CancelledError:
            # What the other end does not take would be waited for while the connection is closed.
            with suppress(OSError):
                opened.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            raise
        finally:
            for task in tasks:
                task.cancel()


async def _receive(opened: aiohttp.ClientWebSocketResponse) -> int:
    """Of a terminal the last output may come after the exit code."""
    code = 0
    async for message in opened:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel in OUTPUTS:
            _write(OUTPUTS[channel], data)
        elif channel == STATUS:
            code = exit_code_of(data)
    return code


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def exit_code_of(data: bytes) -> int:
    """A Status object; success has no details."""
    status = json.loads(data)
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    sys.stderr.write(f"kepctl: {status.get('message', 'the command failed')}\n")
    return FAILURE


async def _send_input(opened: aiohttp.ClientWebSocketResponse) -> None:
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue(CHUNKS_AHEAD)
    reader = asyncio.create_task(_read_input(loop, chunks))
    try:
        while data := await chunks.get():
            await opened.send_bytes(bytes((STDIN,)) + data)
        if opened.protocol == V5:
            await opened.send_bytes(bytes((CLOSE, STDIN)))
        else:
            text = "this runtime cannot close the command's input; the command runs until it ends by itself"
            sys.stderr.write(f"kepctl: {text}\n")
    finally:
        reader.cancel()


async def _read_input(loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[bytes]) -> None:
    """A file cannot be waited for, a pipe and a terminal can."""
    ready = asyncio.Event()
    try:
        loop.add_reader(0, ready.set)
    except (OSError, PermissionError):
        while data := await asyncio.to_thread(os.read, 0, READ_BYTES):
            await chunks.put(data)
        await chunks.put(b"")
        return
    try:
        while True:
            await ready.wait()
            ready.clear()
            data = os.read(0, READ_BYTES)
            await chunks.put(data)
            if not data:
                return
    finally:
        loop.remove_reader(0)


async def _send_sizes(opened: aiohttp.ClientWebSocketResponse) -> None:
    changed = asyncio.Event()
    changed.set()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            with suppress(OSError):
                size = os.get_terminal_size(1)
                text = json.dumps({"Width": size.columns, "Height": size.lines})
                await opened.send_bytes(bytes((RESIZE,)) + text.encode())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextmanager
def _raw_terminal(*, is_wanted: bool) -> Iterator[None]:
    if not is_wanted or not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)

# SPDX-License-Identifier: Apache-2.0
"""Programs that read logs, each in a process of its own that cannot outlive us.

No shell, and nothing of our environment. Owns: the process group, its bounds and its end.
"""

import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from functools import cache

PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
MEMORY_BYTES = 64 << 20
CHUNK_BYTES, PIPE_BYTES = 64 << 10, 256 << 10
MOST_TOLD_BYTES = 4096
TERM_S, GATHER_S = 1.0, 0.001
# The kernel ends it with its parent. Its bounds hold before it begins. Where the filter of our unit forbids to be nicer
# it runs as we do.
ENTER = """
import ctypes, os, resource, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(125)
resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]),) * 2)
try:
    os.nice(10)
except OSError:
    pass
for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(one, signal.SIG_DFL)
os.execv(sys.argv[4], sys.argv[4:])
"""


@cache
def program_path(name: str) -> str:
    """Looked up once; empty if there is none."""
    return shutil.which(name, path=PATH) or ""


class Child:
    """A program that runs, and the pipe of its output. Whoever started it ends it."""

    def __init__(self, process: Process, output: int) -> None:
        self._process = process
        self._output = output
        self._told = asyncio.create_task(self._listen(), name="node-log-errors")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self) -> bytes:
        """Nothing once its output has ended. A program writes in small pieces, and each that we take costs its reader a
        message: so what comes within a moment comes together. More than the kernel's pipe holds is not taken ahead."""
        while True:
            try:
                return os.read(self._output, CHUNK_BYTES)
            except BlockingIOError:
                await self._has_more()
                await asyncio.sleep(GATHER_S)

    async def _has_more(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._output, _set, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._output)

    async def write(self, data: bytes) -> None:
        """One that ended does not read any more; its exit code says why."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError, ConnectionResetError):
                self._process.stdin.write(data)
                await self._process.stdin.drain()

    def close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def outcome(self) -> tuple[int, str]:
        """Its exit code and what it complained of, once its output has ended."""
        code = await self._process.wait()
        return code, await self._told

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)

    async def end(self) -> None:
        """However it is; it does not run afterwards."""
        self.close_input()
        self.signal(signal.SIGTERM)
        try:
            # Also for who is being cancelled, where asyncio.timeout does not end by itself before Python 3.11.3.
            await asyncio.wait_for(self._process.wait(), TERM_S)
        except TimeoutError:
            pass
        finally:
            self.signal(signal.SIGKILL)
        os.close(self._output)
        await self._told

    async def _listen(self) -> str:
        kept = b""
        while self._process.stderr is not None and (chunk := await self._process.stderr.read(MOST_TOLD_BYTES)):
            kept += chunk[: MOST_TOLD_BYTES - len(kept)]
        return kept.decode("utf-8", "replace").strip()


def _set(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


class Programs:
    def has(self, name: str) -> bool:
        return bool(program_path(name))

    async def start(self, name: str, arguments: Sequence[str], *, has_input: bool = False) -> Child:
        """Of one without input, which maps its files, only memory of its own is bounded. Raises OSError."""
        path = program_path(name)
        if not path:
            raise FileNotFoundError(2, "there is no such program", name)
        bound = "RLIMIT_AS" if has_input else "RLIMIT_DATA"
        output, write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", ENTER, str(os.getpid()), bound, str(MEMORY_BYTES), path, *arguments,
                stdin=PIPE if has_input else DEVNULL,
                stdout=write,
                stderr=PIPE,
                env=ENVIRONMENT,
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(write)
        os.set_blocking(output, False)
        with suppress(OSError):
            # It writes on while we hand over what we have.
            fcntl(output, F_SETPIPE_SZ, PIPE_BYTES)
        return Child(process, output)

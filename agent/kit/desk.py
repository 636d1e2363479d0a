# SPDX-License-Identifier: Apache-2.0
"""A process beside the daemon for work whose price a stranger names (agent/model/desk.py).

It is started when there is work, does one thing at a time, and goes when it was idle for a while. What passes its
deadline, or takes too much memory, ends with the process. Without the daemon it ends too: at the end of its input, or
by a timer of its own.
"""

import asyncio
import os
import sys
from contextlib import suppress
from importlib import import_module

from agent.model.desk import DeskFailed, Work

IDLE_S = 30.0
START_S = 30.0
MEMORY_BYTES = 1 << 30
HEAD_BYTES = 12


class ProcessDesk:
    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._turn = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, work: Work, given: bytes, deadline_s: float) -> bytes:
        """Raises DeskFailed. Who asks first is served first; the deadline begins when the work does."""
        async with self._turn:
            self._stop_timer()
            is_done = False
            try:
                name = f"{work.__module__}:{work.__qualname__}".encode()
                await self._exchange(b"", b"", START_S)
                found = await self._exchange(name, given, deadline_s)
                is_done = True
            finally:
                if not is_done:
                    await self.end()
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._kill)
            return found

    async def _exchange(self, name: bytes, given: bytes, deadline_s: float) -> bytes:
        """Without a name it answers as soon as it can work at all."""
        try:
            async with asyncio.timeout(deadline_s):
                child = self._child = self._child if self._child is not None else await _started()
                assert child.stdin is not None  # noqa: S101 - both are pipes
                assert child.stdout is not None  # noqa: S101
                head = len(name).to_bytes(4, "big") + len(given).to_bytes(4, "big")
                child.stdin.write(head + round(deadline_s * 1000).to_bytes(4, "big") + name + given)
                await child.stdin.drain()
                answer = await child.stdout.readexactly(5)
                found = await child.stdout.readexactly(int.from_bytes(answer[1:], "big"))
        except TimeoutError as error:
            raise DeskFailed(f"takes longer than {deadline_s:g} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise DeskFailed("its process has ended, as one does that takes too much memory") from error
        if answer[:1] != b"y":
            raise DeskFailed(f"has failed: {found.decode(errors='replace')}")
        return found

    async def end(self) -> None:
        """Of the process; the next work starts another."""
        child = self._child
        self._stop_timer()
        self._kill()
        if child is not None:
            await child.wait()

    def _stop_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()

    def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with suppress(ProcessLookupError):
                child.kill()


async def _started() -> asyncio.subprocess.Process:
    """It gets nothing of the daemon's environment but where modules are."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "agent.kit.desk",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, start_new_session=True,
    )  # fmt: skip


def _serve() -> None:
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while head := sys.stdin.buffer.read(HEAD_BYTES):
        name_bytes, given_bytes, limit_ms = (int.from_bytes(head[at : at + 4], "big") for at in (0, 4, 8))
        module, _, function = sys.stdin.buffer.read(name_bytes).decode().partition(":")
        given = sys.stdin.buffer.read(given_bytes)
        signal.setitimer(signal.ITIMER_REAL, limit_ms / 1000 + 1)
        word = b"y"
        try:
            found = getattr(import_module(module), function)(given) if module else b""
        except Exception as error:  # noqa: BLE001 - whatever it is, the asker hears of it
            word, found = b"n", f"{type(error).__name__}: {error}"[:1000].encode()
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(word + len(found).to_bytes(4, "big") + found)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()

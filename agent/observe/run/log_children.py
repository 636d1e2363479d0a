# SPDX-License-Identifier: Apache-2.0
"""The programs of one call for logs: started, read and ended with it."""

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from agent.observe.node_logs.lines import LineCutter
from agent.observe.ports import LogProgram, LogPrograms


class Children:
    """`fault` is what the last of them complained of; empty = nothing. `gave` says whether anything came out."""

    def __init__(self, programs: LogPrograms) -> None:
        self._programs = programs
        self._running: list[LogProgram] = []
        self.fault = ""

    def kill(self) -> None:
        """Also while whoever reads us does not read."""
        for one in self._running:
            one.signal(signal.SIGKILL)

    @asynccontextmanager
    async def running(
        self, name: str, arguments: Sequence[str], *, has_input: bool = False
    ) -> AsyncIterator[LogProgram]:
        child = await self._programs.start(name, arguments, has_input=has_input)
        self._running.append(child)
        try:
            yield child
        finally:
            self._running.remove(child)
            await child.end()

    async def ask(self, name: str, arguments: Sequence[str], most_bytes: int) -> tuple[bytes, int, str]:
        """A short answer, with its code and complaint."""
        kept = b""
        async with self.running(name, arguments) as child:
            while chunk := await child.read():
                kept += chunk[: most_bytes - len(kept)]
            return kept, *await child.outcome()

    async def lines_of(self, name: str, arguments: Sequence[str]) -> AsyncGenerator[bytes, None]:
        async with self.running(name, arguments) as child, aclosing(self._cut(name, child)) as found:
            async for lines in found:
                yield lines

    async def through(
        self, name: str, arguments: Sequence[str], lines: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """What a program makes of lines."""
        async with self.running(name, arguments, has_input=True) as child:
            feeding = asyncio.create_task(_feed(child, lines), name="node-log-grep")
            try:
                async with aclosing(self._cut(name, child)) as found:
                    async for part in found:
                        yield part
                if feeding.done():
                    feeding.result()
            finally:
                feeding.cancel()
                await asyncio.wait([feeding])

    async def _cut(self, name: str, child: LogProgram) -> AsyncGenerator[bytes, None]:
        cutter = LineCutter()
        while chunk := await child.read():
            if lines := cutter.feed(chunk):
                yield lines
        if rest := cutter.rest():
            yield rest
        code, told = await child.outcome()
        # Code 1 without a word is that nothing was found.
        if code < 0:
            self.fault = f"{name} was ended by signal {-code}, for it took too much memory or too long"
        elif code and (told or code > 1):
            self.fault = f"{name}: {told.splitlines()[0] if told else f'code {code}'}"


async def _feed(child: LogProgram, lines: AsyncGenerator[bytes, None]) -> None:
    try:
        async with aclosing(lines):
            async for part in lines:
                await child.write(part)
    finally:
        child.close_input()

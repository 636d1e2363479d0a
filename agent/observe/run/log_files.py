# SPDX-License-Identifier: Apache-2.0
"""Reads a log file of the node with what it was before, filters its lines, and follows it over rotation."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from datetime import datetime

from agent.model.finding import Finding, shown
from agent.model.nodes.log import LogReader, LogRequest, NoSuchLog
from agent.model.refused import Refused
from agent.observe.node_logs.checking import lines_from_end
from agent.observe.node_logs.lines import Between, LastLines, LineCutter, line_time
from agent.observe.ports import LogFiles, OpenLog
from agent.observe.run.log_children import Children

CHUNK_BYTES = 64 << 10
LOOK_S = 0.2
Now = Callable[[], datetime]


class FileLog:
    """One call. The oldest file comes first; the last is the one that is written."""

    def __init__(self, files: LogFiles, request: LogRequest, reader: LogReader, most_bytes: int, now: Now) -> None:
        self._files = files
        self._request = request
        self._is_root = reader.is_root
        self._most_bytes = most_bytes
        self._now = now
        self._open: list[OpenLog] = []
        self._spans: list[tuple[int, int | None]] = []
        """Where reading begins in each, and where it ends; what is packed ends where it ends."""

    async def lines(self, children: Children) -> AsyncGenerator[bytes, None]:
        """Raises Refused before the first."""
        try:
            await asyncio.to_thread(self._begin)
            skipped = await self._skipped(children)
            left_out = LastLines(skipped)
            source = self._chunks(follows=self._request.follow)
            async with aclosing(self._filtered(source, children)) as found:
                async for part in found:
                    if lines := left_out.of(part):
                        yield lines
        finally:
            for one in self._open:
                one.close()

    def _begin(self) -> None:
        try:
            self._open = [self._file(self._request.file)]
        except NoSuchLog as error:
            text = f"there is no log {shown(self._request.file)} for you; kepctl node-logs lists those that there are"
            raise Refused("no_log", text) from error
        for name in reversed(self._files.older(self._request.file) if self._request.rotated else []):
            with suppress(NoSuchLog):
                self._open.insert(0, self._file(name))
        if any(one.is_binary() for one in self._open):
            raise _wrong("file", f"{shown(self._request.file)} is no text")
        if self._has_times():
            self._check_times()
        self._spans = [(0, None if one.is_packed else one.size()) for one in self._open]
        if (tail := lines_from_end(self._request)) is not None and not self._is_filtered():
            self._begin_at_last(tail)

    def _file(self, name: str) -> OpenLog:
        return self._files.open(name, is_root=self._is_root, most_bytes=self._most_bytes)

    def _begin_at_last(self, left: int) -> None:
        for index in reversed(range(len(self._open))):
            count, place = self._open[index].begin_of_last(left)
            left -= count
            self._spans[index] = (place, self._spans[index][1])

    def _check_times(self) -> None:
        now = self._now()
        for one in self._open:
            head = one.read(CHUNK_BYTES)
            one.rewind()
            for line in head.splitlines()[: -1 if len(head) == CHUNK_BYTES else None]:
                if line_time(line, now) is None:
                    right = "expected a file whose lines begin as 2026-01-31T10:00:00Z or Jan 31 10:00:00"
                    found = shown(line.decode("utf-8", "replace"))
                    raise _wrong("since", f"{shown(one.name)} has lines without a time, such as {found}; {right}")

    def _has_times(self) -> bool:
        return self._request.since_us is not None or self._request.until_us is not None

    def _is_filtered(self) -> bool:
        return bool(self._request.grep) or self._has_times()

    async def _skipped(self, children: Children) -> int:
        """How many of the lines that pass come before the last ones. To hold those would take memory, so they are read
        twice."""
        tail = lines_from_end(self._request)
        if tail is None or not self._is_filtered():
            return 0
        count = 0
        async with aclosing(self._filtered(self._chunks(follows=False), children)) as found:
            async for part in found:
                count += part.count(b"\n")
        return max(count - tail, 0)

    async def _filtered(self, chunks: AsyncGenerator[bytes, None], children: Children) -> AsyncGenerator[bytes, None]:
        request, now = self._request, self._now()
        between = Between(request.since_us, request.until_us, lambda line: line_time(line, now))
        whole = _whole_lines(chunks, between if self._has_times() else None)
        if not request.grep:
            async with aclosing(whole):
                async for part in whole:
                    yield part
            return
        flags = (*(("-i",) if request.ignore_case else ()), *(("--line-buffered",) if request.follow else ()))
        arguments = ("-E", "--text", *flags, "-e", request.grep)
        async with aclosing(children.through("grep", arguments, whole)) as found:
            async for part in found:
                yield part

    async def _chunks(self, *, follows: bool) -> AsyncGenerator[bytes, None]:
        for one, (begin, end) in zip(self._open, self._spans, strict=True):
            await asyncio.to_thread(one.rewind, begin)
            left = None if end is None else end - begin
            while left is None or left > 0:
                chunk = await asyncio.to_thread(one.read, CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
                if not chunk:
                    break
                left = None if left is None else left - len(chunk)
                yield chunk
        while follows:
            if chunk := await asyncio.to_thread(self._next):
                yield chunk
            else:
                await asyncio.sleep(LOOK_S)

    def _next(self) -> bytes:
        """What was written since; also into a file that took its place, or into this one from its beginning."""
        current = self._open[-1]
        if chunk := current.read():
            return chunk
        if current.size() < current.place():
            current.rewind()
            return current.read()
        with suppress(NoSuchLog):
            newer = self._file(self._request.file)
            if newer.identity == current.identity:
                newer.close()
                return b""
            self._open.append(newer)
            # What came between the last look and the change; from now on the new one is the current one.
            return current.read() or newer.read()
        return b""


async def _whole_lines(chunks: AsyncGenerator[bytes, None], between: Between | None) -> AsyncGenerator[bytes, None]:
    """Times are read in a thread, for a chunk has thousands of lines."""
    cutter = LineCutter()
    async with aclosing(chunks):
        async for chunk in chunks:
            lines = cutter.feed(chunk)
            if lines := await asyncio.to_thread(between.of, lines) if between is not None else lines:
                yield lines
    rest = cutter.rest()
    if rest := between.of(rest) if between is not None else rest:
        yield rest


def _wrong(path: str, text: str) -> Refused:
    return Refused("log_request", f"the request is wrong: {path}: {text}", [Finding("", path, text)])

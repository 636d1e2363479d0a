# SPDX-License-Identifier: Apache-2.0
"""Answers with logs of the node's services, from the journal or a file.

Owns: who reads how much at once, how long and how many bytes; the line in our own log that says so. Never: runs a
pattern, or holds more than a few pieces of an answer.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial

import msgspec
import structlog

from agent.model.finding import printable, shown
from agent.model.nodes.log import ListedFile, LogPart, LogReader, LogRequest, LogSource
from agent.model.refused import Refused
from agent.observe.node_logs import journal
from agent.observe.node_logs.checking import KERNEL, UNIT, faults, lines_from_end, matches
from agent.observe.ports import LogFiles, LogPrograms
from agent.observe.run.log_children import Children
from agent.observe.run.log_files import FileLog, Now

log = structlog.get_logger(plane="observe")

JOURNALCTL = "journalctl"
MOST_READERS, MOST_READERS_OF_USER = 4, 2
ANSWER_BYTES = 1 << 20
MOST_SOURCES, MOST_DATED, DATED_AT_ONCE = 1000, 64, 2
SOURCES_S = 20.0
KEPT_S = 5.0
STUCK_S = 2.0


class LogRules(msgspec.Struct, frozen=True, kw_only=True):
    is_on: bool = True
    units: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    journal: str = ""
    most_bytes: int = 64 << 20
    run_s: float = 30.0
    follow_s: float = 3600.0


class NodeLogs:
    """`files` gives those below directories."""

    def __init__(
        self,
        files: Callable[[Sequence[str]], LogFiles],
        programs: LogPrograms,
        rules: Callable[[], LogRules],
        now: Now,
    ) -> None:
        self._files = files
        self._programs = programs
        self._rules = rules
        self._now = now
        self._readers: Counter[int] = Counter()
        self._listing = asyncio.Lock()
        self._listed: dict[bool, tuple[float, tuple[LogSource, ...]]] = {}

    async def stream(self, request: LogRequest, reader: LogReader) -> AsyncGenerator[LogPart, None]:
        """Ends with a part that says whether the answer is complete. Raises Refused."""
        rules = self._rules()
        end, sent = "refused", 0
        try:
            _check(request, reader, rules)
            with self._turn(reader.uid):
                end = "cancelled"
                async with aclosing(self._parts(request, reader, rules)) as parts:
                    async for part in parts:
                        sent += len(part.lines)
                        end = (part.cut or "complete") if part.is_last else end
                        yield part
        except Refused as error:
            end = str(error)
            raise
        finally:
            _tell(request, reader, sent, end)

    @contextmanager
    def _turn(self, uid: int) -> Iterator[None]:
        if self._readers.total() >= MOST_READERS or self._readers[uid] >= MOST_READERS_OF_USER:
            text = f"logs are read by {self._readers.total()} calls, {self._readers[uid]} of them yours"
            most = f"at most {MOST_READERS} read at once, {MOST_READERS_OF_USER} of one user"
            raise Refused("log_readers", f"{text}; {most}; end one, or try again later")
        self._readers[uid] += 1
        try:
            yield
        finally:
            self._readers[uid] -= 1

    async def _parts(self, request: LogRequest, reader: LogReader, rules: LogRules) -> AsyncGenerator[LogPart, None]:
        loop, left = asyncio.get_running_loop(), rules.most_bytes
        limit_s = rules.follow_s if request.follow else rules.run_s
        deadline = loop.time() + limit_s
        children = Children(self._programs)
        # For one whose reader does not read; the others are ended in the usual way.
        alarm = loop.call_at(deadline + STUCK_S, children.kill)
        cut = ""
        try:
            async with aclosing(self._lines(request, reader, rules, children)) as found:
                while not cut:
                    if loop.time() >= deadline:
                        raise TimeoutError
                    async with asyncio.timeout_at(deadline):
                        lines = await anext(found, None)
                    if lines is None:
                        cut = children.fault
                        break
                    if len(lines) > left:
                        cut = f"cut at {rules.most_bytes} bytes (telemetry.nodeLogs.maxBytes); there is more"
                        lines = lines[: lines.rfind(b"\n", 0, left) + 1]
                    left -= len(lines)
                    if lines:
                        yield LogPart(lines=lines)
        except TimeoutError:
            cut = f"ended after {limit_s:g} s, the longest that a call may take; there may be more"
        finally:
            alarm.cancel()
        yield LogPart(is_last=True, cut=printable(cut))

    def _lines(
        self, request: LogRequest, reader: LogReader, rules: LogRules, children: Children
    ) -> AsyncGenerator[bytes, None]:
        if request.units:
            return self._journal(request, rules.journal, children)
        if request.grep and not self._programs.has("grep"):
            raise Refused("no_journal", "there is no grep here to search with; leave out --grep")
        files = self._files(rules.directories)
        return FileLog(files, request, reader, rules.most_bytes, self._now).lines(children)

    async def _journal(self, request: LogRequest, directory: str, children: Children) -> AsyncGenerator[bytes, None]:
        await self._need_program(request, children)
        if request.follow:
            await self._need_journal(directory, children)
        cursor = ""
        if journal.needs_search(request):
            cursor = await self._first_of_last(request, directory, children)
            request = request if cursor else msgspec.structs.replace(request, tail=0)
        is_empty = True
        if cursor or request.follow or lines_from_end(request) != 0:
            arguments = journal.journal_arguments(request, directory, cursor)
            async with aclosing(children.lines_of(JOURNALCTL, arguments)) as found:
                async for lines in found:
                    is_empty = False
                    yield lines
        if is_empty and not children.fault:
            await self._need_journal(directory, children)

    async def _need_program(self, request: LogRequest, children: Children) -> None:
        if not self._programs.has(JOURNALCTL):
            raise Refused("no_journal", "there is no journalctl here to read a journal with; files can be read")
        if request.grep:
            told, _, _ = await children.ask(JOURNALCTL, ("--version",), 1 << 12)
            if b"+PCRE2" not in told:
                raise Refused("no_journal", "the journalctl that is here cannot search (-PCRE2); leave out --grep")

    @staticmethod
    async def _need_journal(directory: str, children: Children) -> None:
        _, _, told = await children.ask(JOURNALCTL, journal.check_arguments(directory), 1 << 12)
        if why := journal.no_journal(told):
            place = directory or "/var/log/journal and /run/log/journal"
            raise Refused("no_journal", f"{place}: {why}; telemetry.nodeLogs.journal names another directory")

    @staticmethod
    async def _first_of_last(request: LogRequest, directory: str, children: Children) -> str:
        """The place of the oldest line that is wanted."""
        cursor = ""
        arguments = journal.search_arguments(request, directory)
        async with aclosing(children.lines_of(JOURNALCTL, arguments)) as found:
            async for lines in found:
                cursor = journal.last_cursor(lines) or cursor
        return cursor

    async def sources(self, reader: LogReader) -> Sequence[LogSource]:
        """Units and files that the reader may read. One look serves all that ask within a few seconds."""
        rules = self._rules()
        _need_on(rules)
        loop = asyncio.get_running_loop()
        async with self._listing:
            looked_s, found = self._listed.get(reader.is_root, (-KEPT_S, ()))
            if loop.time() - looked_s < KEPT_S:
                return found
            files = await asyncio.to_thread(partial(self._files(rules.directories).listed, is_root=reader.is_root))
            found = (*await self._units(rules, is_root=reader.is_root), *_as_sources(files))
            self._listed[reader.is_root] = (loop.time(), found)
            return found

    async def _units(self, rules: LogRules, *, is_root: bool) -> list[LogSource]:
        if not self._programs.has(JOURNALCTL):
            return []
        children, loop = Children(self._programs), asyncio.get_running_loop()
        alarm = loop.call_later(SOURCES_S, children.kill)
        try:
            told, _, _ = await children.ask(JOURNALCTL, journal.units_arguments(rules.journal), ANSWER_BYTES)
            names = [KERNEL, *sorted(told.decode("utf-8", "replace").split("\n"))]
            fit = [one for one in names if UNIT.match(one) and (is_root or matches(one, rules.units))][:MOST_SOURCES]
            turns = asyncio.Semaphore(DATED_AT_ONCE)
            times = await asyncio.gather(*(self._last_s(one, rules, children, turns) for one in fit[:MOST_DATED]))
        finally:
            alarm.cancel()
        dated = dict(zip(fit, times, strict=False))
        return [
            LogSource(name=one, kind="unit", last_at_s=dated.get(one))
            for one in fit
            if one != KERNEL or dated.get(one) is not None
        ]

    @staticmethod
    async def _last_s(unit: str, rules: LogRules, children: Children, turns: asyncio.Semaphore) -> float | None:
        async with turns:
            told, _, _ = await children.ask(JOURNALCTL, journal.last_arguments(rules.journal, unit), 1 << 16)
        return journal.entry_s(told)


def _as_sources(files: Sequence[ListedFile]) -> Iterator[LogSource]:
    for one in files:
        yield LogSource(name=one.name, kind="file", size_bytes=one.size_bytes, last_at_s=one.changed_s)


def _need_on(rules: LogRules) -> None:
    if not rules.is_on:
        raise Refused("logs_off", "logs of the node are switched off; set telemetry.nodeLogs.enabled to true")


def _check(request: LogRequest, reader: LogReader, rules: LogRules) -> None:
    _need_on(rules)
    if found := faults(request):
        raise Refused("log_request", f"the request is wrong: {'; '.join(map(str, found))}", found)
    closed = [one for one in request.units if not reader.is_root and not matches(one, rules.units)]
    if closed:
        names = ", ".join(map(shown, closed))
        raise Refused("log_closed", f"{names}: not among telemetry.nodeLogs.units, which you may read; ask as root")


def _tell(request: LogRequest, reader: LogReader, sent: int, end: str) -> None:
    """Nothing of it is of the log itself."""
    given = msgspec.structs.asdict(request)
    options = {
        name: value for name, value in given.items() if value not in (None, "", False) and name not in ("units", "file")
    }
    log.info(
        "node_logs_read", uid=reader.uid, units=",".join(map(printable, request.units)), file=printable(request.file),
        options=printable(str(options)), bytes=sent, end=printable(end), v=0,
    )  # fmt: skip

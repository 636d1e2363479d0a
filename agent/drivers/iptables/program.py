# SPDX-License-Identifier: Apache-2.0
"""The iptables programs: argument list and text in, text or a failure out."""

import asyncio
import errno
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from agent.model.services.nft_error import (
    ExtensionMissing,
    LockHeld,
    NftFailed,
    NftMissing,
    NotPermitted,
    OutcomeUnknown,
    RulesRefused,
)

_MOST_ERROR_CHARACTERS = 400
_RESOURCE_PROBLEM = 4
# Pieces, of about 3 KiB each where a Service has ten endpoints.
_AT_ONCE = 20
_LINE = re.compile(r"line:? (\d+)")
_PASSING = {os.strerror(code): code for code in (errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENOBUFS, errno.EINTR)}
_MISSING = ("Couldn't load", "missing kernel module", "unknown option", "No such file or directory): rule in chain")


class Program:
    """Where the programs are and how long one may take. `prefix` runs them elsewhere, `nsenter …` for instance."""

    def __init__(self, prefix: Sequence[str] = (), deadline_s: float = 30.0) -> None:
        self._prefix = tuple(prefix)
        self._deadline_s = deadline_s

    async def run(self, *argv: str, text: str = "", more_s: float = 0.0) -> str:
        """Its output. `more_s` is for input that takes its time."""
        code, output, errors = await self._child((*self._prefix, *argv), text, self._deadline_s + more_s)
        if code:
            raise failure(argv[0], code, errors or output, text)
        return output

    async def feed(self, *argv: str, pieces: Iterable[str], more_s: float = 0.0) -> None:
        """Input that is made while the program reads. If making it fails the program ends without its last line."""
        code, _, errors = await self._child((*self._prefix, *argv), pieces, self._deadline_s + more_s)
        if code:
            raise failure(argv[0], code, errors, "")

    async def succeeds(self, *argv: str) -> bool:
        """Whether what it looks for is there: code 1 is no, anything else is a failure."""
        code, _, errors = await self._child((*self._prefix, *argv), "", self._deadline_s)
        if code > 1:
            raise failure(argv[0], code, errors, "")
        return not code

    async def found(self, *argv: str) -> str:
        """Its output, or nothing where what it looks for is not there: one look, so nobody gets between two."""
        code, output, errors = await self._child((*self._prefix, *argv), "", self._deadline_s)
        if code > 1:
            raise failure(argv[0], code, errors, "")
        return "" if code else output

    @staticmethod
    async def _child(argv: Sequence[str], text: str | Iterable[str], deadline_s: float) -> tuple[int, str, str]:
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, stderr=pipe)
        except FileNotFoundError as error:
            raise _missing(argv[0]) from error
        except PermissionError as error:
            raise NotPermitted(f"{argv[0]} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(deadline_s):
                if isinstance(text, str):
                    output, errors = await child.communicate(text.encode())
                else:
                    await _write(child, text)
                    output, errors = await child.communicate()
        except TimeoutError as error:
            what = f"{argv[0]} gave no answer within {deadline_s:g} s and was killed; kepd reads the rules again"
            raise OutcomeUnknown(what) from error
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return child.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


async def _write(child: asyncio.subprocess.Process, pieces: Iterable[str]) -> None:
    """Its messages are few and wait in their pipes meanwhile."""
    if child.stdin is None:
        return
    batch: list[str] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) < _AT_ONCE:
            continue
        child.stdin.write("".join(batch).encode())
        batch.clear()
        # It ended early; its exit code says why.
        with suppress(BrokenPipeError, ConnectionResetError):
            await child.stdin.drain()
    child.stdin.write("".join(batch).encode())
    child.stdin.close()


def failure(program: str, code: int, errors: str, text: str) -> NftFailed:
    """In terms a sync can act on."""
    told = " ".join(errors.split())[:_MOST_ERROR_CHARACTERS] or f"code {code} without a message"
    if "No such file or directory" in errors and (code == 127 or "failed to execute" in errors):
        return _missing(program)
    if "xtables lock" in errors:
        return LockHeld(f"{program}: another program holds the lock of iptables: {told}; kepd tries again")
    if "Permission denied" in errors or "Operation not permitted" in errors or "you must be root" in errors:
        right = "CAP_NET_ADMIN" + (", and CAP_NET_RAW for the legacy variant" if "legacy" in program else "")
        return NotPermitted(f"{program} may not change rules: {told}; kepd needs {right}")
    if code == _RESOURCE_PROBLEM and not _LINE.search(errors):
        return NftFailed(f"{program}: the kernel was busy: {told}; kepd tries again")
    line = _line_of(errors, text)
    at = f" at {line!r}" if line else ""
    if any(one in errors for one in _MISSING):
        return ExtensionMissing(f"{program}: a match or target is missing{at}: {told}", line=line)
    code = next((number for words, number in _PASSING.items() if words in errors), 0)
    return RulesRefused(f"{program} refused the rules{at}: {told}", errno=code)


def _line_of(errors: str, text: str) -> str:
    """The line of the input that was refused: its comment says whose it is."""
    found = _LINE.search(errors)
    lines = text.splitlines()
    return lines[int(found[1]) - 1] if found is not None and 0 < int(found[1]) <= len(lines) else ""


def _missing(program: str) -> NftMissing:
    return NftMissing(
        f"there is no program {program!r}: install the package iptables, or set services.backend: nftables"
    )

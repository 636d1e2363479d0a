# SPDX-License-Identifier: Apache-2.0
"""Commands of the configuration that make a device ready, or clean after its use. DVD-23.

No shell; the program and nobody else's: it belongs to root and only root may write it. It leads a process group of its
own, which is ended as a whole when its time is over.
"""

import asyncio
import os
import signal
import stat
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agent.devices.plan.answers import told

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
GRACE_S = 10.0
MOST_OUTPUT_BYTES = 4096
WRITABLE = stat.S_IWGRP | stat.S_IWOTH


class CommandFailed(Exception):
    """With the beginning of what it printed."""


async def run_command(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> None:
    """Raises CommandFailed."""
    program = Path(command[0])
    if why := await asyncio.to_thread(_distrust, program):
        raise CommandFailed(f"{program} {why}")
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env={"PATH": PATH, **environment},
            start_new_session=True,
        )
    except OSError as error:
        raise CommandFailed(f"{program} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(limit_s):
            output = await _output(child)
            code = await child.wait()
    except TimeoutError as error:
        raise CommandFailed(f"{program} did not end within {limit_s:g} s") from error
    finally:
        await _end(child)
    if code:
        said = told(output.decode("utf-8", "replace").strip())
        raise CommandFailed(f"{program} ended with exit code {code}" + (f": {said}" if said else ""))


def _distrust(program: Path) -> str:
    try:
        facts = program.stat()
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    if not stat.S_ISREG(facts.st_mode):
        return "is no file"
    if facts.st_uid != 0:
        return f"belongs to user {facts.st_uid}; expected root"
    return "can be written by others than root" if facts.st_mode & WRITABLE else ""


async def _output(child: Process) -> bytes:
    """The first bytes; the rest is read and dropped."""
    kept = b""
    while child.stdout is not None and (chunk := await child.stdout.read(1 << 14)):
        kept += chunk[: MOST_OUTPUT_BYTES - len(kept)]
    return kept


async def _end(child: Process) -> None:
    """Nothing of its group stays."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await child.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.returncode is None:
        await child.wait()

# SPDX-License-Identifier: Apache-2.0
"""One run of a plugin: a child process that reads a request and prints an answer.

Never: uses a shell, or shows its answer. Of its complaint the first line is shown, cut and without passwords.
"""

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from agent.model.text.outside_text import from_outside

MAX_OUTPUT_BYTES = 1 << 20
MAX_COMPLAINT_BYTES = 4096
PASSWORD = re.compile(rb'"(?:password|auth|identitytoken|token)"\s*:\s*"((?:[^"\\]|\\.)+)"', re.IGNORECASE)
COMPLAINT_LENGTH = 200
END_S = 5.0


class PluginFailed(Exception):
    """It did not answer. The message may be shown."""


class PluginEnd(msgspec.Struct, frozen=True):
    """A plugin that ended by itself. `complaint`: the beginning of what it wrote as errors."""

    code: int
    output: bytes
    complaint: bytes


async def run_plugin(
    command: Sequence[str], request: bytes, environment: Mapping[str, str], limit_s: float, secrets: Sequence[str] = ()
) -> bytes:
    """What the plugin printed. Raises PluginFailed."""
    ended = await run_to_end(command, request, environment, limit_s)
    if ended.code != 0:
        said = _first_line(ended.complaint, [*secrets, *_passwords(ended.output)])
        raise PluginFailed(f"ended with exit code {ended.code}" + (f": {said}" if said else ""))
    return ended.output


async def run_to_end(
    command: Sequence[str], request: bytes, environment: Mapping[str, str], limit_s: float
) -> PluginEnd:
    """The same, whatever its exit code. Raises PluginFailed if there is none."""
    try:
        child = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=dict(environment), start_new_session=True
        )
    except OSError as error:
        raise PluginFailed(f"cannot be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(limit_s):
            output, complaint = await _talk(child, request)
            code = await child.wait()
    except TimeoutError:
        raise PluginFailed(f"did not finish within {limit_s:g}s and was killed") from None
    finally:
        await _end(child)
    return PluginEnd(code, output, complaint)


async def _talk(child: Process, request: bytes) -> tuple[bytes, bytes]:
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise AssertionError("the child was started with pipes")
    with suppress(BrokenPipeError, ConnectionResetError):
        child.stdin.write(request)
        await child.stdin.drain()
    child.stdin.close()
    async with asyncio.TaskGroup() as group:
        complaint = group.create_task(_beginning(child.stderr), name="plugin-stderr")
        output = bytearray()
        while len(output) <= MAX_OUTPUT_BYTES and (chunk := await child.stdout.read(1 << 16)):
            output += chunk
        if len(output) > MAX_OUTPUT_BYTES:
            complaint.cancel()
    if len(output) > MAX_OUTPUT_BYTES:
        raise PluginFailed(f"printed more than {MAX_OUTPUT_BYTES} bytes")
    return bytes(output), complaint.result()


async def _beginning(stream: asyncio.StreamReader) -> bytes:
    """The first bytes; the rest is read and dropped, so that the child does not block on a full pipe."""
    kept = b""
    while chunk := await stream.read(1 << 16):
        kept += chunk[: MAX_COMPLAINT_BYTES - len(kept)]
    return kept


async def _end(child: Process) -> None:
    """Leave nothing behind: the child leads a group of its own, so what it started goes with it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if child.returncode is None:
        # Also for who is being cancelled, where asyncio.timeout does not end by itself before Python 3.11.3.
        with suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), END_S)


def _passwords(output: bytes) -> list[str]:
    """What it printed as a password before it failed: it may say the same again in its complaint."""
    return [found.decode("utf-8", "replace") for found in PASSWORD.findall(output)]


def _first_line(complaint: bytes, secrets: Sequence[str]) -> str:
    lines = complaint.decode("utf-8", "replace").strip().splitlines()
    return from_outside(lines[0], secrets)[:COMPLAINT_LENGTH] if lines else ""

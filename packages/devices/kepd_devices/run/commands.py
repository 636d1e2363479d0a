# SPDX-License-Identifier: Apache-2.0
"""Commands of the configuration that make a device ready, or clean after its use.

No shell. The program belongs to root and only root may write it. It has a control group of its
own, which is ended as a whole when the command has ended or its time is over: also what left its session. What an
earlier kepd left running is ended before the first command. Where no group can be made there is only the session.
"""

import asyncio
import os
import signal
import stat
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog

from agent.model.finding import printable
from kepd_devices.local.pool_rules import Command, filled, seconds

log = structlog.get_logger(plane="devices")

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
GRACE_S = 10.0
# A process that waits for its device in the kernel may never end.
KILLED_S = 5.0
END_S = GRACE_S + KILLED_S
LOOK_S, OUTPUT_S = 0.02, 1.0
MOST_OUTPUT_BYTES, MOST_PRINTED = 4096, 256
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
MOST_TOLD = 5
# Enters the group before the program begins, so that nothing that it starts is outside. Signals are not ignored because
# Python or who started kepd ignores them; Python adds a variable for its own sake.
ENTER = """
import os, signal, sys
for one in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(one, signal.SIG_DFL)
os.environ.pop("LC_CTYPE", None)
code = 125
try:
    with open(sys.argv[1], "w") as entrance:
        entrance.write("0")
    code = 126
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(error.strerror, flush=True)
    sys.exit(code)
"""
BEFORE_IT_BEGAN = {125: "cannot enter its control group", 126: "cannot be started"}


class CommandFailed(Exception):
    """Without what it printed, which is for people who ask, and not for events."""


class Group(Protocol):
    """The processes of one command. Blocking; calls raise OSError."""

    @property
    def entrance(self) -> str: ...

    def members(self) -> list[int]: ...

    def signal(self, number: int) -> None: ...

    def kill(self) -> None: ...

    def remove(self) -> None: ...


class Groups(Protocol):
    """Blocking; calls raise OSError."""

    def make(self) -> Group: ...

    def end_old(self) -> list[int]: ...


class Session:
    """All that is known of a command without a group."""

    entrance = ""

    def __init__(self, leader: Process) -> None:
        self._leader = leader

    def members(self) -> list[int]:
        return [self._leader.pid] if self._leader.returncode is None else []

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def remove(self) -> None:
        """It is no more."""


class DeviceCommands:
    """`problems` say why commands have no group, where that is so. `printed` has the beginning of what commands printed
    that failed last, by driver or resource and device."""

    def __init__(self, groups: Groups | None = None) -> None:
        self._groups = groups
        self._beginning = asyncio.Lock()
        self._has_begun = groups is None
        self.problems: tuple[str, ...] = ()
        self.printed: dict[str, str] = {}

    async def begin(self) -> None:
        """What an earlier life left running is ended, before anything else is done with devices."""
        async with self._beginning:
            if self._has_begun or self._groups is None:
                return
            try:
                left = await asyncio.to_thread(self._groups.end_old)
            except OSError as error:
                self._without_group(error)
                left = []
            self._has_begun = True
            if left:
                log.error("old_commands_not_ended", processes=left[:MOST_TOLD])

    async def reset(self, command: Command, resource: str, device: str, **more: str) -> str:
        """Of a plugin's device: why it failed, after all that may be tried; nothing where the device is clean. `more`
        is what its environment has beside the names."""
        argv = [filled(one, {"name": device}) for one in command.command]
        environment = {"DEVICE_NAME": device, "DEVICE_RESOURCE": resource, **more}
        why = ""
        for _ in range(command.retries + 1):
            try:
                await self.run(argv, environment, seconds(command.timeout) or 0.0, f"{resource}/{device}")
            except CommandFailed as error:
                why = str(error)
            else:
                return ""
        return why

    async def run(
        self, command: Sequence[str], environment: Mapping[str, str], limit_s: float, device: str = ""
    ) -> None:
        """For a device, by its driver or resource and its name. Raises CommandFailed."""
        self.printed.pop(device, None)
        program = Path(command[0])
        if why := await asyncio.to_thread(_distrust, program):
            raise CommandFailed(f"{program} {why}")
        await self.begin()
        group = await self._made()
        try:
            child, output = await _started(command, environment, group)
            try:
                async with asyncio.timeout(limit_s):
                    code = await child.wait()
            finally:
                left = await _end(child, group)
                self._keep(device, await _said(output))
        except TimeoutError as error:
            raise CommandFailed(f"{program} did not end within {limit_s:g} s") from error
        except OSError as error:
            raise CommandFailed(f"{program} cannot be started: {error.strerror}") from error
        finally:
            await _without(group)
        if code:
            what = BEFORE_IT_BEGAN.get(code, "") if group is not None else ""
            raise CommandFailed(f"{program} {what or f'ended with exit code {code}'}")
        if left:
            pids = ", ".join(map(str, left[:MOST_TOLD]))
            raise CommandFailed(f"{program} left processes that cannot be ended: {pids}")
        self.printed.pop(device, None)

    def _keep(self, device: str, said: str) -> None:
        if said and device:
            self.printed[device] = f"it printed: {said}"
        while len(self.printed) > MOST_PRINTED:
            del self.printed[next(iter(self.printed))]

    async def _made(self) -> Group | None:
        if self._groups is None:
            return None
        try:
            group = await asyncio.to_thread(self._groups.make)
        except OSError as error:
            self._without_group(error)
            return None
        self.problems = ()
        return group

    def _without_group(self, error: OSError) -> None:
        text = f"commands have no control group of their own, so what leaves its session outlives them: {error}"
        if text not in self.problems:
            log.warning("commands_without_group", error=str(error))
        self.problems = (text,)


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


async def _started(
    command: Sequence[str], environment: Mapping[str, str], group: Group | None
) -> tuple[Process, asyncio.Task[bytes]]:
    """And its output, by a pipe of our own: with one of theirs the end of a process counts once nobody has the pipe.
    Raises OSError."""
    enter = [sys.executable, "-I", "-S", "-c", ENTER, group.entrance] if group is not None else []
    read, write = os.pipe()
    try:
        child = await asyncio.create_subprocess_exec(
            *enter,
            *command,
            stdin=DEVNULL,
            stdout=write,
            stderr=write,
            env={"PATH": PATH, **environment},
            start_new_session=True,
        )
    except BaseException:
        os.close(read)
        raise
    finally:
        os.close(write)
    return child, asyncio.create_task(_output(read))


async def _output(pipe: int) -> bytes:
    """The first bytes; the rest is read and dropped."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb", 0)
    )
    kept = b""
    try:
        while chunk := await reader.read(1 << 14):
            kept += chunk[: MOST_OUTPUT_BYTES - len(kept)]
    finally:
        transport.close()
    return kept


async def _said(output: asyncio.Task[bytes]) -> str:
    """Its pipe is closed once all of it has ended; who took it out of the group is not waited for."""
    await asyncio.wait([output], timeout=OUTPUT_S)
    output.cancel()
    return printable(output.result().decode("utf-8", "replace").strip()) if output.done() else ""


async def _end(child: Process, group: Group | None) -> list[int]:
    """Nothing of it stays but what cannot be ended."""
    try:
        return await _ended(child, group or Session(child))
    except OSError as error:
        log.error("command_not_ended", pid=child.pid, error=str(error))
        return [child.pid]


async def _without(group: Group | None) -> None:
    """One that is not empty is for the next life."""
    if group is not None:
        with suppress(OSError):
            await asyncio.to_thread(group.remove)


async def _ended(child: Process, members: Group) -> list[int]:
    if child.returncode is None:
        await asyncio.to_thread(members.signal, signal.SIGTERM)
        await _left(child, members, GRACE_S)
    for _ in range(round(KILLED_S / LOOK_S)):
        await asyncio.to_thread(members.kill)
        if not (left := await _left(child, members, LOOK_S)):
            break
    return left


async def _left(child: Process, members: Group, limit_s: float) -> list[int]:
    """What has not ended after this time."""

    async def ended() -> None:
        await child.wait()
        while await asyncio.to_thread(members.members):  # noqa: ASYNC110  # the kernel rings no bell
            await asyncio.sleep(LOOK_S)

    # Also for who is being cancelled, where asyncio.timeout does not end by itself before Python 3.11.3.
    with suppress(TimeoutError):
        await asyncio.wait_for(ended(), limit_s)
    return await asyncio.to_thread(members.members)

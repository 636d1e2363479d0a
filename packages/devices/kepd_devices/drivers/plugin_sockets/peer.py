# SPDX-License-Identifier: Apache-2.0
"""Who listens on a socket, and in which control group: asked of the kernel, not of the process."""

import os
import select
import socket
import struct
from pathlib import Path

from agent.model.devices.plugin import PluginPeer
from agent.model.finding import printable

CREDENTIALS = struct.Struct("3i")
# Since Linux 6.5: the process itself, where its number may be another's by now.
SO_PEERPIDFD = 77
MOST_BYTES = 65_536
PROC = Path("/proc")


def peer_of(connection: socket.socket) -> PluginPeer:
    """Blocking. Raises OSError; a group that cannot be told is empty."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, user, _ = CREDENTIALS.unpack(raw)
    try:
        held = _held(connection, pid)
    except OSError:
        return PluginPeer(user)
    try:
        return PluginPeer(user, group_of(pid, user, held))
    finally:
        os.close(held)


def _held(connection: socket.socket, pid: int) -> int:
    """Its process. Raises OSError where it has ended, or is of another space of numbers."""
    if pid <= 0:
        raise ProcessLookupError(f"process {pid} cannot be seen from here")
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


def group_of(pid: int, user: int, held: int, proc: Path = PROC) -> str:
    """What is read counts only if the process that is held has not ended since: then the number was its own. One of
    another user took the number before."""
    place = proc / str(pid)
    try:
        with (place / "cgroup").open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8", "replace")
        is_its_own = place.stat().st_uid == user
    except OSError:
        return ""
    ended = select.poll()
    ended.register(held, select.POLLIN)
    return "" if ended.poll(0) or not is_its_own else _told(text)


def _told(text: str) -> str:
    """The deepest one that any hierarchy has: with version 1 some leave processes at the root."""
    paths = [line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2]
    return printable(max(paths, key=lambda one: (one.count("/"), len(one)), default=""))

# SPDX-License-Identifier: Apache-2.0
"""Unix sockets at a path: taking a stale one over, refusing a live one, rights before anybody can connect.

Never: removes a socket that a process listens on, or anything that is not a socket.
"""

import os
import socket
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

from agent.api.peer import peer_of

BACKLOG = 4096
PROBE_LIMIT_S = 1.0
LONGEST_PATH_BYTES = 107
# The kernel's form of an access list: a version, then tag, rights and id of each entry.
ACL, ACL_VERSION = "system.posix_acl_access", 2
ACL_HEAD, ACL_ENTRY = struct.Struct("<I"), struct.Struct("<HHI")
OWNER, OWN_GROUP, GROUP, MASK, OTHERS = 1, 4, 8, 16, 32
NO_ID = 0xFFFFFFFF


class PathTaken(Exception):
    """The path cannot be listened on; the text says who or what is there."""


def make_directory(path: Path, mode: int) -> None:
    """A directory for our own files. One that exists keeps its rights, but must be safe to use."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=mode)
    except FileExistsError:
        _check_directory(path)
        return
    path.chmod(mode)


def admit(path: str, gids: Sequence[int]) -> None:
    """Let these groups use a socket or directory as its own group may. The first owns it, the others are on its access
    list; without any, the group is root's. Raises OSError."""
    first, *others = gids or (0,)
    found = Path(path).stat()
    if found.st_gid != first:
        os.chown(path, -1, first)
    mode = stat.S_IMODE(found.st_mode)
    if not others:
        if ACL in os.listxattr(path):
            os.removexattr(path, ACL)
        return
    group = mode >> 3 & 7
    entries = [(OWNER, mode >> 6, NO_ID), (OWN_GROUP, group, NO_ID)]
    entries += [(GROUP, group, gid) for gid in sorted(others)]
    entries += [(MASK, group, NO_ID), (OTHERS, mode & 7, NO_ID)]
    os.setxattr(path, ACL, ACL_HEAD.pack(ACL_VERSION) + b"".join(ACL_ENTRY.pack(*one) for one in entries))


def _check_directory(path: Path) -> None:
    entry = path.stat()
    if not stat.S_ISDIR(entry.st_mode):
        raise PathTaken(f"{path} exists and is not a directory; move it away or choose another path")
    if entry.st_uid not in (os.geteuid(), 0) or entry.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PathTaken(
            f"{path} belongs to uid {entry.st_uid} with mode {stat.filemode(entry.st_mode)}; expected a directory of "
            f"uid {os.geteuid()} that no other user may write to"
        )


def check_length(path: Path) -> None:
    if len(os.fsencode(path)) > LONGEST_PATH_BYTES:
        raise PathTaken(f"{path} is longer than the {LONGEST_PATH_BYTES} bytes a unix socket path may have")


def listen_at(path: Path, mode: int) -> socket.socket:
    """A listening socket at the path. A dead one that lies there is replaced."""
    check_length(path)
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        previous = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(previous)
        path.chmod(mode)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PathTaken(f"{path} cannot be listened on: {error.strerror}") from error
    return listener


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise PathTaken(f"{path} cannot be inspected: {error.strerror}") from error
    if not stat.S_ISSOCK(kind):
        raise PathTaken(f"{path} exists and is not a socket; move it away or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(PROBE_LIMIT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise PathTaken(f"{path} is a socket that does not answer: {error}; is its process stopped?") from error
        raise PathTaken(f"{path} is in use by {peer_of(probe)}; stop that process or choose another path")

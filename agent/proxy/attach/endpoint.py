# SPDX-License-Identifier: Apache-2.0
"""The path at which a kubelet finds the proxy: lock, socket, and the symlink for the kubelet.

The lock is taken before anything is bound, and the kernel frees it with its holder. The link is replaced in one step,
so that a kubelet finds the old or the new end of it and never none.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from agent.api.socket_path import PathTaken, listen_at, make_directory
from agent.kit.plane_lock import take_lock

log = structlog.get_logger(plane="proxy")

DIRECTORY_MODE = 0o700
SOCKET_MODE = 0o660


class ProxyEndpoint:
    """`link` may be None: the kubelet is given the socket itself. `activated` is the socket of a service manager: it
    listens while this process is replaced, so that a kubelet waits in line instead of being refused."""

    def __init__(
        self, path: Path, link: Path | None, runtime_path: Path, activated: socket.socket | None = None
    ) -> None:
        self._path = path
        self._link = link
        self._runtime_path = runtime_path
        self._activated = activated
        self._activated_identity = None if activated is None else _identity(path)
        self._identity: tuple[int, int, int] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone at this path. Raises PlaneTaken."""
        make_directory(self._path.parent, DIRECTORY_MODE)
        path = self._path.with_suffix(".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            take_lock(lock, path, f"is the proxy at {self._path}")
            # The file stays: were it removed, two could each hold the lock of another file.
            yield
        finally:
            os.close(lock)

    def listen(self) -> socket.socket:
        """The socket, with the owner and group of the runtime's. Raises PathTaken."""
        if self._activated is not None and _identity(self._path) == self._activated_identity is not None:
            self._identity = self._activated_identity
            return self._activated.dup()
        try:
            like = self._runtime_path.stat()
            uid, gid = like.st_uid, like.st_gid
        except OSError:
            uid, gid = -1, -1
        listener = listen_at(self._path, SOCKET_MODE)
        if uid >= 0:
            os.chown(self._path, uid, gid)
        self._identity = _identity(self._path)
        return listener

    def point_link(self) -> None:
        """Lead the kubelet here. Raises PathTaken."""
        link = self._link
        if link is None or self._leads_here(link):
            return
        if link.exists() and not link.is_symlink():
            raise PathTaken(f"{link} exists and is not a symlink; move it away or set proxy.link to another path")
        make_directory(link.parent, DIRECTORY_MODE)
        draft = link.with_name(f".{link.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.symlink_to(self._path)
        draft.replace(link)
        log.info("proxy_link_pointed", link=str(link), socket=str(self._path))

    def state(self) -> str:
        """`ours`, `superseded` (the link leads elsewhere), or `lost` (the socket is gone or another's)."""
        if _identity(self._path) != self._identity:
            return "lost"
        link = self._link
        if link is None:
            return "ours"
        if not link.is_symlink():
            self.point_link()
        return "ours" if self._leads_here(link) else "superseded"

    def leave(self) -> None:
        is_ours = self._identity is not None and _identity(self._path) == self._identity
        if is_ours and self._identity != self._activated_identity:
            self._path.unlink()

    def _leads_here(self, link: Path) -> bool:
        try:
            target = link.readlink()
        except OSError:
            return False
        return (link.parent / target) == self._path


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells a file from another at the same path. Numbers of inodes come back at once on some file systems."""
    try:
        entry = path.lstat()
    except FileNotFoundError:
        return None
    return entry.st_dev, entry.st_ino, entry.st_mtime_ns

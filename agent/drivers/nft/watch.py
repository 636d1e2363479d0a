# SPDX-License-Identifier: Apache-2.0
"""Hearing who changes our table, other than we ourselves.

Owns: the sockets that hear the kernel, and the silence around our own large transactions: with a listener the kernel
makes a notification of some kilobytes for every element and keeps all of them until the commit, which costs a first
sync seconds and hundreds of megabytes. Whether others acted during the silence is told by the generation's number.
Never: repairs; it does not know what should be there. Threads: `transaction` is for the drivers' own threads, all else
for the event loop.
"""

import asyncio
import ctypes
import errno
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

from agent.drivers.nft.commit_decoder import Commit, CommitDecoder
from agent.model.services.nft_table import TABLE, TableFamily

_GROUP = 7
_SOL_NETLINK, _JOIN, _LEAVE = 270, 1, 2
_SO_RCVBUFFORCE, _SO_ATTACH_FILTER = 33, 26
_RECEIVE_BYTES = 1 << 23
_DATAGRAM_BYTES = 1 << 16
_BULK = 256
"""From so many elements on a transaction of ours is better not listened to."""
_MOST_DATAGRAMS = 64
_MOST_COMMITS = 64
_GENERATIONS = 1 << 32


class OwnSockets:
    """What the tables of one process share: one's large transaction would weigh on the ear of the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._monitors: list[MonitorSocket] = []
        self._own_ports: set[int] = set()
        self._loads: deque[int] = deque(maxlen=16)
        self._begun = self._running = 0
        """Programs of ours that write: how many there were, and are."""

    def add_port(self, port: int) -> None:
        self._own_ports.add(port)

    def add_load(self, pid: int) -> None:
        """An nft program of ours; its port is its process id."""
        self._loads.append(pid)

    @contextmanager
    def program(self) -> Iterator[None]:
        """Around an nft program of ours: its commit in another's silence is nobody else's. For the event loop alone."""
        self._begun += 1
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def is_own(self, port: int) -> bool:
        return port in self._own_ports or port in self._loads

    @property
    def own_ports(self) -> frozenset[int]:
        return frozenset(self._own_ports)

    def add_monitor(self, monitor: "MonitorSocket") -> None:
        self._monitors.append(monitor)

    async def changes(
        self, opened: socket.socket, family: TableFamily, table: str = TABLE
    ) -> AsyncGenerator[str, None]:
        """A sentence for each transaction of others on a table. Owns the socket."""
        monitor = MonitorSocket(opened, CommitDecoder(family, self.is_own, table), self.own_ports)
        self.add_monitor(monitor)
        try:
            async with aclosing(monitor.sentences()) as sentences:
                async for sentence in sentences:
                    yield sentence
        finally:
            self._monitors.remove(monitor)
            monitor.close()

    @contextmanager
    def transaction(self, elements: int, generation: Callable[[], int]) -> Iterator[None]:
        """Around each transaction of ours: one at a time, as the kernel would have it anyway."""
        with self._lock:
            monitors = tuple(self._monitors) if elements >= _BULK else ()
            if not monitors:
                yield
                return
            for monitor in monitors:
                monitor.is_listening(False)
            own, begun = 1 + self._running, self._begun
            before = generation()
            try:
                yield
            finally:
                for monitor in monitors:
                    monitor.is_listening(True)
                if (generation() - before) % _GENERATIONS > own + self._begun - begun:
                    for monitor in monitors:
                        monitor.tell_lost()


class MonitorSocket:
    """One socket in the group. Owns it."""

    def __init__(self, opened: socket.socket, decoder: CommitDecoder, own_ports: frozenset[int]) -> None:
        self._socket = opened
        self._decoder = decoder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heard: deque[Commit] = deque(maxlen=_MOST_COMMITS)
        self._something = asyncio.Event()
        with suppress(OSError):
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        _leave_out(opened, own_ports)
        opened.setblocking(False)
        self.is_listening(True)

    async def sentences(self) -> AsyncGenerator[str, None]:
        """One for each commit of others. Never ends of itself."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)
        try:
            while True:
                await self._something.wait()
                while self._heard:
                    yield str(self._heard.popleft())
                self._something.clear()
        finally:
            self._loop.remove_reader(self._socket)
            self._loop = None

    def is_listening(self, listens: bool) -> None:
        """Join or leave the group."""
        with suppress(OSError):
            self._socket.setsockopt(_SOL_NETLINK, _JOIN if listens else _LEAVE, _GROUP)

    def tell_lost(self) -> None:
        """From another thread: something happened that was not heard."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._lose)

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        for _ in range(_MOST_DATAGRAMS):
            try:
                datagram = self._socket.recv(_DATAGRAM_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._lose()
                continue
            for commit in self._decoder.hear(datagram):
                self._heard.append(commit)
                self._something.set()

    def _lose(self) -> None:
        self._heard.append(self._decoder.lost())
        self._something.set()


def _leave_out(opened: socket.socket, ports: frozenset[int]) -> None:
    """Classic BPF: load the sender's port id of a datagram's first message; one of ours: keep nothing, else all."""
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    senders = [int.from_bytes(struct.pack("=I", port), "big") for port in sorted(ports)]
    jumps = [(jump_if_equal, len(senders) - index, 0, sender) for index, sender in enumerate(senders)]
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in ((load, 0, 0, 12), *jumps, (give, 0, 0, 0xFFFFFFFF), (give, 0, 0, 0))
    )
    kept = ctypes.create_string_buffer(program, len(program))
    opened.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program) // 8, ctypes.addressof(kept))
    )

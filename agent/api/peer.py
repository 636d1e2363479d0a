# SPDX-License-Identifier: Apache-2.0
"""Who calls: a relay in front of the gRPC server that reads the peer's credentials from the kernel.

gRPC's server for Python does not show them. So the relay accepts on the public socket, asks the kernel who connected
(SO_PEERCRED, SO_PEERGROUPS), and passes the bytes on over a connection whose own end has a random abstract name. The
server sees that name as its peer and looks up whose connection it is.

Owns: the public socket's connections and the table of names. Its tasks live in the group that `run` opens.
Never: reads more of what it passes on than where frames begin, nor trusts anything the peer says about itself.
"""

import asyncio
import pwd
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, partial
from pathlib import Path
from time import monotonic

import msgspec
import structlog

from agent.api.call_quota import MIB, Shares, is_trusted
from agent.api.graceful_goaway import HEAD, SETTINGS, ClientFrames, Parting, sent_away
from agent.model.allowance import CallerMeter, Share

log = structlog.get_logger(plane="api")

SO_PEERGROUPS = 59
# The most that Python passes; a user in more groups than fit here is known by its first group alone.
GROUP_BYTES = 1024
# Of a client's bytes less is taken at once: they may be two thousand frames, and others have their turn meanwhile.
CHUNK_BYTES, CLIENT_CHUNK_BYTES = 64 << 10, 16 << 10
# In one turn of the loop: another user's call takes some ten turns, and each may last this much longer.
TAKING_S = 0.001
HEARING_S = 2.0
# Of one user, root excepted. Calls, bytes and answers beyond it wait; a user whose connections, frames that serve no
# call, or calls given up go beyond it is cut off: each costs us more than it costs its sender (CVE-2023-44487).
METERED = {
    "calls": Share(200, 100),
    "bytes": Share(16 * MIB, 8 * MIB),
    "bytes of answers": Share(64 * MIB, 32 * MIB),
    "connections": Share(100, 20),
    "frames without a call": Share(2000, 1000),
    "calls given up": Share(200, 20),
    "last words": Share(10, 1),
}
MAX_CONNECTIONS = 256
MAX_CONNECTIONS_PER_USER = 16
# Of requests that are not answered yet; the largest is a manifest of 10 MiB, in parts.
REQUESTS_OF_USER, REQUESTS_OF_ALL = 12 * MIB, 32 * MIB
CREDENTIALS = struct.Struct("3i")


FULL = "kepd: no room for more connections"


class Peer(msgspec.Struct, frozen=True, dict=True):
    """The process at the other end, as the kernel knew it when it connected."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int] = frozenset()

    @cached_property
    def command(self) -> str:
        """Name of the program when it was first asked for, for logs; it may have ended meanwhile."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/comm").read_text("utf-8", "replace").strip()
        return "?"

    @property
    def user(self) -> str:
        """For people; a user of another name space has no name here."""
        with suppress(KeyError):
            return f"{pwd.getpwuid(self.uid).pw_name} (uid {self.uid})"
        return f"uid {self.uid}"

    def __str__(self) -> str:
        return f"uid {self.uid} (pid {self.pid}, {self.command})"


# Whose call is being answered; set for each call.
# A caller and its request, for the log: it names them when their work keeps all others waiting.
WORK: ContextVar[str] = ContextVar("WORK", default="")
CALLER: ContextVar[Peer | None] = ContextVar("caller", default=None)


def peer_of(connection: socket.socket) -> Peer:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, gid = CREDENTIALS.unpack(raw)
    try:
        listed = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUP_BYTES)
    except OSError:
        listed = b""
    groups = struct.unpack(f"{len(listed) // 4}I", listed[: len(listed) // 4 * 4])
    return Peer(pid, uid, gid, frozenset({gid, *groups}))


class PeerRelay:
    """Passes connections from a listening socket on to a private one. `upstream_of` names the private socket for a
    caller, so that what a call may cost depends on who makes it."""

    def __init__(self, listener: socket.socket, upstream_of: Callable[[Peer], Awaitable[str]]) -> None:
        self._listener = listener
        self._upstream_of = upstream_of
        self.peers: dict[str, Peer] = {}
        self._links: set[_Link] = set()
        self._meter = CallerMeter(METERED)
        self._requests = Shares(REQUESTS_OF_USER, REQUESTS_OF_ALL)
        self._connections: asyncio.TaskGroup | None = None
        self._moved = asyncio.Event()
        """Some answer went out, or a connection ended."""

    async def run(self) -> None:
        """Accept until cancelled; open connections end with it."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        broken: asyncio.Future[None] = loop.create_future()
        async with asyncio.TaskGroup() as connections:
            self._connections = connections
            loop.add_reader(self._listener, self._accept, connections, broken)
            try:
                await broken
            finally:
                self.stop_accepting()

    def stop_accepting(self) -> None:
        """Open connections go on. Who connects now waits for whoever listens next, if the socket outlives us."""
        asyncio.get_running_loop().remove_reader(self._listener)

    async def part(self, longest_s: float) -> None:
        """Take no further calls, and wait until those that were taken have their answers, or so long."""
        for link in self._links:
            link.parting.begin()
            if self._connections is not None:
                self._connections.create_task(link.answer(link.parting.farewell), name="api-farewell")
        await self._until(lambda: all(link.is_done for link in self._links), longest_s)
        # Who writes before it has read the farewell would find the pipe broken, and not that its call was never begun.
        await self._until(lambda: not self._links, HEARING_S)

    async def _until(self, is_so: Callable[[], bool], longest_s: float) -> None:
        async def settled() -> None:
            while not is_so():
                self._moved.clear()
                await self._moved.wait()

        # Not asyncio.timeout: before Python 3.11.3 none ends by itself in a task that is being cancelled, as this one.
        with suppress(TimeoutError):
            await asyncio.wait_for(settled(), longest_s)

    def _accept(self, connections: asyncio.TaskGroup, broken: "asyncio.Future[None]") -> None:
        """Each in one go: a connection that was taken from the line and then dropped would be lost to its client. As
        many in one turn as others can wait for: a full line turns away whoever comes next."""
        until_s = monotonic() + TAKING_S
        while monotonic() < until_s:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.stop_accepting()
                if not broken.done():
                    broken.set_exception(error)
                return
            self._take(connection, connections)

    def _take(self, connection: socket.socket, connections: asyncio.TaskGroup) -> None:
        now_s = monotonic()
        uid = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[1]
        if self._meter.barred(uid, now_s) and self._meter.take(uid, "last words", now_s):
            # It has heard it; hanging up is all that a storm of connections gets.
            connection.close()
            return
        peer = peer_of(connection)
        if refusal := self._refusal(peer):
            # Said in the first words of a server, if they find room; nothing waits for that.
            connection.setblocking(False)
            with suppress(OSError):
                connection.send(HEAD.pack(0, 0, SETTINGS, 0, 0) + sent_away(refusal))
            connection.close()
            return
        upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        link = _Link(connection, upstream, self._moved.set, partial(self._requests.take, peer.uid))
        link.uid, link.charge = peer.uid, partial(self._charge, peer)
        if not is_trusted(peer.uid):
            link.charge_answer = partial(self._charge_answer, peer.uid)
        # Known from here on: whoever parts a moment later waits for its call too, and the next one is counted.
        self._links.add(link)
        name = f"kepd-{secrets.token_hex(16)}"
        self.peers[f"unix-abstract:{name}"] = peer
        connections.create_task(self._relay(link, peer, name), name="api-connection")

    def _refusal(self, peer: Peer) -> str:
        """Nobody can take all connections: each user has a share, and root comes on top of all others."""
        if peer.uid == 0:
            return "" if len(self.peers) < 2 * MAX_CONNECTIONS else FULL
        now_s = monotonic()
        if why := self._meter.barred(peer.uid, now_s):
            return f"kepd: uid {peer.uid} is cut off for a while: {why}"
        if self._meter.take(peer.uid, "connections", now_s):
            return self._cut_off(peer, "connections")
        if sum(known.uid == peer.uid for known in self.peers.values()) >= MAX_CONNECTIONS_PER_USER:
            return f"kepd: uid {peer.uid} has {MAX_CONNECTIONS_PER_USER} connections already"
        return "" if len(self.peers) < MAX_CONNECTIONS else FULL

    def _charge(self, peer: Peer, asked: ClientFrames, size: int) -> tuple[str, float]:
        """For what came on one connection: why its user is cut off, or how long it waits before it is read again."""
        if is_trusted(peer.uid):
            return "", 0.0
        now_s = monotonic()
        if why := self._meter.barred(peer.uid, now_s):
            return why, 0.0
        for what, count in (("frames without a call", asked.others), ("calls given up", asked.resets)):
            if count and self._meter.take(peer.uid, what, now_s, count):
                return self._cut_off(peer, what), 0.0
        waits = [self._meter.take(peer.uid, "bytes", now_s, size)]
        if asked.calls:
            waits.append(self._meter.take(peer.uid, "calls", now_s, asked.calls))
        return "", max(waits)

    def _charge_answer(self, uid: int, size: int) -> float:
        """Streams of logs and events, and large lists: how long their user waits for more of any of them."""
        return self._meter.take(uid, "bytes of answers", monotonic(), size)

    def _cut_off(self, peer: Peer, what: str) -> str:
        """All connections of the user: one of them would go on where another was stopped."""
        share = self._meter.shares[what]
        fault = f"more {what} than {share.at_once:g} at once and {share.a_second:g} a second"
        self._bar(peer, fault)
        for link in self._links:
            if link.uid == peer.uid:
                link.cut(fault)
        return fault

    def _bar(self, peer: Peer, fault: str) -> None:
        if barred_s := self._meter.bar(peer.uid, fault, monotonic()):
            log.warning("api_caller_cut_off", uid=peer.uid, pid=peer.pid, cause=fault, barred_s=barred_s)

    async def _relay(self, link: "_Link", peer: Peer, name: str) -> None:
        try:
            await link.connect(name, await self._upstream_of(peer))
            async with asyncio.TaskGroup() as directions:
                directions.create_task(link.questions(), name="api-in")
                directions.create_task(link.answers(), name="api-out")
            if link.fault:
                self._bar(peer, link.fault)
        except OSError:
            return
        finally:
            self.peers.pop(f"unix-abstract:{name}", None)
            link.close()
            self._links.discard(link)
            self._moved.set()


class _Link:
    """One connection in two parts. Each direction goes on until its source ends; then the other end hears that."""

    def __init__(
        self, client: socket.socket, server: socket.socket, moved: Callable[[], None], take: Callable[[int], bool]
    ) -> None:
        """`take` asks for room for so many more bytes of requests."""
        self.parting = Parting()
        self.uid = -1
        self.charge: Callable[[ClientFrames, int], tuple[str, float]] = lambda _asked, _size: ("", 0.0)
        self.charge_answer: Callable[[int], float] = lambda _size: 0.0
        self.fault = ""
        """What is wrong with its own bytes; a user that took too much was dealt with by the relay."""
        self._is_cut = False
        self._take = take
        self._held = 0
        self._moved = moved
        self._client, self._server = client, server
        self._answering = asyncio.Lock()
        client.setblocking(False)
        server.setblocking(False)

    async def connect(self, name: str, path: str) -> None:
        """To the server at `path`, which sees us as `name`."""
        self._server.bind(f"\0{name}")
        await asyncio.get_running_loop().sock_connect(self._server, path)

    def close(self) -> None:
        self._take(-self._held)
        self._held = 0
        self._client.close()
        self._server.close()

    @property
    def is_done(self) -> bool:
        """Whether all answers are on their way to the client."""
        return self.parting.is_done and not self._answering.locked()

    async def questions(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while chunk := await loop.sock_recv(self._client, CLIENT_CHUNK_BYTES):
                passed = self.parting.from_client(chunk)
                self.fault = self.parting.fault or self._overdraft()
                if self.fault:
                    self.cut(self.fault)
                    break
                excess, wait_s = self.charge(self.parting.asked(), len(chunk))
                if excess or self._is_cut:
                    break
                await loop.sock_sendall(self._server, passed)
                self._leave()
                # Neither call above gives others a turn while there is something to read and room to write.
                await asyncio.sleep(wait_s)
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def cut(self, text: str) -> None:
        """Both ways, or one that does not read would keep its connection and its share."""
        self._is_cut = True
        with suppress(OSError):
            self._client.send(self.parting.cut_off(f"kepd: {text}"))
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _leave(self) -> None:
        """Hang up on a client that has read the farewell. It may keep its end open until another process answers its
        call, and that process begins only when this one has ended."""
        if self.is_done and self.parting.was_heard:
            with suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    def _overdraft(self) -> str:
        """Counted by frames as they are announced, so that what is cut off was never buffered."""
        if not self._take(self.parting.held_bytes - self._held):
            return f"no room for {self.parting.held_bytes} bytes of unanswered requests"
        self._held = self.parting.held_bytes
        return ""

    async def answers(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            while chunk := await loop.sock_recv(self._server, CHUNK_BYTES):
                await self.answer(partial(self.parting.from_server, chunk))
                self._leave()
                await asyncio.sleep(self.charge_answer(len(chunk)))
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)

    async def answer(self, make: Callable[[], bytes]) -> None:
        """To the client, what is right when it is this one's turn."""
        async with self._answering:
            data = make()
            if data:
                with suppress(OSError):
                    await asyncio.get_running_loop().sock_sendall(self._client, data)
            self._overdraft()
        self._moved()

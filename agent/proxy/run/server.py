# SPDX-License-Identifier: Apache-2.0
"""The socket that a kubelet connects to: one link per connection, until the end.

Its tasks live in the group that `run` opens. Never: answers when the runtime does not: a client that cannot be
connected through is hung up on, which its gRPC reports as it reports a runtime that is away.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog

from agent.model.allowance import Allowance
from agent.model.clock import Clock
from agent.model.span import Traces
from agent.proxy.run.call import CallJudge
from agent.proxy.run.call_traces import CallTraces
from agent.proxy.run.link import ProxyConnection
from agent.proxy.run.link_limits import CONNECTIONS, BufferBudget
from agent.proxy.run.outage import Outage, Subscribe

log = structlog.get_logger(plane="proxy")

CONNECT_S = 5.0
TURN_S = 0.05
LAST_WORDS_S, HEARING_S = 3.0, 1.5
# A kubelet has two. Each costs another one to the runtime, so that one process cannot take those of all.
MOST_LINKS, MOST_OF_PROCESS = 256, 128
# In one turn of the loop, and in the line before it.
TAKEN_AT_ONCE, BACKLOG = 8, 512
CREDENTIALS = struct.Struct("3i")


class ProxyServer:
    def __init__(
        self,
        runtime_path: str,
        judge: CallJudge,
        clock: Clock,
        subscribe: Subscribe | None = None,
        traces: Traces | None = None,
    ) -> None:
        """`subscribe`: the runtime's events, for streams that outlive its restart. None: they end with it."""
        self._traces = traces
        self._runtime_path = runtime_path
        self._subscribe = subscribe
        self._clock = clock
        self._judge = judge
        self._group: asyncio.TaskGroup | None = None
        self._server: asyncio.Server | None = None
        self.links: set[ProxyConnection | Outage] = set()
        self.accepted = 0
        self._room = BufferBudget()
        self._callers: Counter[int] = Counter()
        """Links by process."""
        self._tells = Allowance(1, 0.1, clock.now_s())

    async def run(self, listener: socket.socket, watch: Callable[[], Awaitable[None]]) -> None:
        """Serve until `watch` ends, which it does when the socket is no longer ours, or until cancelled."""
        loop = asyncio.get_running_loop()
        server = self._server = await loop.create_unix_server(self._accepted, sock=listener, backlog=TAKEN_AT_ONCE)
        # asyncio takes as many in one go as it lets wait, and these are two things.
        listener.listen(BACKLOG)
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await watch()
        finally:
            self._group = None
            server.close()
            for link in list(self.links):
                link.close()

    async def drain(self, longest_s: float) -> None:
        """Let what is under way end, while new calls are still served; then send the clients elsewhere."""
        under_way = [call for link in self.links for call in link.awaited()]
        until_s = self._clock.now_s() + longest_s
        # A kubelet never pauses for long, so this does not wait for a moment without any call.
        while not all(call.is_over for call in under_way) and self._clock.now_s() < until_s:
            await self._clock.sleep(TURN_S)
        if self._server is not None:
            self._server.close()
        await self.send_away(LAST_WORDS_S)

    async def send_away(self, longest_s: float) -> None:
        """Ask all clients to connect anew, and wait until their last calls have ended.

        A client without calls hangs up once it has heard it; until then it may begin another one, which would be lost.
        """
        for link in list(self.links):
            link.say_goaway()
        began_s = busy_s = self._clock.now_s()
        while (now_s := self._clock.now_s()) - began_s < longest_s:
            if self.busy:
                busy_s = now_s
            # A client that meets a closed connection before it has read its last answer takes the call for failed.
            elif not self.links or now_s - busy_s >= HEARING_S:
                break
            await self._clock.sleep(TURN_S)

    @property
    def busy(self) -> int:
        return sum(len(link.awaited()) for link in self.links)

    def _accepted(self) -> asyncio.BaseProtocol:
        # Of each connection, for its table of headers is its own.
        traces = CallTraces(self._traces, self._clock) if self._traces is not None else None
        link = ProxyConnection(self._judge, self._connect, self._lost, self._room, self._outlives, traces)
        self.links.add(link)
        self.accepted += 1
        return link.front

    def _lost(self, link: ProxyConnection) -> None:
        self.links.discard(link)
        self._callers[link.pid] -= 1
        if self._callers[link.pid] <= 0:
            del self._callers[link.pid]

    def _connect(self, link: ProxyConnection) -> None:
        link.pid = _pid_of(link)
        self._callers[link.pid] += 1
        is_full = len(self.links) > MOST_LINKS or self._callers[link.pid] > MOST_OF_PROCESS
        is_full |= self._room.meter.take(link.pid, CONNECTIONS, self._clock.now_s()) > 0
        if is_full and self._tells.take(self._clock.now_s()):
            log.warning("proxy_connections_refused", pid=link.pid, connections=len(self.links))
        if self._group is None or is_full:
            link.close()
            return
        self._group.create_task(self._join(link), name="proxy-connect")

    async def _join(self, link: ProxyConnection) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_unix_connection(lambda: link.back, self._runtime_path)
        except (OSError, TimeoutError) as error:
            log.info("proxy_runtime_unreachable", path=self._runtime_path, error=str(error) or "no answer")
            link.close()

    def _outlives(self, outage: Outage) -> bool:
        if self._group is None or self._subscribe is None:
            return False
        self.links.add(outage)
        self._group.create_task(self._follow(outage, self._subscribe), name="proxy-outage")
        return True

    async def _follow(self, outage: Outage, subscribe: Subscribe) -> None:
        log.info("proxy_events_kept", streams=len(outage.calls))
        try:
            async with asyncio.TaskGroup() as group:
                following = group.create_task(outage.follow(subscribe, self._clock))
                await outage.is_over.wait()
                following.cancel()
        finally:
            outage.close()
            self.links.discard(outage)


def _pid_of(link: ProxyConnection) -> int:
    """The process that connected; 0 where the kernel does not know it here."""
    client = link.front.transport.get_extra_info("socket") if link.front.transport is not None else None
    if client is None:
        return 0
    pid: int = CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))[0]
    return pid

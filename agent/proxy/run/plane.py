# SPDX-License-Identifier: Apache-2.0
"""The proxy plane: recover, listen, serve, end without breaking what is under way.

run ─┬─ follow events ─► ledger        recover (5 s at most), then accept
     ├─ watchdog
     └─ server ─► link per client ─► judge
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec
import structlog
from prometheus_client.core import Metric

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.pods.ending import EndingPods
from agent.model.runtime.event import RuntimeEvents
from agent.model.span import Traces
from agent.proxy.gates.kubelet_advice import KubeletSettings
from agent.proxy.ports import Asker, Kubelet, ProxyRecords, ProxyRuntime, Pulls
from agent.proxy.run.event_follower import EventFollower
from agent.proxy.run.event_source import EventSource
from agent.proxy.run.figures import Figures
from agent.proxy.run.held_calls import HeldCalls
from agent.proxy.run.judge import GateJudge
from agent.proxy.run.readiness import Readiness
from agent.proxy.run.server import ProxyServer
from agent.proxy.run.state import ProxySettings, ProxyState

log = structlog.get_logger(plane="proxy")

RECOVERY_S = 5.0
LOOK_S = 1.0
KUBELET_S = 10.0
SENT_AWAY_S = 2.0
# How long an end waits for what is held.
HOLDS_END_S = 120.0


class ProxyEndpoint(Protocol):
    """Our socket and the link to it. `state` is ours, superseded (the link leads elsewhere) or lost."""

    def listen(self) -> socket.socket: ...

    def point_link(self) -> None: ...

    def state(self) -> str: ...

    def leave(self) -> None: ...


class SocketLost(OSError):
    """Our socket was removed or replaced: no client can reach us any more."""


class ProxyParts(msgspec.Struct, frozen=True, kw_only=True):
    runtime: ProxyRuntime
    events: RuntimeEvents
    asker: Asker
    records: ProxyRecords
    kubelet: Kubelet
    clock: Clock
    pulls: Pulls | None
    endpoint: ProxyEndpoint
    tell: Callable[[Event], None]
    settings: Callable[[], ProxySettings]
    runtime_path: str
    drain_s: float = 30.0
    endings: EndingPods = msgspec.field(default_factory=EndingPods)
    """Empty where the pods of the node are not followed."""
    traces: Traces | None = None


class ProxyPlane:
    """`state` and `server` are those of the present run, or of the last."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self.figures = Figures()
        self.state = self._new_state()
        self.server: ProxyServer | None = None
        self.held_calls: HeldCalls | None = None
        self.kubelet: KubeletSettings | None = None
        self.kubelet_error = "not read yet"
        self.is_recovered = False

    def _new_state(self) -> ProxyState:
        parts = self._parts
        return ProxyState(parts.clock, parts.tell, parts.settings, self.figures, parts.endings)

    async def run(self, report: Report) -> None:
        """Until cancelled; then until what is held has ended."""
        state = self.state = self._new_state()
        self.is_recovered = False
        readiness = Readiness(state, self._parts.runtime, self._parts.asker)
        held = self.held_calls = HeldCalls(state, self._parts.runtime, self._pulls)
        follower = EventFollower(state, self._parts.runtime, readiness, self._parts.events, self._parts.records)
        judge = GateJudge(state, held, readiness)
        source = EventSource(self._parts.runtime, self._parts.clock)
        server = self.server = ProxyServer(
            self._parts.runtime_path, judge, self._parts.clock, source.messages, self._parts.traces
        )
        await follower.load_masks()
        with self._parts.endings.followed_by(held.pod_ends):
            await self._run_together(state, held, follower, server, report)

    async def _run_together(
        self, state: ProxyState, held: HeldCalls, follower: EventFollower, server: ProxyServer, report: Report
    ) -> None:
        async with asyncio.TaskGroup() as group:
            state.group = group
            try:
                work = (follower.follow(), held.watch(), self._read_kubelet())
                tasks = [group.create_task(one) for one in work]
                tasks.append(group.create_task(self._recover(follower)))
                await self._recovered_or_late()
                await self._serve(group, server, held, report)
            finally:
                state.group = None
                for task in tasks:
                    task.cancel()

    async def _recover(self, follower: EventFollower) -> None:
        await follower.recover()
        self.is_recovered = True
        follower.end_jobs()

    async def _recovered_or_late(self) -> None:
        """A kubelet that finds no socket exits, so it finds one even where the runtime does not answer yet."""
        late_s = self._parts.clock.now_s() + RECOVERY_S
        while not self.is_recovered and self._parts.clock.now_s() < late_s:
            await self._parts.clock.sleep(0.02)
        if not self.is_recovered:
            log.warning("proxy_recovery_late", waited_s=RECOVERY_S)

    async def _serve(self, group: asyncio.TaskGroup, server: ProxyServer, held: HeldCalls, report: Report) -> None:
        listener = self._parts.endpoint.listen()
        try:
            serving = group.create_task(server.run(listener, lambda: self._watch(server, report)), name="proxy-server")
            self._parts.endpoint.point_link()
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                # Asked to end; unless something failed, which ends all tasks of the group at once.
                if not serving.done() and not serving.cancelling():
                    await self._drain(server, held, report)
                raise
            finally:
                serving.cancel()
                await asyncio.wait([serving])
        finally:
            self._parts.endpoint.leave()
            listener.close()

    async def _drain(self, server: ProxyServer, held: HeldCalls, report: Report) -> None:
        """The end: no new holds; new calls pass, for a kubelet without a runtime is worse than one without order."""
        self.state.is_ending = True
        report.degraded("stopping: waiting for running calls")
        if self._parts.endpoint.state() == "superseded":
            await server.send_away(HOLDS_END_S + self._parts.drain_s)
            return
        self.state.refuses_pulls = True
        await held.settle(HOLDS_END_S)
        await server.drain(self._parts.drain_s)

    async def _watch(self, server: ProxyServer, report: Report) -> None:
        """Ends with SocketLost; reports meanwhile."""
        was_superseded = False
        while True:
            state = self._parts.endpoint.state()
            if state == "lost":
                raise SocketLost("the proxy's socket was removed or replaced; kepd creates it again")
            if state == "superseded" and not was_superseded:
                log.info("proxy_superseded")
                self.state.is_ending = was_superseded = True
                await server.send_away(SENT_AWAY_S)
            elif state == "ours" and was_superseded:
                self.state.is_ending = was_superseded = False
            self._report(report, server, is_superseded=was_superseded)
            await self._parts.clock.sleep(LOOK_S)

    def _report(self, report: Report, server: ProxyServer, *, is_superseded: bool) -> None:
        holds = len(self.state.holds)
        summary = f"{len(server.links)} connections, {holds} held, {len(self.state.ledger)} pods with annotations"
        if is_superseded:
            report.ready(f"the link points elsewhere; {summary}")
        elif not self.is_recovered:
            report.degraded("the runtime has not reported what runs; calls pass, gates are open")
        else:
            report.ready(summary)

    # the kubelet's own settings

    async def _read_kubelet(self) -> None:
        while True:
            await self.read_kubelet()
            await self._parts.clock.sleep(KUBELET_S)

    async def read_kubelet(self) -> None:
        """What it says now; an unreadable one may serialize its pulls, so those are not held."""
        try:
            self.kubelet, self.kubelet_error = await self._parts.kubelet.settings(), ""
        except (OSError, ValueError) as error:
            self.kubelet, self.kubelet_error = None, str(error)

    @property
    def has_pulls(self) -> bool:
        return self._parts.pulls is not None

    def _pulls(self) -> Pulls | None:
        is_allowed = self.kubelet is not None and self.kubelet.may_hold_pulls
        return self._parts.pulls if is_allowed else None

    def families(self) -> Iterable[Metric]:
        links = len(self.server.links) if self.server is not None else 0
        holds, now_s = self.state.holds.values(), self._parts.clock.now_s()
        oldest_s = max((now_s - hold.since_s for hold in holds), default=0.0)
        return self.figures.families((hold.reason for hold in holds), oldest_s, links)

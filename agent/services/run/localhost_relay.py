# SPDX-License-Identifier: Apache-2.0
"""Serves node ports on localhost: takes TCP connections and passes them on to endpoints.

Loopback addresses cannot leave the host by rules without letting in what others send to them, so nothing of the kernel
is changed for this. It is for tools on the node, not for load: at most 512 connections at once, 256 to a port. One more
ends that which has been idle longest, of the port that has most, and is reset where none has been idle for a while.
A listener opens after the first sync that has its port. A port that another program has is reported and tried again
after each sync. Where nobody serves, and where the client may not enter, a connection is reset.
"""

import asyncio
import ipaddress
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec
import structlog

from agent.model.clock import Clock
from agent.model.event import Event
from agent.model.services.nft_table import Family
from agent.model.services.report import RuleReport, TraceStep
from agent.model.services.service import ServiceKey
from agent.services.nftables.elements import PORT
from agent.services.nftables.trace import Outcome, Packet
from agent.services.routes.frontends import PortPlan
from agent.services.routes.relays import (
    LOCALHOST,
    LOOPBACK,
    RelayedPort,
    Returning,
    choose,
    node_ports,
    relayed_ports,
    unrelayed_ports,
)
from agent.services.ruleset import Beside, SyncReport
from agent.services.run.plane import ServicesPlane

log = structlog.get_logger(plane="services")

MOST_CONNECTIONS, MOST_OF_PORT = 512, 256
IDLE_S = 5.0
BUFFER_BYTES = 32 * 1024
MOST_TRIES = 3
CONNECT_S = 5.0
BACKLOG = 256
AT_ONCE = struct.pack("ii", 1, 0)
"""SO_LINGER that makes closing a reset."""

Spot = tuple[Family, int]


class RelayCounts(msgspec.Struct):
    """Connections by what became of them."""

    relayed: int = 0
    unserved: int = 0
    crowded: int = 0


class _Link(msgspec.Struct, eq=False):
    """A connection, and when something last came by it."""

    spot: Spot
    task: "asyncio.Task[None]"
    moved_s: float


class LocalhostRelay(Beside):
    """A follower of the plane, and a task. Does nothing where `localhost` is not among the addresses of node ports."""

    def __init__(
        self,
        plane: ServicesPlane,
        clock: Clock,
        tell: Callable[[Event], None],
        draw: Callable[[int], int] = random.randrange,
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._tell = tell
        self._draw = draw
        self.counts = RelayCounts()
        self._ports: dict[Family, dict[ServiceKey, tuple[int, ...]]] = {family: {} for family in plane.families}
        self._wanted: dict[Spot, ServiceKey] = {}
        self._open: dict[Spot, asyncio.Server] = {}
        self._failed: dict[Spot, str] = {}
        self._returning: dict[Spot, Returning] = {}
        self._links: set[_Link] = set()
        self._crowded: set[Spot] = set()
        """Ports that had more connections than they may have."""
        self._known: dict[Spot, tuple[object, RelayedPort]] = {}
        self._changed = asyncio.Event()
        self._is_on: dict[Family, bool] = dict.fromkeys(plane.families, False)

    def __repr__(self) -> str:
        return f"LocalhostRelay({len(self._open)} ports, {len(self._links)} connections)"

    def follow(self, family: Family, report: SyncReport) -> None:
        """What is to be listened on changes with Services that changed, and with the setting."""
        sync = self._plane.families[family]
        is_on = sync.facts.node.has_localhost
        if not is_on and not self._is_on[family]:
            return
        keys: Iterable[ServiceKey] = report.changed.keys()
        if is_on != self._is_on[family]:
            keys = {*self._ports[family], *(plan.key for plan in sync.desired.plans())}
            self._is_on[family] = is_on
        for key in keys:
            self._want(family, key, is_on=is_on)
        if self._failed:
            self._changed.set()

    def _want(self, family: Family, key: ServiceKey, *, is_on: bool) -> None:
        plan = self._plane.families[family].desired.plan_of(key) if is_on else None
        had = self._ports[family].pop(key, ())
        has = tuple(one.port for one, _ in node_ports(plan) if one.protocol == "TCP") if plan is not None else ()
        if has:
            self._ports[family][key] = has
        for port in had:
            if port not in has and self._wanted.get((family, port)) == key:
                del self._wanted[family, port]
                self._known.pop((family, port), None)
                self._crowded.discard((family, port))
                self._returning.pop((family, port), None)
                self._changed.set()
        for port in has:
            if self._wanted.get((family, port)) != key:
                self._wanted[family, port] = key
                self._changed.set()

    async def run(self) -> None:
        """For ever; at the end all are closed."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._reconcile()
        finally:
            for server in self._open.values():
                server.close()
            self._open.clear()
            for one in self._links:
                one.task.cancel()
            self._changed.set()

    async def _reconcile(self) -> None:
        for spot in [spot for spot in self._open if spot not in self._wanted]:
            self._open.pop(spot).close()
        self._failed = {spot: text for spot, text in self._failed.items() if spot in self._wanted}
        for spot in [spot for spot in self._wanted if spot not in self._open]:
            await self._listen(spot)

    async def _listen(self, spot: Spot) -> None:
        family, port = spot

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(spot, reader, writer)

        try:
            listener = _listener(family, port)
            self._open[spot] = await asyncio.start_server(accept, sock=listener, limit=BUFFER_BYTES, backlog=BACKLOG)
        except OSError as error:
            self._refused(spot, error.strerror or str(error))
            return
        self._failed.pop(spot, None)

    def _refused(self, spot: Spot, reason: str) -> None:
        if self._failed.get(spot) == reason:
            return
        self._failed[spot] = reason
        key, (family, port) = self._wanted[spot], spot
        log.warning("service_localhost_port_failed", service=str(key), family=family, port=port, error=reason)
        self._tell(
            Event(
                is_warning=True,
                reason="LocalhostPortTaken",
                message=_told_failure(spot, reason),
                plane="services",
                namespace=key.namespace,
                object_name=key.name,
            )
        )

    async def _accept(self, spot: Spot, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._make_room(spot):
            _reset(writer)
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - it is run by one
        link = _Link(spot, task, self._clock.now_s())
        self._links.add(link)
        try:
            # Whoever ends it here cancels it, which streams would report as a fault.
            with suppress(asyncio.CancelledError):
                await self._relay(link, reader, writer)
        finally:
            self._links.discard(link)

    def _make_room(self, spot: Spot) -> bool:
        """Whether there is room for one more, where need be in place of an idle one."""
        counts = Counter(one.spot for one in self._links)
        crowded = spot if counts[spot] >= MOST_OF_PORT else counts.most_common(1)[0][0] if counts else spot
        if counts[spot] < MOST_OF_PORT and len(self._links) < MOST_CONNECTIONS:
            return True
        self.counts.crowded += 1
        self._crowded.add(crowded)
        idle = min((one for one in self._links if one.spot == crowded), key=lambda one: one.moved_s)
        if self._clock.now_s() - idle.moved_s < IDLE_S:
            return False
        self._links.discard(idle)
        idle.task.cancel()
        return True

    async def _relay(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        spot, found = link.spot, None
        try:
            found = await self._connect(spot)
            if found is None:
                self.counts.unserved += 1
                _reset(writer)
                return
            self.counts.relayed += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(link, reader, found[1]))
                group.create_task(self._pass_on(link, found[0], writer))
        except* OSError:
            # One side was cut off, and so is the other.
            _reset(writer)
            if found is not None:
                _reset(found[1])
        finally:
            for one in (writer, *((found[1],) if found is not None else ())):
                one.close()

    async def _pass_on(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until this direction ends, which the other one may outlive."""
        writer.transport.set_write_buffer_limits(BUFFER_BYTES)
        while piece := await reader.read(BUFFER_BYTES):
            link.moved_s = self._clock.now_s()
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    async def _connect(self, spot: Spot) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """To an endpoint as it is chosen now: one that went since the connection came is not asked."""
        tried: set[bytes] = set()
        while len(tried) < MOST_TRIES:
            relayed, now_s = self._relayed(spot), self._clock.now_s()
            if relayed is None:
                return None
            endpoint = choose(relayed, self._returning.get(spot), tried, now_s, self._draw)
            if endpoint is None:
                return None
            try:
                async with asyncio.timeout(CONNECT_S):
                    found = await asyncio.open_connection(*_told(endpoint), limit=BUFFER_BYTES)
            except (OSError, TimeoutError):
                tried.add(endpoint)
                continue
            if relayed.port.affinity_s:
                self._returning[spot] = Returning(endpoint, now_s + relayed.port.affinity_s)
            return found
        return None

    def _relayed(self, spot: Spot) -> RelayedPort | None:
        """As it is planned now, worked out once for each plan."""
        family, port = spot
        key = self._wanted.get(spot)
        sync = self._plane.families[family]
        plan = sync.desired.plan_of(key) if key is not None else None
        if plan is None:
            return None
        known = self._known.get(spot)
        if known is None or known[0] is not plan:
            found = dict(relayed_ports(plan, family, sync.facts.node.addresses)).get(port)
            if found is None:
                return None
            known = self._known[spot] = plan, found
        return known[1]

    def findings(self, key: ServiceKey) -> Iterator[str]:
        for family in self._plane.families:
            plan = self._plane.families[family].desired.plan_of(key) if self._is_on[family] else None
            for one in unrelayed_ports(plan) if plan is not None else ():
                text = f"does not answer on {LOOPBACK[family].text}: only TCP is relayed there"
                yield f"{family}: node port {one.port}/{one.protocol} {text}"
            for port in self._ports[family].get(key, ()):
                if (family, port) in self._crowded:
                    text = f"had more than {MOST_OF_PORT} connections, or most of {MOST_CONNECTIONS}; more were reset"
                    yield f"{family}: node port on {_where((family, port))} {text}, or ended one that was idle"
                if (family, port) in self._failed:
                    yield f"{family}: {_told_failure((family, port), self._failed[family, port])}"

    def told(self, family: Family, port: PortPlan) -> Iterator[str]:
        number = port.port.node_port
        relayed = self._relayed((family, number)) if number else None
        if relayed is not None:
            ends = "" if relayed.slots else ", reset: no endpoint serves"
            where = f"localhost {_where((family, number))}"
            yield f"{where}, relayed by kepd, policy Cluster, source address the node's{ends}"

    def rows(self, key: ServiceKey | None = None, *, is_standing: bool) -> Iterator[RuleReport]:
        for spot, whose in self._wanted.items():
            if key in (None, whose) and (spot in self._open or not is_standing):
                yield RuleReport(family=spot[0], map=LOCALHOST, key=_where(spot), data="relay", service=str(whose))

    def instead(self, packet: Packet, *, is_standing: bool) -> Outcome | None:
        spot = (packet.target.family, packet.port)
        if packet.target != LOOPBACK[packet.target.family] or packet.protocol != "TCP" or spot not in self._wanted:
            return None
        relayed = self._relayed(spot)
        if is_standing and spot not in self._open:
            text = f"not listened on: {self._failed.get(spot, 'it is about to be')}"
            return Outcome("pass", (TraceStep(LOCALHOST, text),))
        if relayed is None or not relayed.slots:
            return Outcome("reject", (TraceStep(LOCALHOST, "nobody serves: reset"),))
        count = len(set(relayed.slots))
        return Outcome(
            "relay",
            (TraceStep(LOCALHOST, f"relayed by kepd to one of {count}"),),
            tuple((one[:-4], PORT.unpack(one[-4:])[0]) for one in relayed.slots),
            affinity_s=relayed.port.affinity_s,
        )


def _listener(family: Family, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET if family == "IPv4" else socket.AF_INET6, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == "IPv6":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((LOOPBACK[family].text, port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _reset(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    if found is not None:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    writer.transport.abort()


def _told(endpoint: bytes) -> tuple[str, int]:
    return str(ipaddress.ip_address(endpoint[:-4])), PORT.unpack(endpoint[-4:])[0]


def _where(spot: Spot) -> str:
    family, port = spot
    return f"127.0.0.1:{port}" if family == "IPv4" else f"[::1]:{port}"


def _told_failure(spot: Spot, reason: str) -> str:
    return f"node port on {_where(spot)} cannot be listened on: {reason}; tried again after each sync"

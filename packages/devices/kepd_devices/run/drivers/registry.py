# SPDX-License-Identifier: Apache-2.0
"""Drivers register here as with a kubelet, and are called as by one.

    a socket appears → who is it? → judged → connected → told
    it goes          → the instance is no more; claims keep what they have

Each appearance of a socket is told at most once; what fails before that is tried again after growing pauses.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol

import structlog

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.devices.plugin import PluginInfo, PluginPeer, PluginSocket
from agent.model.event import Event
from agent.model.runtime.error import RuntimeCallFailed
from kepd_devices.plan.answers import told
from kepd_devices.plan.health import NOT_KNOWN, UNHEALTHY, DeviceHealth, Key, unhealthy_event
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.registration import Instance, PluginRefused, groups_note, judge
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.drivers.registered_driver import KEPT_S, Connection, RegisteredDriver

log = structlog.get_logger(plane="devices")

# Whatever nobody told of is seen by then.
LOOK_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 120.0
MOST_TOLD = 5
TELL_AGAIN_S = 60.0
Observe = Callable[[str, str, float], None]


class Sockets(Protocol):
    """`look` blocks. Calls raise RuntimeCallFailed, `peer` OSError."""

    def look(self) -> list[PluginSocket]: ...

    async def changed(self, limit_s: float) -> None: ...

    def close(self) -> None: ...

    async def peer(self, path: str) -> PluginPeer: ...

    async def info(self, path: str) -> PluginInfo: ...

    async def notify(self, path: str, error: str = "") -> None: ...

    def connect(self, endpoint: str, version: str, observe: Observe) -> Connection: ...


class PluginRegistry:
    def __init__(
        self,
        sockets: Sockets,
        claims: DeviceClaims,
        clock: Clock,
        limit_s: Callable[[], float],
        tell: Callable[[Event], None],
        *,
        own: Sequence[str] = (),
        kubelet: Callable[[], Awaitable[str]] | None = None,
        observe: Callable[[str, str, str, float], None] = lambda _driver, _method, _code, _s: None,
    ) -> None:
        """`kubelet` says which one serves this node already; then nobody registers here."""
        self._sockets = sockets
        self._claims = claims
        self._clock = clock
        self._limit_s = limit_s
        self._tell = tell
        self._own = own
        self._kubelet = kubelet
        self._observe = observe
        self.drivers: dict[str, RegisteredDriver] = {}
        # What became of each socket that is there: its identity, and the instance that it registered, if any.
        self._known: dict[str, tuple[tuple[int, int], Instance | None]] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self.findings: dict[str, str] = {}
        self._bell = asyncio.Event()
        self._began_s: float | None = None
        self._left: set[str] = set()
        self._sick: frozenset[DeviceId] = frozenset()
        self._told_unhealthy: dict[tuple[str, Key], float] = {}
        claims.has_left = self.has_left
        claims.unhealthy = self.unhealthy

    def has_left(self, name: str) -> bool:
        """One of an earlier life of kepd has the same time to come back."""
        if (driver := self.drivers.get(name)) is not None:
            return driver.has_left
        if name in self._own or name in self._claims.drivers or self._began_s is None:
            return False
        return self._clock.now_s() - self._began_s >= KEPT_S

    def health(self, device: DeviceId) -> DeviceHealth:
        driver = self.drivers.get(device.driver)
        return driver.health.of(device.pool, device.device) if driver is not None else NOT_KNOWN

    def unhealthy(self) -> frozenset[DeviceId]:
        return frozenset(DeviceId(name, *key) for name, one in self.drivers.items() for key in one.health.unhealthy())

    def _health_changed(self, driver: str, keys: Collection[Key]) -> None:
        """Who has such a device is told, once a while where it comes and goes."""
        now_s, found = self._clock.now_s(), self.drivers[driver].health
        before = self._told_unhealthy.items()
        self._told_unhealthy = {key: at_s for key, at_s in before if now_s - at_s < TELL_AGAIN_S}
        for record in self._claims.records.values():
            for result in record.results:
                key = (result.pool, result.device)
                health = found.of(*key)
                is_new = result.driver == driver and key in keys and (driver, key) not in self._told_unhealthy
                if is_new and health.status == UNHEALTHY:
                    self._told_unhealthy[driver, key] = now_s
                    self._tell(unhealthy_event(record, DeviceId(driver, *key), health.message))
        self._claims.changed()

    async def run(self, report: Report) -> None:
        """Until cancelled."""
        if self._kubelet is not None and (why := await self._kubelet()):
            raise RuntimeError(f"{why}; drivers register with it, and kepd gives no devices of theirs")
        self._began_s = self._clock.now_s()
        try:
            while True:
                await self.look()
                self._report(report)
                await self._next_look()
        finally:
            self._sockets.close()
            for driver in self.drivers.values():
                await driver.close()
            self._known.clear()

    async def _next_look(self) -> None:
        """When a socket came or went, one is due again, or a driver failed or is well again."""
        now_s = self._clock.now_s()
        limit_s = min([LOOK_S, *(max(due_s - now_s, 0.0) for due_s, _ in self._pauses.values())])
        waits = [asyncio.create_task(self._sockets.changed(limit_s)), asyncio.create_task(self._bell.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._bell.clear()

    def _report(self, report: Report) -> None:
        """What a driver does is no fault of kepd."""
        hung = [driver.why_away for driver in self.drivers.values() if driver.why_away]
        unknown = [driver.health.problem for driver in self.drivers.values() if driver.health.problem]
        groups = [
            note for name, one in self.drivers.items() if (note := groups_note(name, [it for it, _ in one.instances]))
        ]
        notes = [*self.findings.values(), *hung, *unknown, *groups]
        report.ready("; ".join([f"{len(self.drivers)} drivers", *notes[:MOST_TOLD]]))

    async def look(self) -> None:
        seen = {one.path: one for one in await asyncio.to_thread(self._sockets.look)}
        for path, (identity, _) in list(self._known.items()):
            if path not in seen or seen[path].identity != identity:
                await self._gone(path)
        for path in self._pauses.keys() - seen.keys():
            del self._pauses[path]
        due = [one for one in seen.values() if one.path not in self._known and self._is_due(one.path)]
        await asyncio.gather(*(self._try(one) for one in due))
        self._notice_who_left()

    def _notice_who_left(self) -> None:
        for driver in self.drivers.values():
            driver.notice()
            driver.health.drop_old()
        left = {name for name, driver in self.drivers.items() if driver.has_left}
        for name in left - self._left:
            log.warning("driver_slices_dropped", driver=name, away_s=KEPT_S)
            if self.drivers[name].instances:
                text = f"driver {name} is away for {KEPT_S:g} s, and offers nothing new until it is back"
                self._say("DriverAway", text, is_warning=True)
        before, self._left = self._left, left
        sick, self._sick = self._sick, self.unhealthy()
        if left != before or self._sick != sick:
            self._claims.changed()

    def _is_due(self, path: str) -> bool:
        return self._pauses.get(path, (0.0, 0.0))[0] <= self._clock.now_s()

    async def _try(self, socket: PluginSocket) -> None:
        if socket.problem:
            self._refused(socket, socket.problem)
            return
        try:
            peer = await self._sockets.peer(socket.path)
            info = await self._sockets.info(socket.path)
        except (OSError, RuntimeCallFailed) as error:
            self._failed(socket, error)
            return
        try:
            instance = await self._judged(socket, info, peer)
        except PluginRefused as error:
            self._refused(socket, str(error))
            await self._notify(socket, str(error))
            return
        except OSError as error:
            self._failed(socket, error)
            return
        self._add(socket, instance)
        await self._notify(socket, "")

    async def _judged(self, socket: PluginSocket, info: PluginInfo, peer: PluginPeer) -> Instance:
        """Raises PluginRefused and OSError."""
        instance, serves = judge(info, socket.path, peer, self._own, self._connected()), peer
        if instance.endpoint != socket.path:
            serves = await self._sockets.peer(instance.endpoint)
        if serves.user != peer.user:
            raise PluginRefused(f"{serves} serves {instance.endpoint}, and {peer} registers it")
        await self._forget_others(instance)
        # Another one of the same look may have come first meanwhile.
        return judge(info, socket.path, serves, self._own, self._connected())

    def _connected(self) -> dict[str, list[Instance]]:
        """What was killed and left its socket keeps the name no longer than its slices."""
        here = {name: one for name, one in self.drivers.items() if one.instances and not one.has_left}
        return {name: [instance for instance, _ in one.instances] for name, one in here.items()}

    async def _forget_others(self, new: Instance) -> None:
        """Of a name that is free: what another user left of it."""
        if new.driver in self.drivers and new.driver not in self._connected():
            driver = self.drivers[new.driver]
            for one in [it for it, _ in driver.instances if it.peer.user != new.peer.user]:
                await driver.remove(one)

    def _add(self, socket: PluginSocket, instance: Instance) -> None:
        name = instance.driver
        connection = self._sockets.connect(
            instance.endpoint,
            instance.version,
            lambda method, code, seconds: self._observe(name, method, code, seconds),
        )
        if (driver := self.drivers.get(name)) is None:
            driver = RegisteredDriver(name, self._clock, self._limit_s, self._bell.set, self._health_changed)
            self.drivers[name] = driver
        driver.add(instance, connection)
        self._known[socket.path] = (socket.identity, instance)
        self._pauses.pop(socket.path, None)
        self.findings.pop(socket.path, None)
        if instance.finding:
            self.findings[socket.path] = instance.finding
        log.info("driver_registered", driver=name, endpoint=instance.endpoint, version=instance.version,
                 group=instance.peer.group)  # fmt: skip
        self._say("DriverRegistered", f"driver {name} is registered, with {instance.version}", is_warning=False)
        self._claims.add_driver(driver)

    def _refused(self, socket: PluginSocket, why: str) -> None:
        """Until the socket is made anew."""
        self._known[socket.path] = (socket.identity, None)
        self.findings[socket.path] = f"{socket.path} is refused: {told(why)}"
        log.warning("driver_refused", socket=socket.path, reason=told(why))
        self._say("DriverRefused", self.findings[socket.path], is_warning=True)

    def _failed(self, socket: PluginSocket, error: Exception) -> None:
        pause_s = min(self._pauses.get(socket.path, (0.0, FIRST_PAUSE_S / 2))[1] * 2, LONGEST_PAUSE_S)
        self._pauses[socket.path] = (self._clock.now_s() + pause_s, pause_s)
        text = told(error.details if isinstance(error, RuntimeCallFailed) else str(error))
        self.findings[socket.path] = f"{socket.path} does not answer: {text}"
        log.info("driver_not_reached", socket=socket.path, error=text, retry_s=pause_s)

    async def _notify(self, socket: PluginSocket, error: str) -> None:
        try:
            await self._sockets.notify(socket.path, error)
        except RuntimeCallFailed as failure:
            log.warning("driver_not_notified", socket=socket.path, error=told(failure.details))

    async def _gone(self, path: str) -> None:
        _, instance = self._known.pop(path)
        self.findings.pop(path, None)
        if instance is None:
            return
        driver = self.drivers[instance.driver]
        await driver.remove(instance)
        log.info("driver_gone", driver=instance.driver, endpoint=instance.endpoint)
        if not driver.instances:
            self._say("DriverAway", f"driver {instance.driver} is away: its socket is gone", is_warning=True)

    def _say(self, reason: str, text: str, *, is_warning: bool) -> None:
        self._tell(Event(is_warning=is_warning, reason=reason, message=text, plane="devices"))

# SPDX-License-Identifier: Apache-2.0
"""The devices plane: what runs as long as it does.

run
├── manifests: claims, templates, classes and slices, again after every change
├── slices: those that drivers leave in directories
├── devices: which nodes of this machine are devices, now and then
├── health: whether these are well, as their commands say
├── records: what pods hold that are gone is given back, at the start and now and then
└── report: what is wrong, on the board
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

import structlog

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.event import Event
from agent.model.finding import Advice, Finding, printable
from agent.objects.wanted import WantedSource
from kepd_devices.manifest.reading import NO_OBJECTS, DeviceObjects, device_objects_in
from kepd_devices.ports import PodsOfNode
from kepd_devices.run.cdi_directories import CdiDirectories
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.device_checks import DeviceChecks
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.drivers.slice_directories import SliceDirectories
from kepd_devices.run.own_devices import ConfiguredDevices
from kepd_devices.run.pod_devices import PodDevices

log = structlog.get_logger(plane="devices")

LOOK_S = 30.0
# A node that appears gets its rights a moment later, and rarely comes alone.
SETTLE_S = 0.5
RECONCILE_S = 60.0
DIRECTORIES_S = 60.0
MOST_TOLD = 5


class DevicePlane:
    def __init__(
        self,
        *,
        manager: DeviceClaims,
        pod_devices: PodDevices,
        cdi: CdiDirectories,
        locals_: Collection[LocalDriver],
        manifests: WantedSource,
        clock: Clock,
        tell: Callable[[Event], None],
        commands: DeviceCommands | None = None,
        directories: SliceDirectories | None = None,
        changed_slices: Callable[[float], Awaitable[None]] | None = None,
        changed_nodes: Callable[[float], Awaitable[None]] | None = None,
        pods: PodsOfNode | None = None,
    ) -> None:
        """`changed_slices` waits until a directory of slices may have changed, or for a time; `changed_nodes` so for
        /dev."""
        self._commands = commands or DeviceCommands()
        self._changed_nodes = changed_nodes or clock.sleep
        self._changed_slices = changed_slices or clock.sleep
        self.manager = manager
        self._directories = directories
        if directories is not None:
            manager.publishers.append(directories.slices)
        self.pod_devices = pod_devices
        self._pods = pods
        self._cdi = cdi
        self._locals = locals_
        self._manifests = manifests
        self._clock = clock
        self._tell = tell
        self._news = asyncio.Event()
        self._is_loaded = False
        self._read = NO_OBJECTS
        self._problems: tuple[Finding, ...] = ()
        self._checks = DeviceChecks(locals_, manager.records.values, clock, self._health_changed)

    async def run(self, report: Report) -> None:
        """Until cancelled; what pods hold stays theirs."""
        await self._commands.begin()
        if not self._is_loaded:
            await self.manager.load()
            self._is_loaded = True
        for driver in self._locals:
            await driver.look(())
            await driver.restore(self.manager.records.values())
            self.manager.add_driver(driver)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_manifests(), name="devices-manifests")
            group.create_task(self._follow_devices(), name="devices-look")
            group.create_task(self._checks.run(), name="devices-health")
            group.create_task(self._follow_pods(), name="devices-records")
            group.create_task(self._follow_directories(), name="devices-slices")
            group.create_task(self._report(report), name="devices-report")

    async def _follow_manifests(self) -> None:
        async for wanted in self._manifests.news():
            before, self._read = self._read, device_objects_in(wanted.in_force)
            if wanted.look.is_remembered:
                continue
            self._problems = wanted.look.problems
            self._tell_findings(before, self._read)
            self.manager.take(self._read)
            self.manager.look_at_pools()
            self._news.set()

    def _tell_findings(self, before: DeviceObjects, now: DeviceObjects) -> None:
        for finding in now.findings:
            if finding not in before.findings:
                log.warning("manifest_refused", finding=str(finding))
                event = Event(
                    id="", is_warning=True, reason="FailedValidation", message=str(finding), plane="devices"
                )  # fmt: skip
                self._tell(event)

    async def _follow_devices(self) -> None:
        while True:
            await self._changed_nodes(LOOK_S)
            await self._clock.sleep(SETTLE_S)
            changed = [await driver.look(self.manager.records.values()) for driver in self._locals]
            self._checks.ring()
            if any(changed):
                self.manager.changed()
            is_behind = self.manager.catch_up()
            if self.manager.look_at_pools() or any(changed) or is_behind:
                self._news.set()

    def _health_changed(self) -> None:
        self.manager.changed()
        self._news.set()

    async def _follow_directories(self) -> None:
        while self._directories is not None:
            if await asyncio.to_thread(self._directories.look):
                self.manager.changed()
                self.manager.look_at_pools()
                self._news.set()
            await self._changed_slices(DIRECTORIES_S)

    async def _follow_pods(self) -> None:
        while self._pods is not None:
            await self._pods.listed()
            await self.pod_devices.reconcile(self._pods.uids)
            self._news.set()
            await self._clock.sleep(RECONCILE_S)

    async def _report(self, report: Report) -> None:
        await asyncio.to_thread(self._cdi.look)
        while True:
            problems = [*self.manager.doubts(), *map(str, self._findings())]
            # What vendors write is no fault of this plane.
            of_drivers = self._directories.findings if self._directories is not None else ()
            pools = [
                f"pool {name} is invalid: {printable(why)}" for name, why in sorted(self.manager.invalid_pools.items())
            ]
            notes = [*pools, *map(str, self._cdi.findings), *map(str, of_drivers), *self._commands.problems]
            if problems:
                report.degraded("; ".join(_first([*problems, *notes])))
            else:
                count = sum(len(one.spec.devices or ()) for one in self.manager.slices())
                report.ready("; ".join([f"{count} devices, {len(self.manager.records)} claims", *_first(notes)]))
            await self._news.wait()
            self._news.clear()

    def _findings(self) -> Iterator[Finding]:
        yield from self._problems
        yield from self.manager.objects.findings
        for one in self._locals:
            if isinstance(one.devices, ConfiguredDevices):
                yield from one.devices.findings

    async def advice(self) -> Sequence[Advice]:
        """For `kepctl doctor`."""
        await asyncio.to_thread(self._cdi.look)
        doubts = [
            Advice(subject="device claims", found=text, wanted="a record of each claim", text="no device is given")
            for text in self.manager.doubts()
        ]
        files = [
            Advice(subject="CDI file", found=str(one), wanted="", text="no container gets what this file has")
            for one in self._cdi.findings
        ]
        return [*doubts, *files]


def _first(texts: list[str]) -> list[str]:
    return texts if len(texts) <= MOST_TOLD else [*texts[:MOST_TOLD], f"and {len(texts) - MOST_TOLD} more"]

# SPDX-License-Identifier: Apache-2.0
"""kepd between device plugins and a kubelet: it sees the end of a device's use, resets the device, and only then lets
the kubelet give it again.

    run
    ├── vendors    plugins register with kepd, as with a kubelet
    ├── runtime    which containers have which devices, again after each event
    └── RESOURCE   once it is known who has what: the plugin as the kubelet sees it
        └── resets of what was used

The kubelet chooses; kepd passes calls on, and answers late where a device is not clean yet. Without kepd the kubelet
sees no device, and pods keep what they have.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.devices.plugin import PluginDevice
from agent.model.event import Event
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.text.records import RecordFiles
from kepd_devices.local.pool_rules import Command
from kepd_devices.plan.answers import told
from kepd_devices.plan.plugins.front import (
    FRONT_FOLDER,
    START_GRACE_S,
    FrontRecord,
    Holdings,
    decode_record,
    record_name,
)
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.front.resource import FrontResource
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.plugin_connections import Directory, Plugin, PluginConnections

log = structlog.get_logger(plane="devices")

PREFERRED_S, PRE_START_S, ALLOCATE_S = 5.0, 30.0, 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
SAVE_PAUSE_S, LOOK_S = 1.0, 1.0
MOST_RESETS = 4
MOST_TOLD = 5


class KubeletSide(Protocol):
    """The kubelet's own directory."""

    def serving(self, front: "FrontResource") -> AbstractAsyncContextManager[None]:
        """The resource is served and registered meanwhile. Raises OSError, and RuntimeCallFailed where the kubelet
        refuses it."""

    async def is_registered(self, resource: str) -> bool:
        """Whether the kubelet that is there has heard of it."""


class RuntimeSide(Protocol):
    """Containers of this node. `look` raises RuntimeCallFailed."""

    async def look(self) -> Holdings: ...

    def news(self) -> AsyncIterator[None]: ...


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    boot_id: str = ""
    allowed: tuple[int, ...] = (0,)
    resets: Mapping[str, Command] = {}
    reset_limit_s: float = 60.0


class PluginProxy:
    def __init__(
        self,
        vendors: Directory,
        kubelet: KubeletSide,
        runtime: RuntimeSide,
        files: RecordFiles,
        *,
        clock: Clock,
        settings: Callable[[], FrontSettings],
        tell: Callable[[Event], None],
        metrics: DeviceMetrics,
        commands: DeviceCommands | None = None,
    ) -> None:
        self.commands = commands or DeviceCommands()
        self.clock = clock
        self.settings = settings
        self.metrics = metrics
        self._kubelet = kubelet
        self._runtime = runtime
        self._files = files
        self._tell = tell
        self._news = asyncio.Event()
        self._vendors = PluginConnections(
            vendors, clock, lambda: settings().allowed, tell, self._take, refuses=self._refuses, news=self._news.set
        )
        self._seen: Holdings | None = None
        self._looked = asyncio.Event()
        self._looking = asyncio.Lock()
        self._later: asyncio.Task[None] | None = None
        self._problems: dict[str, str] = {}
        self._records: dict[str, FrontRecord] = {}
        self._group: asyncio.TaskGroup | None = None
        self.resources: dict[str, FrontResource] = {}

    async def run(self, report: Report) -> None:
        """Until cancelled."""
        await self.commands.begin()
        await self._load()
        async with asyncio.TaskGroup() as group, self._vendors.serving():
            self._group = group
            group.create_task(self._follow_runtime(), name="front-runtime")
            try:
                while True:
                    self._report(report)
                    await self._news.wait()
                    self._news.clear()
            finally:
                self._group = None
                for one in self.resources.values():
                    await one.close()
                self.resources.clear()

    async def _load(self) -> None:
        """What cannot be read is dirty, as everything that is not known."""
        boot_id = self.settings().boot_id
        for name, content in (await self._files.read_folder(FRONT_FOLDER)).items():
            try:
                record = decode_record(content, boot_id)
            except ValueError as error:
                log.warning("front_record_unreadable", record=name, error=str(error), effect="its devices are reset")
                continue
            self._records[record.resource] = record

    def _report(self, report: Report) -> None:
        away = [f"plugin {one.resource} is away" for one in self._vendors.known.values() if not one.is_connected]
        texts = [*self._vendors.refused.values(), *away, *self._problems.values(), *self.commands.problems]
        devices = sum(len(one.devices) for one in self.resources.values())
        report.ready("; ".join([f"{len(self.resources)} plugins in front, {devices} devices", *texts[:MOST_TOLD]]))

    def _refuses(self, resource: str) -> str:
        known = self.settings().resets
        return "" if resource in known else f"devices.front.resources has no {told(resource)}"

    def _take(self, plugin: Plugin, devices: dict[str, PluginDevice]) -> None:
        """A list of a plugin, or its end."""
        plugin.devices = devices
        one = self.resources.get(plugin.resource)
        if one is None and self._group is not None:
            record = self._records.get(plugin.resource, FrontRecord(resource=plugin.resource))
            one = FrontResource(plugin.resource, self, replace(record, boot_id=self.settings().boot_id))
            self.resources[plugin.resource] = one
            self._group.create_task(one.save_what_changed(), name=f"front-save {plugin.resource}")
            self._group.create_task(self._serve(one), name=f"front {plugin.resource}")
        if one is not None:
            one.vendor = plugin
            self._look_at(one)
            one.changed()
        self._news.set()

    def _look_at(self, one: FrontResource) -> None:
        if self._seen is not None:
            one.look(self._seen)

    async def _follow_runtime(self) -> None:
        async for _ in self._runtime.news():
            await self._look()

    async def _look(self) -> None:
        """One at a time: what is seen last counts."""
        async with self._looking:
            try:
                self._seen = await self._runtime.look()
            except RuntimeCallFailed as error:
                self._problems["runtime"] = f"containers cannot be listed: {told(error.details)}"
                self._news.set()
                return
        self._looked.set()
        if self._problems.pop("runtime", ""):
            self._news.set()
        for one in self.resources.values():
            one.look(self._seen)
            one.changed()

    async def _serve(self, one: FrontResource) -> None:
        """Whatever the kubelet does, as often as one starts. Nothing is told before it is known who has what."""
        pause_s = FIRST_PAUSE_S
        await self._looked.wait()
        while True:
            try:
                async with self._kubelet.serving(one):
                    pause_s = FIRST_PAUSE_S
                    self._note(one.resource, "")
                    log.info("front_registered", resource=one.resource)
                    while await self._kubelet.is_registered(one.resource):
                        await self.clock.sleep(LOOK_S)
            except (OSError, RuntimeCallFailed) as error:
                text = told(error.details if isinstance(error, RuntimeCallFailed) else str(error))
                self._note(one.resource, f"{one.resource} is not registered with a kubelet: {text}")
                await self.clock.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _note(self, key: str, text: str) -> None:
        if self._problems.get(key, "") != text:
            self._problems[key] = text
            if text:
                log.warning("front_not_registered", resource=key, error=text)
            else:
                del self._problems[key]
            self._news.set()

    def look_later(self) -> None:
        """What was to start has begun by then, or does not."""
        if self._later is None and self._group is not None:
            self._later = self._group.create_task(self._look_later(), name="front-look")

    async def _look_later(self) -> None:
        await self.clock.sleep(START_GRACE_S + 1.0)
        self._later = None
        await self._look()

    def is_held(self, resource: str, device: str) -> bool:
        """By a container that the runtime showed last."""
        found = self._seen.found if self._seen is not None else ()
        return any(one.holds and (one.resource, one.device) == (resource, device) for one in found)

    async def save(self, record: FrontRecord) -> None:
        """Raises OSError."""
        await self._files.write(record_name(record.resource), msgspec.json.encode(record))

    def say(self, reason: str, text: str) -> None:
        self._tell(Event(is_warning=True, reason=reason, message=text, plane="devices"))

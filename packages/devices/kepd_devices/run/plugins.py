# SPDX-License-Identifier: Apache-2.0
"""Device plugins: they register, list their devices, and are asked for those that pods get by their limits.

    register    judged → connected → lists are followed until the plugin ends them
    hold(pod)   for each container and resource: choose → record → Allocate → the answer into the record
    edits(pod)  before each start of a container: PreStartContainer where the plugin wants it, then the answers
    release     there is no call for it: resets of the configuration, then the record goes

A plugin that is away keeps what pods have, and gives nothing new. Never: gives a device to two pods.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.clock import Clock
from agent.model.component import Report
from agent.model.devices.container_devices import NO_DEVICES, ContainerDevices
from agent.model.devices.plugin import PluginDevice
from agent.model.devices.problem import DevicesNotReady, DevicesNotReleased
from agent.model.event import Event
from agent.model.pods.pod import ContainerKind, ContainerSpec, PodSpec
from agent.model.runtime.error import RuntimeCallFailed
from agent.model.text.records import RecordFiles
from kepd_devices.local.pool_rules import Command
from kepd_devices.plan.answers import told
from kepd_devices.plan.plugins.plugin_choice import (
    Unusable,
    asked_of,
    checked_answer,
    choose,
    together,
)
from kepd_devices.plan.plugins.plugin_records import PLUGIN_FOLDER, Grant, PodGrants, decode_grants, grants_name, in_use
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.plugin_connections import Directory, Plugin, PluginConnections

log = structlog.get_logger(plane="devices")

PREFERRED_S, PRE_START_S = 5.0, 30.0
WAITS, FAILED = "UnexpectedAdmissionError", "FailedPrepareDynamicResources"
MOST_TOLD = 5


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed` are the users who may run plugins; `resets` are run for each device after its pod."""

    boot_id: str = ""
    allowed: tuple[int, ...] = (0,)
    allocate_limit_s: float = 60.0
    resets: Mapping[str, Command] = {}
    # Places of the host that no container may see.
    private: tuple[str, ...] = ()


class PluginDevices:
    def __init__(
        self,
        directory: Directory,
        files: RecordFiles,
        clock: Clock,
        settings: Callable[[], PluginSettings],
        tell: Callable[[Event], None],
        *,
        kubelet: Callable[[], Awaitable[str]] | None = None,
        metrics: DeviceMetrics | None = None,
        commands: DeviceCommands | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` is called when what pods wait for may be there."""
        self.changed = changed
        self._metrics = metrics or DeviceMetrics()
        self._commands = commands or DeviceCommands()
        self._news = asyncio.Event()
        self._connections = PluginConnections(
            directory, clock, lambda: settings().allowed, tell, self._take, news=self._news.set
        )
        self._files = files
        self._clock = clock
        self._settings = settings
        self._tell = tell
        self._kubelet = kubelet
        self._loaded = asyncio.Event()
        self.records: dict[str, PodGrants] = {}
        # Records that nobody can read, by file: what they hold is not known, so nothing is given.
        self.unreadable: dict[str, str] = {}

    async def load(self) -> None:
        for name, content in (await self._files.read_folder(PLUGIN_FOLDER)).items():
            try:
                record = decode_grants(content)
            except ValueError as error:
                text = f"record {PLUGIN_FOLDER}/{name} cannot be read: {error}; no device of plugins is given"
                self.unreadable[name] = text
                log.error("plugin_record_unreadable", record=name, error=str(error), effect="no device is given")
                continue
            self.records[record.uid] = record
        self._loaded.set()

    async def run(self, report: Report) -> None:
        """Until cancelled."""
        if not self._loaded.is_set():
            await self.load()
        if self._kubelet is not None and (why := await self._kubelet()):
            raise RuntimeError(f"{why}; plugins register with it, and kepd gives no devices of theirs")
        async with self._connections.serving():
            while True:
                self._report(report)
                await self._news.wait()
                self._news.clear()

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        return self._connections.known

    def _report(self, report: Report) -> None:
        """What a plugin does is no fault of kepd; a record that cannot be read stops all that is new."""
        away = [f"plugin {one.resource} is away" for one in self.plugins.values() if not one.is_connected]
        texts = [*self.unreadable.values(), *self._connections.refused.values(), *away]
        if self.unreadable:
            report.degraded("; ".join(texts[:MOST_TOLD]))
        else:
            devices = sum(len(one.devices) for one in self.plugins.values())
            report.ready("; ".join([f"{len(self.plugins)} plugins, {devices} devices", *texts[:MOST_TOLD]]))

    def _take(self, plugin: Plugin, devices: dict[str, PluginDevice]) -> None:
        holders = in_use(self.records.values(), plugin.resource)
        for name, pod in holders.items():
            before, now = plugin.devices.get(name), devices.get(name)
            if before is not None and before.is_healthy and (now is None or not now.is_healthy):
                text = f"device {told(name)} of {plugin.resource}, which pod {pod} has, is unhealthy"
                self._say("DeviceUnhealthy", text, is_warning=True)
        plugin.devices = devices
        self._news.set()
        self.changed()

    async def hold(self, pod: PodSpec) -> None:
        """Raises DevicesNotReady."""
        if not any(asked_of(one.fields) for one in pod.containers):
            return
        await self._loaded.wait()
        for container in pod.containers:
            await self._ensure(pod, container)

    async def _ensure(self, pod: PodSpec, container: ContainerSpec) -> None:
        """What the container asks for is allocated. Raises DevicesNotReady."""
        for resource, count in asked_of(container.fields).items():
            record = self._record(pod)
            known = record.of(container.name, resource)
            if known is None or known.answer is None or len(known.ids) != count:
                await self._allocate(record.without(container.name, resource), pod, container, resource)

    def _record(self, pod: PodSpec) -> PodGrants:
        """Of this boot: after another all sandboxes are gone."""
        boot_id = self._settings().boot_id
        known = self.records.get(pod.uid)
        if known is not None and known.boot_id == boot_id:
            return known
        return PodGrants(uid=pod.uid, namespace=pod.namespace, name=pod.name, boot_id=boot_id)

    async def _allocate(self, record: PodGrants, pod: PodSpec, container: ContainerSpec, resource: str) -> None:
        """Choose, write down, ask, write down. Nobody else waits for the plugin: what it is asked for is in the records
        by then."""
        count = asked_of(container.fields)[resource]
        kept = self._of_inits(record, pod, resource) if container.kind is not ContainerKind.INIT else []
        plugin, free = self._free(record, resource, count, len(kept))
        preferred = await self._preferred(plugin, free, kept, count)
        # Others may have got some meanwhile; between this look and the record nobody has a turn.
        plugin, free = self._free(record, resource, count, len(kept))
        grant = Grant(container=container.name, resource=resource, ids=tuple(choose(free, count, kept, preferred)))
        try:
            await self._save(record.with_grant(grant))
            answer = await plugin.connection.allocate(list(grant.ids), self._settings().allocate_limit_s)
            if answer is None:
                raise Unusable(f"plugin {resource} answers for no container")
            if self._record(pod).of(container.name, resource) != grant:
                raise Unusable(f"pod {pod.key} has ended meanwhile")
            answer = checked_answer(resource, answer, self._settings().private)
            await self._save(record.with_grant(replace(grant, answer=answer)))
        except (RuntimeCallFailed, Unusable, ValueError) as error:
            if self._record(pod).of(container.name, resource) == grant:
                await self._save(record)
            why = told(error.details) if isinstance(error, RuntimeCallFailed) else str(error)
            raise DevicesNotReady(FAILED, f"plugin {resource}: {why}") from error
        except OSError as error:
            raise DevicesNotReady(FAILED, f"the record of pod {pod.key} cannot be written: {error}") from error

    def _free(
        self, record: PodGrants, resource: str, count: int, kept: int
    ) -> tuple[Plugin, Mapping[str, PluginDevice]]:
        """The plugin, and its devices that nobody has. Raises DevicesNotReady where they are too few."""
        if self.unreadable:
            raise DevicesNotReady(WAITS, "; ".join(self.unreadable.values()))
        plugin = self.plugins.get(resource)
        others = in_use((one for uid, one in self.records.items() if uid != record.uid), resource)
        own = {device for one in record.grants if one.resource == resource for device in one.ids}
        healthy = plugin.healthy if plugin is not None else {}
        free = {name: one for name, one in healthy.items() if name not in others and name not in own}
        if plugin is None or not plugin.is_connected or kept + len(free) < count:
            raise DevicesNotReady(WAITS, self._why(resource, count, plugin, kept + len(free)))
        return plugin, free

    def _why(self, resource: str, count: int, plugin: Plugin | None, free: int) -> str:
        if plugin is None or not plugin.is_connected:
            return f"{resource}: {count} asked for, but no plugin is registered for it"
        sick = len(plugin.devices) - len(plugin.healthy)
        return f"{resource}: {count} asked for, {free} free of {len(plugin.devices)}, {sick} unhealthy"

    def _of_inits(self, record: PodGrants, pod: PodSpec, resource: str) -> list[str]:
        """Devices of init containers, which have ended when this one starts, unless another container has them."""
        kinds = {one.name: one.kind for one in pod.containers}
        found: dict[str, None] = {}
        taken: set[str] = set()
        for one in record.grants:
            if one.resource == resource and kinds.get(one.container) is ContainerKind.INIT:
                found.update(dict.fromkeys(one.ids))
            elif one.resource == resource:
                taken.update(one.ids)
        return [one for one in found if one not in taken]

    async def _preferred(
        self, plugin: Plugin, free: Mapping[str, PluginDevice], kept: list[str], count: int
    ) -> list[str]:
        """A hint; a plugin that fails to give one is asked to allocate all the same."""
        if not plugin.options.has_preference or len(kept) + len(free) <= count or len(kept) >= count:
            return []
        try:
            return await plugin.connection.preferred([*kept, *free], kept, count, PREFERRED_S)
        except RuntimeCallFailed as error:
            log.warning("plugin_without_preference", resource=plugin.resource, error=told(error.details))
            return []

    async def _save(self, record: PodGrants) -> None:
        """Raises OSError. Who is interrupted takes it for written."""
        self.records[record.uid] = record
        if record.grants:
            await self._files.write(grants_name(record.uid), msgspec.json.encode(record))
        else:
            del self.records[record.uid]
            await self._files.remove(grants_name(record.uid))

    async def edits(self, pod: PodSpec, container: ContainerSpec) -> ContainerDevices:
        """Before each start of a container. Raises DevicesNotReady."""
        asked = asked_of(container.fields)
        if not asked:
            return NO_DEVICES
        await self._loaded.wait()
        await self._ensure(pod, container)
        record = self._record(pod)
        grants = [one for one in (record.of(container.name, resource) for resource in asked) if one is not None]
        for one in grants:
            await self._reset_again(pod, one)
            await self._pre_start(one)
        try:
            answers = [(one.resource, one.answer) for one in grants if one.answer is not None]
            return together((name, checked_answer(name, one, self._settings().private)) for name, one in answers)
        except Unusable as error:
            raise DevicesNotReady(FAILED, str(error)) from error

    async def _reset_again(self, pod: PodSpec, grant: Grant) -> None:
        """Before each start of a container but its first, where a resource asks for that."""
        command = self._settings().resets.get(grant.resource)
        if command is None or not command.per_container:
            return
        record = self._record(pod)
        try:
            for device in grant.ids if grant.was_used else ():
                await self._reset(record, grant.resource, device, command)
            if not grant.was_used:
                await self._save(record.with_grant(replace(grant, was_used=True)))
        except DevicesNotReleased as error:
            raise DevicesNotReady(FAILED, str(error)) from error
        except OSError as error:
            raise DevicesNotReady(FAILED, f"the record of pod {pod.key} cannot be written: {error}") from error

    async def _pre_start(self, grant: Grant) -> None:
        plugin = self.plugins.get(grant.resource)
        if plugin is None or not plugin.options.wants_pre_start:
            return
        try:
            await plugin.connection.pre_start(list(grant.ids), PRE_START_S)
        except RuntimeCallFailed as error:
            text = f"plugin {grant.resource}: PreStartContainer fails: {told(error.details)}"
            raise DevicesNotReady(FAILED, text) from error

    async def release(self, uid: str) -> None:
        """Raises DevicesNotReleased."""
        await self._loaded.wait()
        record = self.records.get(uid)
        if record is None:
            return
        for resource, device in record.devices:
            command = self._settings().resets.get(resource)
            if command is not None:
                await self._reset(record, resource, device, command)
        try:
            await self._save(replace(record, grants=()))
        except OSError as error:
            raise DevicesNotReleased(f"the record of pod {record.name} cannot be removed: {error}") from error
        self.changed()

    async def _reset(self, record: PodGrants, resource: str, device: str, command: Command) -> None:
        why = await self._commands.reset(command, resource, device, POD_UID=record.uid)
        self._metrics.reset(resource, "failed" if why else "ok")
        if not why:
            return
        self._say(
            "DeviceResetFailed", f"device {told(device)} of {resource} could not be reset: {why}", is_warning=True
        )
        if command.on_failure == "quarantine":
            raise DevicesNotReleased(f"device {told(device)} of {resource} could not be reset: {why}")

    async def forget(self, uid: str) -> bool:
        """A person says that nothing of a pod's record is held; whether there was one. It may be one that nobody can
        read."""
        name = grants_name(uid).rpartition("/")[2]
        if name in self.unreadable:
            del self.unreadable[name]
        elif uid in self.records:
            del self.records[uid]
        else:
            return False
        await self._files.remove(grants_name(uid))
        log.warning("plugin_record_forgotten", record=name)
        self._news.set()
        self.changed()
        return True

    async def reconcile(self, pods: Callable[[], Collection[str]]) -> None:
        """What pods had that are gone, or of another boot, is free."""
        await self._loaded.wait()
        boot_id = self._settings().boot_id
        for uid, record in list(self.records.items()):
            if uid not in pods() or record.boot_id != boot_id:
                try:
                    await self.release(uid)
                except DevicesNotReleased as error:
                    log.warning("plugin_devices_not_released", pod=record.name, error=str(error))

    def used(self, resource: str) -> Mapping[str, str]:
        """Devices that pods have, with their pods."""
        return in_use(self.records.values(), resource)

    def _say(self, reason: str, text: str, *, is_warning: bool) -> None:
        self._tell(Event(is_warning=is_warning, reason=reason, message=text, plane="devices"))

# SPDX-License-Identifier: Apache-2.0
"""One resource as the kubelet sees it: its devices, resets of what was used, and what it is given."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from agent.model.devices.plugin import PluginAllocation, PluginDevice, PluginOptions
from agent.model.refused import Refused
from agent.model.runtime.error import RuntimeCallFailed
from kepd_devices.local.pool_rules import Command
from kepd_devices.plan.answers import told
from kepd_devices.plan.plugins.front import (
    FrontDevice,
    FrontRecord,
    Holdings,
    Use,
    granted,
    is_starting,
    listed,
    looked,
    started,
    with_changes,
    with_note,
    without_strangers,
)
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.plugin_connections import Plugin

log = structlog.get_logger(plane="devices")

PREFERRED_S, PRE_START_S, ALLOCATE_S = 5.0, 30.0, 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
SAVE_PAUSE_S, LOOK_S = 1.0, 1.0
MOST_RESETS = 4
MOST_TOLD = 5


if TYPE_CHECKING:
    from kepd_devices.run.front.proxy import PluginProxy


class NotGiven(Exception):
    """What a kubelet asks for cannot be; the text says why."""


class FrontResource:
    """One resource: what its plugin lists, what is known of each device, and the calls of the kubelet."""

    def __init__(self, resource: str, parent: "PluginProxy", record: FrontRecord) -> None:
        self.resource = resource
        self.record = record
        self.vendor: Plugin | None = None
        self._parent = parent
        self._bell = asyncio.Event()
        self._resets: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(MOST_RESETS)
        self._unsaved = asyncio.Event()

    def changed(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    @property
    def devices(self) -> dict[str, PluginDevice]:
        return self.vendor.devices if self.vendor is not None else {}

    @property
    def options(self) -> PluginOptions:
        return PluginOptions(
            wants_pre_start=True, has_preference=self.vendor is not None and self.vendor.options.has_preference
        )

    async def lists(self) -> AsyncIterator[list[PluginDevice]]:
        """What the kubelet hears: at once, then each change. A plugin that is away has no healthy device."""
        before: list[PluginDevice] | None = None
        while True:
            bell = self._bell
            is_there = self.vendor is not None and self.vendor.is_connected
            now = listed(self.devices, self.record)
            now = now if is_there else [replace(one, is_healthy=False) for one in now]
            if now != before:
                before = now
                yield now
            await bell.wait()

    def look(self, seen: Holdings) -> None:
        """With what the runtime shows now; what ended is reset."""
        now_s = self._parent.clock.wall_s()
        self._take(looked(self.record, seen, now_s))
        self.begin_resets()
        if any(is_starting(one, now_s) for one in self.record.devices.values()):
            self._parent.look_later()

    def _take(self, changes: Mapping[str, FrontDevice]) -> None:
        if changes:
            self.record = with_changes(self.record, changes)
            self._unsaved.set()
            self.changed()

    def begin_resets(self) -> None:
        """Of what the plugin lists."""
        for device in self.devices:
            if self.record.of(device).use is Use.DIRTY and device not in self._resets:
                self._resets[device] = asyncio.create_task(self._reset(device), name=f"reset {device}")

    async def _reset(self, device: str) -> None:
        try:
            async with self._places:
                await self._try_reset(device)
        finally:
            self._resets.pop(device, None)
            self.changed()

    async def _try_reset(self, device: str) -> None:
        parent = self._parent
        command = parent.settings().resets.get(self.resource)
        why = await tried_reset(parent.commands, command, self.resource, device)
        parent.metrics.reset(self.resource, "failed" if why else "ok")
        if why:
            text = f"device {told(device)} of {self.resource} could not be reset: {why}"
            parent.say("DeviceResetFailed", text)
        if self.record.of(device).use is not Use.DIRTY:
            # A container has it all the same; its end is waited for.
            return
        if why and (command is None or command.on_failure == "quarantine"):
            self._take({device: FrontDevice(Use.QUARANTINED, why=why)})
            text = f"device {told(device)} of {self.resource} is given to nobody until it is reset"
            parent.say("DeviceQuarantined", text)
        else:
            self._take({device: FrontDevice(Use.CLEAN)})

    async def reset(self, device: str) -> None:
        """On request. Raises Refused."""
        if self.record.of(device).use is not Use.QUARANTINED:
            raise Refused("precondition", f"device {device} of {self.resource} is not in quarantine")
        parent = self._parent
        why = await tried_reset(parent.commands, parent.settings().resets.get(self.resource), self.resource, device)
        parent.metrics.reset(self.resource, "failed" if why else "ok")
        if why:
            raise Refused("precondition", f"device {device} stays in quarantine: {why}")
        self._take({device: FrontDevice(Use.CLEAN)})

    async def save_what_changed(self) -> None:
        """For ever. What is clean need not be on the disk at once: after a crash it is reset once more."""
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            self.record = without_strangers(self.record, self.devices)
            try:
                await self._parent.save(self.record)
            except OSError as error:
                log.warning("front_record_not_saved", resource=self.resource, error=str(error))
            await self._parent.clock.sleep(SAVE_PAUSE_S)

    async def allocate(self, devices: Sequence[str]) -> PluginAllocation:
        """Late, where one has to be reset first. What is given is on the disk before the plugin hears of it.
        Raises NotGiven."""
        vendor = self._there(devices)
        await self._made_clean(devices, is_given_back=True)
        await self._save_first(granted(devices))
        try:
            answer = await vendor.connection.allocate(list(devices), ALLOCATE_S)
        except RuntimeCallFailed as error:
            raise NotGiven(f"plugin {self.resource}: {told(error.details)}") from error
        if answer is None:
            raise NotGiven(f"plugin {self.resource} answers for no container")
        return replace(answer, annotations=with_note(answer.annotations, self.resource, devices))

    async def pre_start(self, devices: Sequence[str]) -> None:
        """Before each start of a container; in a pod whose sandbox is made anew a device was reset meanwhile, or is.
        Raises NotGiven."""
        vendor = self._there(devices)
        await self._made_clean(devices, is_given_back=False)
        await self._save_first(started(self.record, devices, self._parent.clock.wall_s()))
        self._parent.look_later()
        if vendor.options.wants_pre_start:
            try:
                await vendor.connection.pre_start(list(devices), PRE_START_S)
            except RuntimeCallFailed as error:
                raise NotGiven(f"plugin {self.resource}: {told(error.details)}") from error

    async def preferred(self, available: Sequence[str], kept: Sequence[str], count: int) -> list[str]:
        """Raises NotGiven."""
        vendor = self._there(())
        try:
            return await vendor.connection.preferred(list(available), list(kept), count, PREFERRED_S)
        except RuntimeCallFailed as error:
            raise NotGiven(f"plugin {self.resource}: {told(error.details)}") from error

    def _there(self, devices: Sequence[str]) -> Plugin:
        if self.vendor is None or not self.vendor.is_connected:
            raise NotGiven(f"plugin {self.resource} is away")
        if strange := [one for one in devices if one not in self.devices]:
            raise NotGiven(f"plugin {self.resource} lists no device {told(strange[0])}")
        return self.vendor

    async def _made_clean(self, devices: Sequence[str], *, is_given_back: bool) -> None:
        """`is_given_back`: a kubelet that gives a device has taken it from whoever had it."""
        limit_s = self._parent.settings().reset_limit_s
        try:
            async with asyncio.timeout(limit_s):
                while waits := [one for one in devices if not self._is_ready(one, is_given_back=is_given_back)]:
                    self._check_none_is_kept_back(waits)
                    self.begin_resets()
                    is_reset = any(self.record.of(one).use is Use.DIRTY for one in waits)
                    with self._parent.metrics.held("reset" if is_reset else "use"):
                        await self._bell.wait()
        except TimeoutError:
            uses = ", ".join(f"{told(one)} is {self.record.of(one).use}" for one in waits)
            raise NotGiven(f"not reset within {limit_s:g} s: {uses}; devices.front.resetTimeout") from None

    def _check_none_is_kept_back(self, devices: Sequence[str]) -> None:
        for one in devices:
            if why := self.record.of(one).why:
                raise NotGiven(f"device {told(one)} of {self.resource} is in quarantine: {why}")

    def _is_ready(self, device: str, *, is_given_back: bool) -> bool:
        known = self.record.of(device)
        if not is_given_back:
            return known.use in (Use.CLEAN, Use.GRANTED, Use.USED)
        if known.use is Use.GRANTED or (known.use is Use.USED and not self._parent.is_held(self.resource, device)):
            self._take({device: FrontDevice(Use.DIRTY)})
        return known.use is Use.CLEAN

    async def _save_first(self, changes: Mapping[str, FrontDevice]) -> None:
        before = {name: self.record.of(name) for name in changes}
        self._take(changes)
        try:
            await self._parent.save(self.record)
        except OSError as error:
            self._take(before)
            raise NotGiven(f"the record of {self.resource} cannot be written: {error}") from error

    async def close(self) -> None:
        """A reset that runs is ended; whoever starts next begins it anew."""
        for task in list(self._resets.values()):
            task.cancel()
        await asyncio.gather(*self._resets.values(), return_exceptions=True)


async def tried_reset(commands: DeviceCommands, command: Command | None, resource: str, device: str) -> str:
    """Why it failed, after all that may be tried; nothing where the device is clean."""
    if command is None:
        return "devices.front.resources has no reset of it any more"
    return await commands.reset(command, resource, device)

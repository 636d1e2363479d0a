# SPDX-License-Identifier: Apache-2.0
"""Where the devices plane meets its drivers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec

from agent.config.document import Configuration
from agent.devices.manifest.documents import Reader
from agent.devices.plan.pools import Node
from agent.devices.plan.records import ClaimRecord
from agent.devices.run.cdi_directories import CdiDirectories
from agent.devices.run.claims import DeviceClaims, ManagerSettings
from agent.devices.run.commands import DeviceCommands
from agent.devices.run.host_devices import DEV, HostDevices
from agent.devices.run.local_driver import ConfiguredDevices, FakeDevices, LocalDriver
from agent.devices.run.metrics import DeviceMetrics
from agent.devices.run.plane import DevicePlane
from agent.devices.run.plugins import PluginDevices, PluginSettings
from agent.devices.run.pod_devices import PodDevices
from agent.devices.run.registry import PluginRegistry
from agent.devices.run.slice_directories import SliceDirectories
from agent.devices.run.view import DeviceView
from agent.devices.settings import plugin_resets, pool_rules
from agent.drivers.cgroups.commands import CommandGroups
from agent.drivers.device_plugins.driver import PluginDirectory
from agent.drivers.folder_watch import FolderWatch
from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.trust import Trust
from agent.drivers.plugin_sockets.driver import PluginSockets
from agent.drivers.plugin_sockets.kubelet import kubelet_beside
from agent.drivers.plugin_sockets.pod_resources import PodResourcesSocket
from agent.drivers.state_files.driver import StateFiles
from agent.kit.configuration import instance_id, write_atomically
from agent.kit.outside import Outside
from agent.model.component import Report
from agent.pods.attach.wiring import BOOT_ID

# Longer than any call may take.
HANG_S = 86400.0


class WiredDevices(msgspec.Struct, frozen=True):
    """`registry` is there unless no driver may register."""

    plane: DevicePlane
    records: StateFiles
    registry: PluginRegistry | None
    view: DeviceView
    metrics: DeviceMetrics
    plugins: PluginDevices | None

    async def close(self) -> None:
        await asyncio.to_thread(self.records.close)


def wire_devices(outside: Outside) -> WiredDevices:
    configuration = outside.configuration()
    records = StateFiles(Path(configuration.node.state_directory) / "devices")
    cdi = CdiDirectories(
        [Path(one) for one in configuration.devices.cdi.directories], Path(configuration.devices.cdi.output)
    )
    metrics = DeviceMetrics()
    boot_id = BOOT_ID.read_text().strip()
    claims = DeviceClaims(
        records, cdi, outside.clock, lambda: manager_settings(outside.configuration(), boot_id), outside.tell, metrics
    )
    manifests = ManifestDirectory(
        Path(configuration.manifests.directory),
        lambda: (outside.configuration().manifests.rescan, outside.configuration().manifests.debounce),
        lambda: Trust(outside.configuration().manifests.group_writable),
    )
    commands = device_commands(configuration)
    drivers = [
        LocalDriver(one, cdi, records, outside.tell, metrics, commands)
        for one in own_devices(outside, claims.records.values)
    ]
    plugins = _plugins(outside, records, boot_id, metrics, commands)
    reader = Reader(configuration.node.name, trusts_status=configuration.devices.manager.trust_status)
    plane = DevicePlane(
        manager=claims,
        pod_devices=PodDevices(claims, plugins),
        cdi=cdi,
        locals_=drivers,
        manifests=manifests,
        reader=reader,
        clock=outside.clock,
        tell=outside.tell,
        commands=commands,
        directories=_slice_directories(configuration, reader),
        changed_slices=FolderWatch(Path(configuration.devices.manager.slices), 1, 0o700).changed,
        changed_nodes=changed_nodes(outside) if drivers else None,
    )
    own = {one.name: one for one in drivers}
    registry = _registry(outside, claims, list(own))
    view = DeviceView(claims, own, registry, plugins, commands.printed)
    count_by(metrics, view)
    return WiredDevices(plane, records, registry, view, metrics, plugins)


def pod_resources(outside: Outside, view: DeviceView) -> Callable[[Report], Awaitable[None]] | None:
    """What runs to tell exporters of the devices of pods; None where nobody asks. DVP-7, DVS-3."""
    given = outside.configuration().devices.pod_resources
    if not given:
        return None
    path = Path(given)
    one = PodResourcesSocket(path, view.pod_uses, view.allocatable, outside.clock.now_s)

    async def run(report: Report) -> None:
        if why := await kubelet_beside(path.parent.parent):
            raise RuntimeError(f"{why}; exporters ask that one")
        async with one.serving():
            report.ready(str(path))
            await asyncio.Event().wait()

    return run


def changed_nodes(outside: Outside) -> Callable[[float], Awaitable[None]]:
    """Waits for a node that comes or goes, in /dev and where patterns look: not where terminals are."""
    host = HostDevices()
    return FolderWatch(DEV, 0, 0o755, lambda: host.directories(pool_rules(outside.configuration()))).changed


def _slice_directories(configuration: Configuration, reader: Reader) -> SliceDirectories | None:
    manager = configuration.devices.manager
    return SliceDirectories(Path(manager.slices), reader) if manager.enabled and manager.slices else None


def device_commands(configuration: Configuration) -> DeviceCommands:
    """One for the whole process: the first of them ends what an earlier life left."""
    state = Path(configuration.node.state_directory)
    note = state / "devices" / "commands"
    noted = note.read_text().strip() if note.exists() else ""
    return DeviceCommands(CommandGroups(instance_id(state), noted, lambda text: write_atomically(note, text.encode())))


def _plugins(
    outside: Outside, records: StateFiles, boot_id: str, metrics: DeviceMetrics, commands: DeviceCommands
) -> PluginDevices | None:
    plugins = outside.configuration().devices.plugins
    if not plugins.enabled:
        return None
    directory = Path(plugins.directory)
    return PluginDevices(
        PluginDirectory(directory),
        records,
        outside.clock,
        lambda: plugin_settings(outside.configuration(), boot_id),
        outside.tell,
        kubelet=lambda: kubelet_beside(directory.parent),
        metrics=metrics,
        commands=commands,
    )


def plugin_settings(configuration: Configuration, boot_id: str) -> PluginSettings:
    plugins = configuration.devices.plugins
    return PluginSettings(
        boot_id=boot_id,
        allowed=(0, *plugins.allow),
        allocate_limit_s=plugins.allocate_timeout,
        resets=plugin_resets(configuration),
    )


def count_by(metrics: DeviceMetrics, view: DeviceView) -> None:
    metrics.devices, metrics.claims, metrics.drivers = view.count_devices, view.count_claims, view.count_drivers


def _registry(outside: Outside, claims: DeviceClaims, own: list[str]) -> PluginRegistry | None:
    manager = outside.configuration().devices.manager
    directory = manager.registry
    if not directory or not manager.enabled:
        return None
    place = Path(directory)
    return PluginRegistry(
        PluginSockets(place),
        claims,
        outside.clock,
        lambda: outside.configuration().devices.manager.call_timeout,
        outside.tell,
        own=own,
        observe=claims.metrics.called,
        kubelet=lambda: kubelet_beside(place.parent),
    )


def own_devices(
    outside: Outside, records: Callable[[], Iterable[ClaimRecord]]
) -> list[ConfiguredDevices | FakeDevices]:
    configuration = outside.configuration()
    node, driver = configuration.node.name, configuration.devices.driver
    if not driver.enabled:
        return []

    found: list[ConfiguredDevices | FakeDevices] = [
        ConfiguredDevices(driver.name, node, lambda: pool_rules(outside.configuration()), HostDevices(), records)
    ]
    if driver.fake.count:
        found.append(FakeDevices(node, driver.fake.count, HANG_S, outside.clock.sleep))
    return found


def manager_settings(configuration: Configuration, boot_id: str) -> ManagerSettings:
    node, devices = configuration.node, configuration.devices
    endpoints = {configuration.runtime.endpoint, configuration.runtime.image_endpoint}
    return ManagerSettings(
        node=Node(name=node.name, labels=node.labels),
        boot_id=boot_id,
        call_limit_s=devices.manager.call_timeout,
        admin_namespaces=devices.manager.admin_namespaces,
        always_merges=devices.cdi.merge == "always",
        private=(
            node.state_directory,
            node.run_directory,
            *sorted(one.removeprefix("unix://") for one in endpoints if one),
        ),
    )

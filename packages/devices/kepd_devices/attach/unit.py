# SPDX-License-Identifier: Apache-2.0
"""The devices plane put together: claims, drivers of its own, plugins; or, beside a kubelet, what serves that."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.config.document import Configuration
from agent.drivers.folder_watch import FolderWatch
from agent.drivers.state_files.driver import StateFiles
from agent.kit.configuration import BOOT_ID
from agent.kit.desk import ProcessDesk
from agent.kit.plane import Attached, Families, PlaneInputs, PlaneUnit, Run
from agent.model.component import Report
from agent.model.finding import Advice
from agent.model.pods.state import PodState
from agent.model.runtime.features import RuntimeFeatures
from kepd_devices.attach.device_service import DeviceService
from kepd_devices.attach.settings import changed_nodes, device_commands, manager_settings, own_devices, plugin_settings
from kepd_devices.cdi.merging import plain_place
from kepd_devices.drivers.device_plugins.driver import PluginDirectory
from kepd_devices.drivers.plugin_sockets.driver import PluginSockets
from kepd_devices.drivers.plugin_sockets.kubelet import kubelet_beside
from kepd_devices.drivers.plugin_sockets.pod_resources import PodResourcesSocket
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import device_reading
from kepd_devices.ports import PodsOfNode
from kepd_devices.run.cdi_directories import CdiDirectories
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.drivers.registry import PluginRegistry
from kepd_devices.run.drivers.slice_directories import SliceDirectories
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.plane import DevicePlane
from kepd_devices.run.plugins import PluginDevices
from kepd_devices.run.pod_devices import PodDevices
from kepd_devices.run.view import DeviceView

if TYPE_CHECKING:
    from agent.kit.runtime import RuntimeWatch


class DeviceOffers(msgspec.Struct, frozen=True):
    """Neither is there beside a kubelet, which gives devices itself."""

    of_pods: PodDevices | None = None
    with_devices: Callable[[PodState], PodState] | None = None


def attach(inputs: PlaneInputs, pods: PodsOfNode | None) -> Attached[DeviceOffers]:
    """`pods` are those of the pods plane, if it runs here."""
    configuration = inputs.configuration()
    devices = configuration.devices
    if not (devices.manager.enabled or devices.plugins.enabled):
        return _attach_beside_kubelet(inputs)
    boot_id, commands = BOOT_ID.read_text().strip(), device_commands(configuration)
    records = StateFiles(Path(configuration.node.state_directory) / "devices")
    cdi = CdiDirectories([Path(one) for one in devices.cdi.directories], Path(devices.cdi.output))
    metrics = DeviceMetrics()
    desks = (ProcessDesk(), ProcessDesk())
    claims = DeviceClaims(
        records, cdi, inputs.clock, lambda: manager_settings(inputs.configuration(), boot_id), inputs.tell, metrics,
        pods=pods, desks=desks,
    )  # fmt: skip
    drivers = [
        LocalDriver(one, cdi, records, inputs.tell, metrics, commands)
        for one in own_devices(inputs, claims.records.values)
    ]
    plugins = _plugins(inputs, records, boot_id, metrics, commands, pods)
    reader = Reader(configuration.node.name, trusts_status=devices.manager.trust_status)
    plane = DevicePlane(
        manager=claims,
        pod_devices=PodDevices(claims, plugins),
        cdi=cdi,
        locals_=drivers,
        manifests=inputs.find_manifests(lambda: device_reading(reader)),
        clock=inputs.clock,
        tell=inputs.tell,
        commands=commands,
        directories=_slice_directories(configuration, reader),
        changed_slices=FolderWatch(Path(devices.manager.slices), 1, 0o700).changed,
        changed_nodes=changed_nodes(inputs) if drivers else None,
        pods=pods,
    )
    own = {one.name: one for one in drivers}
    registry = _registry(inputs, claims, list(own))
    watch = inputs.runtime.watch
    view = DeviceView(
        claims, own, registry, plugins, commands.printed,
        pod=pods.pod if pods is not None else lambda _namespace, _name: None, runtime=watch.features,
    )  # fmt: skip
    count_by(metrics, view)
    units: list[tuple[str, Run]] = [("devices", plane.run)]
    if devices.api.enabled:
        from kepd_devices.attach.driver_api import wire_driver_api

        units.append(("device-api", wire_driver_api(inputs, claims, records)))
    units += [("device-drivers", registry.run)] if registry is not None else []
    units += [("device-plugins", plugins.run)] if plugins is not None else []
    if (run := pod_resources(inputs, view)) is not None:
        units.append(("pod-resources", run))
    directories = tuple(dict.fromkeys((*devices.cdi.directories, devices.cdi.output)))
    return Attached(
        offers=DeviceOffers(plane.pod_devices, view.with_devices),
        service=DeviceService(view),
        units=tuple(PlaneUnit(name, run, is_plane=name == "devices") for name, run in units),
        families=(metrics.families,),
        advice=(plane.advice, partial(cdi_advice, watch, directories)),
        close=partial(_close, desks, records),
    )


async def _close(desks: Iterable[ProcessDesk], records: StateFiles) -> None:
    for desk in desks:
        await desk.end()
    await asyncio.to_thread(records.close)


def _attach_beside_kubelet(inputs: PlaneInputs) -> Attached[DeviceOffers]:
    """As a driver, in front of plugins, or both."""
    configuration = inputs.configuration()
    devices, commands = configuration.devices, device_commands(configuration)
    units: list[PlaneUnit] = []
    families: list[Families] = []
    closing: list[StateFiles] = []
    service: DeviceService | None = None
    if devices.driver.enabled:
        from kepd_devices.attach.cluster import wire_kubelet_drivers

        drivers, records = wire_kubelet_drivers(inputs, commands)
        closing.append(records)
        for name, one in zip(("devices", "devices-fake"), drivers, strict=False):
            units.append(PlaneUnit(name, one.run, is_plane=name == "devices"))
    if devices.front.enabled:
        from kepd_devices.attach.front import wire_front

        metrics = DeviceMetrics()
        front, view, files = wire_front(inputs, metrics, commands)
        metrics.devices, metrics.drivers = view.count_devices, view.count_drivers
        closing.append(files)
        families.append(metrics.families)
        service = DeviceService(view)
        units.append(PlaneUnit("device-front" if units else "devices", front.run, is_plane=not units))

    async def close() -> None:
        for one in closing:
            one.close()

    return Attached(
        offers=DeviceOffers(), service=service, units=tuple(units), families=tuple(families), close=close
    )  # fmt: skip


def pod_resources(inputs: PlaneInputs, view: DeviceView) -> Callable[[Report], Awaitable[None]] | None:
    """The server that tells exporters which devices pods have; None where the configuration has it off."""
    given = inputs.configuration().devices.pod_resources
    if not given:
        return None
    path = Path(given)
    one = PodResourcesSocket(path, view.pod_uses, view.allocatable, inputs.clock.now_s)

    async def run(report: Report) -> None:
        if why := await kubelet_beside(path.parent.parent):
            raise RuntimeError(f"{why}; exporters ask that one")
        async with one.serving():
            report.ready(str(path))
            await asyncio.Event().wait()

    return run


def _slice_directories(configuration: Configuration, reader: Reader) -> SliceDirectories | None:
    manager = configuration.devices.manager
    return SliceDirectories(Path(manager.slices), reader) if manager.enabled and manager.slices else None


def _plugins(
    inputs: PlaneInputs,
    records: StateFiles,
    boot_id: str,
    metrics: DeviceMetrics,
    commands: DeviceCommands,
    pods: PodsOfNode | None,
) -> PluginDevices | None:
    plugins = inputs.configuration().devices.plugins
    if not plugins.enabled:
        return None
    directory = Path(plugins.directory)
    return PluginDevices(
        PluginDirectory(directory),
        records,
        inputs.clock,
        lambda: plugin_settings(inputs.configuration(), boot_id),
        inputs.tell,
        kubelet=lambda: kubelet_beside(directory.parent),
        metrics=metrics,
        commands=commands,
        changed=pods.devices_changed if pods is not None else lambda: None,
    )


def count_by(metrics: DeviceMetrics, view: DeviceView) -> None:
    metrics.devices, metrics.claims, metrics.drivers = view.count_devices, view.count_claims, view.count_drivers


def _registry(inputs: PlaneInputs, claims: DeviceClaims, own: list[str]) -> PluginRegistry | None:
    manager = inputs.configuration().devices.manager
    directory = manager.registry
    if not directory or not manager.enabled:
        return None
    place = Path(directory)
    return PluginRegistry(
        PluginSockets(place),
        claims,
        inputs.clock,
        lambda: inputs.configuration().devices.manager.call_timeout,
        inputs.tell,
        own=own,
        observe=claims.metrics.called,
        kubelet=lambda: kubelet_beside(place.parent),
    )


async def cdi_advice(runtime: "RuntimeWatch", directories: Sequence[str]) -> list[Advice]:
    """What `kepctl doctor` says of the runtime and CDI, of the configuration's `directories`. Nothing while the runtime
    does not answer, for it alone knows."""
    if not runtime.facts.is_connected:
        return []
    features = await runtime.features()
    if features.has_cdi:
        known = {plain_place(one) for one in features.cdi_directories}
        return [_elsewhere(features, one) for one in directories if known and plain_place(one) not in known]
    text = (
        "kepd reads CDI files itself and passes their contents to the runtime; what CRI cannot carry, such as a hook,"
        " fails the container with CDINotSupported"
    )
    return [Advice(subject=features.label, found="resolves no CDI ids", wanted="", text=text, is_note=True)]


def _elsewhere(features: RuntimeFeatures, directory: str) -> Advice:
    return Advice(
        subject=features.label,
        found=f"looks for CDI files in {', '.join(features.cdi_directories)}",
        wanted=f"{directory} too, which devices.cdi names",
        text="containers whose devices are described there fail with CDINotSupported",
    )

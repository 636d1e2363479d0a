# SPDX-License-Identifier: Apache-2.0
"""Where kepd in front of device plugins meets the runtime, the kubelet's directory and the plugins."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from agent.config.document import Configuration
from agent.drivers.state_files.driver import StateFiles
from agent.kit.configuration import BOOT_ID
from agent.kit.plane import PlaneInputs
from agent.kit.runtime import Runtime
from agent.wire.cri import runtime_v1_pb2 as pb
from kepd_devices.drivers.device_plugins.driver import PluginDirectory
from kepd_devices.drivers.device_plugins.front import KubeletFront
from kepd_devices.plan.plugins.front import Holding, Holdings, label_of, read_notes
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.front.proxy import FrontSettings, PluginProxy
from kepd_devices.run.front.resource import NotGiven
from kepd_devices.run.front.view import FrontView
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.settings import front_resets

# What happens in a burst is looked at once.
BURST_S = 0.1
POD, NAMESPACE = "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"


class RuntimeHoldings:
    """Which containers have devices, as their annotations say."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def look(self) -> Holdings:
        """Raises RuntimeCallFailed. Containers first: one whose sandbox came later is looked at the next time."""
        containers = await self._runtime.cri.list_containers()
        sandboxes = await self._runtime.cri.list_sandboxes()
        ready = frozenset(one.id for one in sandboxes if one.state == pb.SANDBOX_READY)
        return Holdings(tuple(found for one in containers for found in _holdings(one, ready)), ready)

    async def news(self) -> AsyncIterator[None]:
        async for _ in self._runtime.events.listen():
            await asyncio.sleep(BURST_S)
            yield


def _holdings(one: pb.Container, ready: frozenset[str]) -> list[Holding]:
    holds = one.pod_sandbox_id in ready or one.state in (pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN)
    pod = f"{one.labels.get(NAMESPACE, '')}/{one.labels.get(POD, '')}"
    return [
        Holding(*found, one.pod_sandbox_id, pod, holds, one.created_at / 1e9) for found in read_notes(one.annotations)
    ]


def wire_front(
    inputs: PlaneInputs, metrics: DeviceMetrics, commands: DeviceCommands
) -> tuple[PluginProxy, FrontView, StateFiles]:
    configuration = inputs.configuration()
    files = StateFiles(Path(configuration.node.state_directory) / "devices")
    boot_id = BOOT_ID.read_text().strip()
    front = PluginProxy(
        PluginDirectory(Path(configuration.node.run_directory) / "device-plugins"),
        KubeletFront(Path(configuration.devices.driver.kubelet_directory) / "device-plugins", label_of, NotGiven),
        RuntimeHoldings(inputs.runtime),
        files,
        clock=inputs.clock,
        settings=lambda: front_settings(inputs.configuration(), boot_id),
        tell=inputs.tell,
        metrics=metrics,
        commands=commands,
    )
    return front, FrontView(front), files


def front_settings(configuration: Configuration, boot_id: str) -> FrontSettings:
    return FrontSettings(
        boot_id=boot_id,
        allowed=(0, *configuration.devices.plugins.allow),
        resets=front_resets(configuration),
        reset_limit_s=configuration.devices.front.reset_timeout,
    )

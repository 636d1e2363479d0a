# SPDX-License-Identifier: Apache-2.0
"""All devices that pods of this node have: those of claims, and those of plugins. The port of the pods plane."""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from agent.model.devices.container_devices import NO_DEVICES, ContainerDevices
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.runtime.features import RuntimeFeatures
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.plugins import PluginDevices


class PodDevices:
    """Without plugins, claims alone."""

    def __init__(self, claims: DeviceClaims, plugins: PluginDevices | None) -> None:
        self._claims = claims
        self._plugins = plugins

    async def hold(self, pod: PodSpec) -> None:
        """Raises DevicesNotReady."""
        await self._claims.hold(pod)
        if self._plugins is not None:
            await self._plugins.hold(pod)

    async def edits(self, pod: PodSpec, container: ContainerSpec, runtime: RuntimeFeatures) -> ContainerDevices:
        """Raises DevicesNotReady."""
        of_claims = await self._claims.edits(pod, container, runtime)
        if self._plugins is None:
            return of_claims
        of_plugins = await self._plugins.edits(pod, container)
        if of_plugins == NO_DEVICES:
            return of_claims
        of_cdi = await self._claims.resolved(list(of_plugins.cdi_ids), runtime)
        return _joined(of_claims, replace(of_plugins, cdi_ids=()), of_cdi)

    async def release(self, uid: str) -> None:
        """Raises DevicesNotReleased."""
        await self._claims.release(uid)
        if self._plugins is not None:
            await self._plugins.release(uid)

    async def reconcile(self, pods: Callable[[], Collection[str]]) -> None:
        await self._claims.reconcile(pods)
        if self._plugins is not None:
            await self._plugins.reconcile(pods)


def _joined(*parts: ContainerDevices) -> ContainerDevices:
    """Claims come first."""
    return ContainerDevices(
        env=tuple(dict(pair for one in reversed(parts) for pair in one.env).items()),
        nodes=tuple({node.container_path: node for one in reversed(parts) for node in one.nodes}.values()),
        mounts=tuple({mount.container_path: mount for one in reversed(parts) for mount in one.mounts}.values()),
        groups=tuple(dict.fromkeys(group for one in parts for group in one.groups)),
        cdi_ids=tuple(dict.fromkeys(device for one in parts for device in one.cdi_ids)),
        notes=tuple(dict(pair for one in reversed(parts) for pair in one.notes).items()),
    )

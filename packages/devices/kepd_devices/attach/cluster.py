# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver beside a kubelet, and what it needs of an API server: claims, the node, and its slices.

Apart from the rest of the plane: with the client of an API server it costs eight MiB.
"""

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.errors import KubeError, Missing
from agent.drivers.kube.resource import NODE_METADATA, RESOURCE_CLAIMS, RESOURCE_SLICES, Disconnected, Replaced
from agent.drivers.state_files.driver import StateFiles
from agent.kit.plane import PlaneInputs
from agent.model.kube_objects import ObjectMeta
from kepd_devices.attach.settings import changed_nodes, own_devices
from kepd_devices.drivers.plugin_sockets.serving import DriverSockets
from kepd_devices.manifest.objects import Claim, Slice
from kepd_devices.plan.records import ClaimRecord
from kepd_devices.run.cdi_directories import CdiDirectories
from kepd_devices.run.commands import DeviceCommands
from kepd_devices.run.drivers.kubelet_driver import ClusterAway, KubeletDriver
from kepd_devices.run.drivers.local_driver import LocalDriver


class ApiCluster:
    """With the client of this process; without an API server every call says so."""

    def __init__(self, client: KubeClient | None, node: str) -> None:
        self._client = client
        self._node = node

    @property
    def _kube(self) -> KubeClient:
        if self._client is None:
            raise ClusterAway("no API server is known; set kubernetes.kubeconfig")
        return self._client

    async def claim(self, namespace: str, name: str) -> Claim | None:
        kube = self._kube
        try:
            found = await kube.get(RESOURCE_CLAIMS.narrowed(namespace=namespace), name)
            return msgspec.convert(
                {
                    "metadata": {"name": name, "namespace": namespace, "uid": found.metadata.uid},
                    "spec": found.spec,
                    "status": found.status or {},
                },
                Claim,
            )
        except Missing:
            return None
        except (KubeError, msgspec.ValidationError) as error:
            raise ClusterAway(str(error)) from error

    async def node_uid(self) -> str:
        try:
            return (await self._kube.get(NODE_METADATA, self._node)).metadata.uid
        except KubeError as error:
            raise ClusterAway(str(error)) from error

    async def slices(self, driver: str) -> list[Slice]:
        """All of the driver on this node."""
        selector = f"spec.driver={driver},spec.nodeName={self._node}"
        async with aclosing(self._kube.follow(RESOURCE_SLICES.narrowed(field_selector=selector))) as news:
            async for one in news:
                if isinstance(one, Disconnected):
                    raise ClusterAway(one.reason)
                if isinstance(one, Replaced):
                    return [_slice(it.metadata, it.spec) for it in one.items]
        raise ClusterAway("the API server ended the list")

    async def write_slice(self, document: Mapping[str, Any], *, is_new: bool) -> None:
        try:
            if is_new:
                await self._kube.create(RESOURCE_SLICES, document)
            else:
                await self._kube.patch(RESOURCE_SLICES, document["metadata"]["name"], {"spec": document["spec"]})
        except KubeError as error:
            raise ClusterAway(str(error)) from error

    async def delete_slice(self, name: str) -> None:
        try:
            await self._kube.delete(RESOURCE_SLICES, name)
        except Missing:
            return
        except KubeError as error:
            raise ClusterAway(str(error)) from error


def _slice(metadata: ObjectMeta, spec: Mapping[str, Any]) -> Slice:
    return msgspec.convert({"metadata": {"name": metadata.name}, "spec": spec}, Slice)


def wire_kubelet_drivers(inputs: PlaneInputs, commands: DeviceCommands) -> tuple[list[KubeletDriver], StateFiles]:
    """kepd's own drivers beside a kubelet, which gives their devices to its pods."""
    configuration = inputs.configuration()
    devices, node = configuration.devices, configuration.node.name
    files = StateFiles(Path(configuration.node.state_directory) / "devices" / "kubelet")
    output = Path(devices.cdi.output)
    cdi = CdiDirectories([output], output)
    cluster = ApiCluster(inputs.find_kube(), node)
    found: list[KubeletDriver] = []

    def records() -> list[ClaimRecord]:
        return [record for one in found if one.local.name == devices.driver.name for record in one.records.values()]

    for own in own_devices(inputs, records):
        local = LocalDriver(own, cdi, files, inputs.tell, commands=commands)
        sockets = DriverSockets(Path(devices.driver.kubelet_directory), local.name)
        found.append(
            KubeletDriver(local, sockets, cluster, files, inputs.clock, node, changed_nodes=changed_nodes(inputs))
        )
    return found, files

# SPDX-License-Identifier: Apache-2.0
"""What exporters of vendors are told of the devices of pods. DVP-7."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.model.devices.pod_resources import ResourceUse
from agent.wire.kubelet import pod_resources_v1_pb2 as pb
from kepd_devices.drivers.plugin_sockets.pod_resources import MOST_AT_ONCE, PodResourcesSocket
from kepd_devices.drivers.plugin_sockets.serving import SocketTaken
from kepd_devices.run.view import DeviceView
from packages.devices.tests.test_claims import NodeOfLives, shared_pod
from packages.devices.tests.test_plugins import GPU, Plugins, plugins, pod

__all__ = ["plugins"]
KINDS: dict[str, tuple[Any, Any]] = {
    "List": (pb.ListPodResourcesRequest, pb.ListPodResourcesResponse),
    "Get": (pb.GetPodResourcesRequest, pb.GetPodResourcesResponse),
    "GetAllocatableResources": (pb.AllocatableResourcesRequest, pb.AllocatableResourcesResponse),
}


async def asked(socket: Path, method: str, **fields: str) -> Any:
    request, answer = KINDS[method]
    async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(f"/v1.PodResourcesLister/{method}", request.SerializeToString, answer.FromString)
        return await call(request(**fields), timeout=10)


async def test_a_pod_is_told_with_its_claims(short_path: Path) -> None:
    node = NodeOfLives()
    manager = await node.manager()
    view = DeviceView(manager, {}, None)
    view.pod = lambda _namespace, name: shared_pod(name)
    await manager.hold(shared_pod("one"))
    path = short_path / "kubelet.sock"
    async with PodResourcesSocket(path, view.pod_uses, view.allocatable, lambda: 0.0).serving():
        (found,) = (await asked(path, "List")).pod_resources
        same = (await asked(path, "Get", pod_name="one", pod_namespace="default")).pod_resources
        with pytest.raises(grpc.aio.AioRpcError, match="no pod default/two has devices here"):
            await asked(path, "Get", pod_name="two", pod_namespace="default")
        with pytest.raises(SocketTaken):
            async with PodResourcesSocket(path, list, list, lambda: 0.0).serving():
                pass
    (container,) = found.containers
    (claim,) = container.dynamic_resources

    assert found == same
    assert (claim.claim_namespace, claim.claim_name) == ("default", "gpus")
    assert [(one.driver_name, one.pool_name, one.device_name) for one in claim.claim_resources] == [
        ("gpu.example.com", "here", "gpu-0")
    ]
    assert [one.name for one in claim.claim_resources[0].cdi_devices] == ["gpu.example.com/gpu=gpu-0"]
    assert not path.exists()


async def test_a_pod_is_told_with_its_devices_of_plugins(plugins: Plugins) -> None:
    plugins.start()
    await plugins.listed()
    await plugins.devices.hold(pod())
    node = NodeOfLives()
    view = DeviceView(await node.manager(), {}, None, plugins.devices)
    view.pod = lambda _namespace, _name: pod()

    assert [one.resources for one in view.pod_uses()[0].containers] == [(ResourceUse(GPU, ("gpu-0",)),)]
    assert view.allocatable() == [ResourceUse(GPU, ("gpu-0", "gpu-1"))]


async def test_a_flood_of_questions_is_refused(short_path: Path) -> None:
    path = short_path / "r.sock"
    async with PodResourcesSocket(path, list, list, lambda: 0.0).serving():
        for _ in range(int(MOST_AT_ONCE)):
            await asked(path, "GetAllocatableResources")
        with pytest.raises(grpc.aio.AioRpcError, match="more than 100 calls a second"):
            await asked(path, "List")

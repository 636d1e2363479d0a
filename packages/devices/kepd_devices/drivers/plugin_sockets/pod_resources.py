# SPDX-License-Identifier: Apache-2.0
"""The socket at which exporters of vendors ask which pod has which device, as with a kubelet.

A kubelet's that somebody accepts on is never removed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from agent.model.allowance import Allowance
from agent.model.devices.pod_resources import (
    ClaimDevice,
    ClaimOfContainer,
    ContainerResources,
    PodResources,
    ResourceUse,
)
from agent.wire.kubelet import pod_resources_v1_pb2 as pb
from kepd_devices.drivers.plugin_sockets.serving import DIRECTORY_MODE, SOCKET_MODE, SocketTaken, accepts

SERVICE = "v1.PodResourcesLister"
# As a kubelet has it: a second's calls, and how many at once.
MOST_CALLS, MOST_AT_ONCE = 100.0, 100.0
Pods = Callable[[], Sequence[PodResources]]
Resources = Callable[[], Sequence[ResourceUse]]


class PodResourcesSocket:
    def __init__(self, path: Path, pods: Pods, allocatable: Resources, now_s: Callable[[], float]) -> None:
        self.path = path
        self._pods = pods
        self._allocatable = allocatable
        self._now_s = now_s
        self._calls = Allowance(MOST_AT_ONCE, MOST_CALLS, now_s())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Raises OSError."""
        await asyncio.to_thread(self._make_room)
        server = grpc.aio.server()
        handlers: dict[str, tuple[Any, Any]] = {
            "List": (self._list, pb.ListPodResourcesRequest),
            "Get": (self._get, pb.GetPodResourcesRequest),
            "GetAllocatableResources": (self._get_allocatable, pb.AllocatableResourcesRequest),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                behaviour, request_deserializer=kind.FromString, response_serializer=lambda one: one.SerializeToString()
            )
            for name, (behaviour, kind) in handlers.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        server.add_insecure_port(f"unix://{self.path}")
        try:
            await server.start()
            await asyncio.to_thread(self.path.chmod, SOCKET_MODE)
            yield
        finally:
            await server.stop(0.5)
            with suppress(FileNotFoundError):
                await asyncio.to_thread(self.path.unlink)

    def _make_room(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        if self.path.is_socket():
            if accepts(self.path):
                raise SocketTaken(f"{self.path} is served by another process")
            self.path.unlink()

    async def _take_turn(self, context: grpc.aio.ServicerContext) -> None:
        if not self._calls.take(self._now_s(), refuses=True):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MOST_CALLS:g} calls a second")

    async def _list(self, _request: object, context: grpc.aio.ServicerContext) -> pb.ListPodResourcesResponse:
        await self._take_turn(context)
        return pb.ListPodResourcesResponse(pod_resources=[_pod(one) for one in self._pods()])

    async def _get(
        self, request: pb.GetPodResourcesRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetPodResourcesResponse:
        await self._take_turn(context)
        wanted = (request.pod_namespace, request.pod_name)
        found = next((one for one in self._pods() if (one.namespace, one.name) == wanted), None)
        if found is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no pod {'/'.join(wanted)} has devices here")
        return pb.GetPodResourcesResponse(pod_resources=_pod(found) if found is not None else None)

    async def _get_allocatable(
        self, _request: object, context: grpc.aio.ServicerContext
    ) -> pb.AllocatableResourcesResponse:
        await self._take_turn(context)
        return pb.AllocatableResourcesResponse(devices=[_resource(one) for one in self._allocatable()])


def _pod(one: PodResources) -> pb.PodResources:
    return pb.PodResources(name=one.name, namespace=one.namespace, containers=[_container(it) for it in one.containers])


def _container(one: ContainerResources) -> pb.ContainerResources:
    return pb.ContainerResources(
        name=one.name,
        devices=[_resource(it) for it in one.resources],
        dynamic_resources=[_claim(it) for it in one.claims],
    )


def _resource(one: ResourceUse) -> pb.ContainerDevices:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in one.nodes]) if one.nodes else None
    return pb.ContainerDevices(resource_name=one.resource, device_ids=one.ids, topology=topology)


def _claim(one: ClaimOfContainer) -> pb.DynamicResource:
    return pb.DynamicResource(
        claim_name=one.name, claim_namespace=one.namespace, claim_resources=[_device(it) for it in one.devices]
    )


def _device(one: ClaimDevice) -> pb.ClaimResource:
    return pb.ClaimResource(
        cdi_devices=[pb.CDIDevice(name=it) for it in one.cdi_ids],
        driver_name=one.driver,
        pool_name=one.pool,
        device_name=one.device,
        share_id=one.share_id or None,
    )

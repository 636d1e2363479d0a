# SPDX-License-Identifier: Apache-2.0
"""A plugin's side beside a kubelet: kepd serves a resource in the kubelet's directory, and registers it.

A kubelet that begins anew removes every socket of the directory and makes its own, which is how it is known.
"""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import grpc

from agent.drivers.grpc_channel import observed, open_channel
from agent.model.devices.plugin import PluginAllocation, PluginDevice, PluginOptions
from agent.wire.kubelet import device_plugin_v1beta1_pb2 as pb
from kepd_devices.drivers.device_plugins.driver import MOST_BYTES, OWN_SOCKET

VERSION, SERVICE = "v1beta1", "v1beta1.DevicePlugin"
REGISTER = "/v1beta1.Registration/Register"
REGISTER_S = 10.0
SOCKET_MODE = 0o600
Identity = tuple[int, int]


class Front(Protocol):
    """Calls that raise are answered with the text of the error."""

    @property
    def resource(self) -> str: ...

    @property
    def options(self) -> PluginOptions: ...

    def lists(self) -> AsyncIterator[list[PluginDevice]]: ...

    async def preferred(self, available: Sequence[str], kept: Sequence[str], count: int) -> list[str]: ...

    async def allocate(self, devices: Sequence[str]) -> PluginAllocation: ...

    async def pre_start(self, devices: Sequence[str]) -> None: ...


class KubeletFront:
    """`name_of` gives a short name of a resource; `refused` is what calls of a front raise when they cannot be."""

    def __init__(self, directory: Path, name_of: Callable[[str], str], refused: type[Exception]) -> None:
        self.directory = directory
        self._name_of = name_of
        self._refused = refused
        self._heard: dict[str, Identity | None] = {}

    @asynccontextmanager
    async def serving(self, front: Front) -> AsyncIterator[None]:
        """Raises OSError where no kubelet is, RuntimeCallFailed where it refuses."""
        self._heard[front.resource] = await asyncio.to_thread(self._kubelet)
        if self._heard[front.resource] is None:
            raise FileNotFoundError(f"no kubelet serves {self.directory / OWN_SOCKET}")
        path = self._socket(front.resource)
        await asyncio.to_thread(path.unlink, missing_ok=True)
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES)])
        server.add_generic_rpc_handlers((_Calls(front, self._refused).handler(),))
        server.add_insecure_port(f"unix://{path}")
        try:
            await server.start()
            await asyncio.to_thread(path.chmod, SOCKET_MODE)
            await self._register(front, path.name)
            yield
        finally:
            await server.stop(0.5)
            with suppress(FileNotFoundError):
                await asyncio.to_thread(path.unlink)

    async def is_registered(self, resource: str) -> bool:
        """Whether the kubelet that is there has heard of it, and finds it."""
        return await asyncio.to_thread(self._is_known, resource)

    def _socket(self, resource: str) -> Path:
        return self.directory / f"kepd-{self._name_of(resource)}.sock"

    def _is_known(self, resource: str) -> bool:
        return self._kubelet() == self._heard.get(resource) and self._socket(resource).is_socket()

    def _kubelet(self) -> Identity | None:
        try:
            facts = os.lstat(self.directory / OWN_SOCKET)
        except OSError:
            return None
        return (facts.st_ino, facts.st_ctime_ns) if stat.S_ISSOCK(facts.st_mode) else None

    async def _register(self, front: Front, endpoint: str) -> None:
        channel = open_channel(f"unix://{self.directory / OWN_SOCKET}")
        request = pb.RegisterRequest(
            version=VERSION, endpoint=endpoint, resource_name=front.resource, options=_options(front.options)
        )
        try:
            call = channel.unary_unary(
                REGISTER,
                request_serializer=pb.RegisterRequest.SerializeToString,
                response_deserializer=pb.Empty.FromString,
            )
            await observed("Register", call(request, timeout=REGISTER_S), lambda _m, _c, _s: None)
        finally:
            await channel.close()


class _Calls:
    def __init__(self, front: Front, refused: type[Exception]) -> None:
        self._front = front
        self._refused = refused

    def handler(self) -> grpc.GenericRpcHandler:
        unary: dict[str, tuple[Callable[[Any], Awaitable[Any]], Any]] = {
            "GetDevicePluginOptions": (self._options, pb.Empty),
            "GetPreferredAllocation": (self._preferred, pb.PreferredAllocationRequest),
            "Allocate": (self._allocate, pb.AllocateRequest),
            "PreStartContainer": (self._pre_start, pb.PreStartContainerRequest),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answering(behaviour),
                request_deserializer=kind.FromString,
                response_serializer=lambda one: one.SerializeToString(),
            )
            for name, (behaviour, kind) in unary.items()
        }
        methods["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._lists,
            request_deserializer=pb.Empty.FromString,
            response_serializer=pb.ListAndWatchResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _answering(self, behaviour: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        async def answer(request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: ANN401
            try:
                return await behaviour(request)
            except self._refused as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))

        return answer

    async def _options(self, _request: pb.Empty) -> pb.DevicePluginOptions:
        return _options(self._front.options)

    async def _lists(self, _request: pb.Empty, _context: object) -> AsyncIterator[pb.ListAndWatchResponse]:
        async for listed in self._front.lists():
            yield pb.ListAndWatchResponse(devices=[_device(one) for one in listed])

    async def _preferred(self, request: pb.PreferredAllocationRequest) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            found = await self._front.preferred(
                one.available_deviceIDs, one.must_include_deviceIDs, one.allocation_size
            )
            answer.container_responses.add(deviceIDs=found)
        return answer

    async def _allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        answer = pb.AllocateResponse()
        for one in request.container_requests:
            answer.container_responses.append(_answer(await self._front.allocate(list(one.devices_ids))))
        return answer

    async def _pre_start(self, request: pb.PreStartContainerRequest) -> pb.PreStartContainerResponse:
        await self._front.pre_start(list(request.devices_ids))
        return pb.PreStartContainerResponse()


def _options(one: PluginOptions) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(
        pre_start_required=one.wants_pre_start, get_preferred_allocation_available=one.has_preference
    )


def _device(one: PluginDevice) -> pb.Device:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in one.nodes]) if one.nodes else None
    return pb.Device(ID=one.id, health="Healthy" if one.is_healthy else "Unhealthy", topology=topology)


def _answer(one: PluginAllocation) -> pb.ContainerAllocateResponse:
    return pb.ContainerAllocateResponse(
        envs=one.env,
        mounts=[
            pb.Mount(host_path=it.host_path, container_path=it.container_path, read_only=it.is_read_only)
            for it in one.mounts
        ],
        devices=[
            pb.DeviceSpec(host_path=it.host_path, container_path=it.container_path, permissions=it.permissions)
            for it in one.nodes
        ],
        annotations=one.annotations,
        cdi_devices=[pb.CDIDevice(name=it) for it in one.cdi_ids],
    )

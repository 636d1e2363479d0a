# SPDX-License-Identifier: Apache-2.0
"""The directory of device plugins: a socket on which they register, and their sockets beside it.

At its start the directory is cleared of sockets, as a kubelet does: plugins see that theirs is gone, or that this one
is new, and register again. A kubelet's that somebody accepts on is never removed.
"""

import asyncio
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from agent.drivers.grpc_channel import observed, open_channel, translated
from agent.model.devices.plugin import (
    PluginAllocation,
    PluginDevice,
    PluginMount,
    PluginNode,
    PluginOptions,
    PluginRegistration,
)
from agent.wire.kubelet import device_plugin_v1beta1_pb2 as pb

OWN_SOCKET = "kubelet.sock"
PLUGIN = "/v1beta1.DevicePlugin/"
HEALTHY = "Healthy"
DIRECTORY_MODE = 0o750
CONNECT_S = 10.0
PEER = struct.Struct("3i")
MOST_BYTES = 16 << 20
MOST_LIST_BYTES = 4 << 20
MOST_DEVICES, MOST_NODES, MOST_EDITS = 4096, 64, 4096
Answer = TypeVar("Answer", bound=Message)
Register = Callable[[PluginRegistration], Awaitable[str]]


class PluginDirectory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @asynccontextmanager
    async def serving(self, register: Register) -> AsyncIterator[None]:
        """Plugins can register meanwhile; `register` answers why one is refused, or nothing. Raises OSError."""
        await asyncio.to_thread(self._clear)
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES)])
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.Registration", {
            "Register": grpc.unary_unary_rpc_method_handler(
                _Intake(register).register,
                request_deserializer=pb.RegisterRequest.FromString,
                response_serializer=pb.Empty.SerializeToString,
            )
        }),))  # fmt: skip
        path = self.directory / OWN_SOCKET
        server.add_insecure_port(f"unix://{path}")
        try:
            await server.start()
            await asyncio.to_thread(path.chmod, 0o600)
            yield
        finally:
            await server.stop(1.0)
            with suppress(FileNotFoundError):
                await asyncio.to_thread(path.unlink)

    def _clear(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        for path in self.directory.iterdir():
            if stat.S_ISSOCK(path.lstat().st_mode) and not _accepts(path):
                path.unlink()

    async def peer(self, endpoint: str) -> int:
        """The user of the process that listens on a socket in the directory. Raises OSError."""
        path = self.directory / endpoint
        if not stat.S_ISSOCK((await asyncio.to_thread(path.lstat)).st_mode):
            raise OSError(f"{path} is no socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(one, str(path))
            _, user, _ = PEER.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
            return int(user)

    def connect(self, endpoint: str) -> "PluginConnection":
        return PluginConnection(self.directory / endpoint)


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(1.0)
        try:
            one.connect(str(path))
        except OSError:
            return False
        return path.name == OWN_SOCKET


class _Intake:
    def __init__(self, register: Register) -> None:
        self._register = register

    async def register(self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext) -> pb.Empty:
        given = PluginRegistration(
            version=request.version, endpoint=request.endpoint, resource=request.resource_name
        )  # fmt: skip
        if why := await self._register(given):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
        return pb.Empty()


class PluginConnection:
    """Calls raise RuntimeCallFailed."""

    def __init__(self, path: Path) -> None:
        self._channel = open_channel(f"unix://{path}")

    async def close(self) -> None:
        await self._channel.close()

    async def options(self, limit_s: float) -> PluginOptions:
        found = await self._call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions, limit_s, waits=True)
        return PluginOptions(
            wants_pre_start=found.pre_start_required, has_preference=found.get_preferred_allocation_available
        )

    async def lists(self) -> AsyncIterator[list[PluginDevice]]:
        """The full list, again after every change, until the plugin ends it. Raises ValueError for too long a one."""
        call = self._channel.unary_stream(
            f"{PLUGIN}ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=None,
        )(pb.Empty())
        try:
            async for content in call:
                yield _devices(content)
        except grpc.aio.AioRpcError as error:
            raise translated("ListAndWatch", error) from None
        finally:
            call.cancel()

    async def preferred(self, available: Sequence[str], kept: Sequence[str], count: int, limit_s: float) -> list[str]:
        one = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=kept, allocation_size=count
        )
        request = pb.PreferredAllocationRequest(container_requests=[one])
        found = await self._call("GetPreferredAllocation", request, pb.PreferredAllocationResponse, limit_s)
        return list(found.container_responses[0].deviceIDs[: len(available)]) if found.container_responses else []

    async def allocate(self, ids: Sequence[str], limit_s: float) -> PluginAllocation | None:
        """None if it answers for no container. Raises ValueError for too long an answer."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        found = await self._call("Allocate", request, pb.AllocateResponse, limit_s)
        return _allocation(found.container_responses[0]) if found.container_responses else None

    async def pre_start(self, ids: Sequence[str], limit_s: float) -> None:
        request = pb.PreStartContainerRequest(devices_ids=ids)
        await self._call("PreStartContainer", request, pb.PreStartContainerResponse, limit_s)

    async def _call(
        self, method: str, request: Message, answer: type[Answer], limit_s: float, *, waits: bool = False
    ) -> Answer:
        call = self._channel.unary_unary(
            f"{PLUGIN}{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await observed(method, call(request, timeout=limit_s, wait_for_ready=waits), lambda _m, _c, _s: None)


def _devices(content: bytes) -> list[PluginDevice]:
    """What a list has is counted before anything is made of it: two bytes are a device."""
    if len(content) > MOST_LIST_BYTES or _has_more_fields(content, MOST_DEVICES):
        raise ValueError(f"it lists more than {MOST_DEVICES} devices, in {len(content)} bytes")
    try:
        found = pb.ListAndWatchResponse.FromString(content)
    except DecodeError as error:
        raise ValueError("its list cannot be read") from error
    return [_device(one) for one in found.devices]


def _has_more_fields(content: bytes, most: int) -> bool:
    """Of a message all of whose fields are messages; what is none is refused later."""
    at = count = 0
    while at < len(content) and count <= most:
        size, shift, at = 0, 0, at + 1
        while at < len(content):
            size |= (content[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if content[at - 1] < 0x80 or shift > 63:
                break
        at, count = at + size, count + 1
    return count > most


def _device(one: pb.Device) -> PluginDevice:
    if len(one.topology.nodes) > MOST_NODES:
        raise ValueError(f"it lists a device of {len(one.topology.nodes)} NUMA nodes; expected at most {MOST_NODES}")
    return PluginDevice(one.ID, one.health == HEALTHY, tuple(node.ID for node in one.topology.nodes))


def _allocation(one: pb.ContainerAllocateResponse) -> PluginAllocation:
    count = sum(map(len, (one.envs, one.mounts, one.devices, one.annotations, one.cdi_devices)))
    if count > MOST_EDITS:
        raise ValueError(f"answers with {count} variables, mounts, nodes, annotations and ids; at most {MOST_EDITS}")
    return PluginAllocation(
        env=dict(one.envs),
        mounts=tuple(PluginMount(it.host_path, it.container_path, it.read_only) for it in one.mounts),
        nodes=tuple(PluginNode(it.host_path, it.container_path, it.permissions) for it in one.devices),
        annotations=dict(one.annotations),
        cdi_ids=tuple(it.name for it in one.cdi_devices),
    )

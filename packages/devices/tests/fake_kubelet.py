# SPDX-License-Identifier: Apache-2.0
"""A kubelet as far as device plugins see one: they register, it follows their lists, allocates, and starts anew.

Its calls are those of a kubelet 1.36: at registration it asks for options and for the list; for each container it calls
Allocate once, and PreStartContainer before each create where that is wanted.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from agent.wire.kubelet import device_plugin_v1beta1_pb2 as pb

PLUGIN = "/v1beta1.DevicePlugin/"


class FakeKubelet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[str] = []
        self.lists: dict[str, list[dict[str, str]]] = {}
        self.options: dict[str, Any] = {}
        self._endpoints: dict[str, grpc.aio.Channel] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """As a kubelet does: every socket in the directory goes."""
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            path.unlink()
        self._server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix://{self.folder}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._endpoints.values():
            await channel.close()
        self._tasks.clear()
        self._endpoints.clear()
        if self._server is not None:
            await self._server.stop(0)

    async def _register(self, request: pb.RegisterRequest, _context: object) -> pb.Empty:
        name = request.resource_name
        channel = grpc.aio.insecure_channel(f"unix://{self.folder}/{request.endpoint}")
        self._endpoints[name] = channel
        self.registered.append(name)
        self.lists[name] = []
        self._tasks.append(asyncio.create_task(self._follow(name, channel)))
        return pb.Empty()

    async def _follow(self, name: str, channel: grpc.aio.Channel) -> None:
        with suppress(grpc.aio.AioRpcError):
            self.options[name] = await self.call(name, "GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)
            follow = channel.unary_stream(
                f"{PLUGIN}ListAndWatch", pb.Empty.SerializeToString, pb.ListAndWatchResponse.FromString
            )
            async for answer in follow(pb.Empty()):
                self.lists[name].append({one.ID: one.health for one in answer.devices})
        self.lists[name].append({})

    async def call(self, name: str, method: str, request: Any, kind: Any) -> Any:
        channel = self._endpoints[name]
        invoke = channel.unary_unary(f"{PLUGIN}{method}", type(request).SerializeToString, kind.FromString)
        return await invoke(request, timeout=30)

    def healthy(self, name: str) -> list[str]:
        now = self.lists.get(name) or [{}]
        return sorted(device for device, health in now[-1].items() if health == "Healthy")

    async def allocate(self, name: str, *devices: str) -> Any:
        """The answer for one container; what is refused is the text of the refusal."""
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=devices)])
        try:
            return (await self.call(name, "Allocate", request, pb.AllocateResponse)).container_responses[0]
        except grpc.aio.AioRpcError as error:
            return error.details()

    async def pre_start(self, name: str, *devices: str) -> str:
        request = pb.PreStartContainerRequest(devices_ids=devices)
        try:
            await self.call(name, "PreStartContainer", request, pb.PreStartContainerResponse)
        except grpc.aio.AioRpcError as error:
            return str(error.details())
        return ""

# SPDX-License-Identifier: Apache-2.0
"""Plugins that register as with a kubelet: their sockets in a directory, who they are, and calls of drivers.

Only sockets count that root owns, in directories that root owns. Who answers is asked of the kernel, not of the plugin.
"""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from agent.drivers.folder_watch import FolderWatch
from agent.drivers.grpc_channel import Observer, observed, open_channel, translated
from agent.model.devices.plugin import (
    ClaimAnswer,
    ClaimReference,
    PluginInfo,
    PluginPeer,
    PluginSocket,
    PreparedDevice,
    ToldHealth,
)
from agent.wire.kubelet import dra_health_v1alpha1_pb2 as health_pb2
from agent.wire.kubelet import dra_v1_pb2, dra_v1beta1_pb2
from agent.wire.kubelet import plugin_registration_v1_pb2 as registration
from kepd_devices.drivers.plugin_sockets.peer import peer_of

REGISTRATION = "/pluginregistration.Registration/"
DRA: dict[str, tuple[str, Any]] = {
    "v1.DRAPlugin": ("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/", dra_v1_pb2),
    "v1beta1.DRAPlugin": ("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/", dra_v1beta1_pb2),
}
HEALTH = "/v1alpha1.DRAResourceHealth/"
STATUSES = {health_pb2.HEALTHY: "Healthy", health_pb2.UNHEALTHY: "Unhealthy"}
CONNECT_S, INFO_S, NOTIFY_S = 10.0, 1.0, 5.0
MOST_SOCKETS = 256
MOST_DEVICES = 1024
DEEPEST = 4
DIRECTORY_MODE = 0o750
Answer = TypeVar("Answer", bound=Message)


class PluginSockets:
    def __init__(self, directory: Path, owner: int = 0) -> None:
        self.directory = directory
        self._owner = owner
        self._watch = FolderWatch(directory, DEEPEST, DIRECTORY_MODE)

    def close(self) -> None:
        self._watch.close()

    async def changed(self, limit_s: float) -> None:
        """Until there may be another socket, or for this time."""
        await self._watch.changed(limit_s)

    def look(self) -> list[PluginSocket]:
        """Blocking. Below the directory too; what begins with a dot is none, as is what is no socket."""
        found: list[PluginSocket] = []
        if self.directory.is_dir():
            for one in self._below(self.directory, 0, ""):
                found.append(one)
                if len(found) == MOST_SOCKETS:
                    break
        return sorted(found, key=lambda one: one.path)

    def _below(self, directory: Path, depth: int, problem: str) -> Iterator[PluginSocket]:
        try:
            if directory.stat().st_uid != self._owner:
                problem = f"{directory} belongs to user {directory.stat().st_uid}; expected root"
            entries = sorted(os.scandir(directory), key=lambda one: one.name)
        except OSError:
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(facts.st_mode) and depth < DEEPEST:
                yield from self._below(Path(entry.path), depth + 1, problem)
            elif stat.S_ISSOCK(facts.st_mode):
                own = problem or (
                    "" if facts.st_uid == self._owner else f"it belongs to user {facts.st_uid}; expected root"
                )
                yield PluginSocket(entry.path, (facts.st_ino, facts.st_ctime_ns), own)

    async def peer(self, path: str) -> PluginPeer:
        """The process that listens there. Raises OSError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().sock_connect(one, path)
            return await asyncio.to_thread(peer_of, one)

    async def info(self, path: str) -> PluginInfo:
        """Who it is. Raises RuntimeCallFailed."""
        answer = await self._ask(
            path, "GetInfo", registration.InfoRequest(), registration.PluginInfo, CONNECT_S + INFO_S
        )
        return PluginInfo(
            type=answer.type, name=answer.name, endpoint=answer.endpoint, versions=tuple(answer.supported_versions)
        )

    async def notify(self, path: str, error: str = "") -> None:
        """Tell it that it is registered, or why it is not. Raises RuntimeCallFailed."""
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        await self._ask(path, "NotifyRegistrationStatus", status, registration.RegistrationStatusResponse, NOTIFY_S)

    async def _ask(self, path: str, method: str, request: Message, answer: type[Answer], limit_s: float) -> Answer:
        channel = open_channel(f"unix://{path}")
        try:
            call = channel.unary_unary(
                f"{REGISTRATION}{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return await observed(method, call(request, timeout=limit_s, wait_for_ready=True), _nobody)
        finally:
            await channel.close()

    def connect(self, endpoint: str, version: str, observe: Observer) -> "DraConnection":
        return DraConnection(endpoint, version, observe)


def _nobody(method: str, code: str, seconds: float) -> None:
    del method, code, seconds


class DraConnection:
    """To one instance of a driver. Calls raise RuntimeCallFailed."""

    def __init__(self, endpoint: str, version: str, observe: Observer) -> None:
        self.endpoint = endpoint
        self._path, self._messages = DRA[version]
        self._channel = open_channel(f"unix://{endpoint}")
        self._observe = observe

    async def close(self) -> None:
        await self._channel.close()

    @property
    def is_connected(self) -> bool:
        return self._channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def prepare(self, claims: Sequence[ClaimReference], limit_s: float) -> dict[str, ClaimAnswer]:
        pb = self._messages
        request = pb.NodePrepareResourcesRequest(claims=self._claims(claims))
        answer = await self._call("NodePrepareResources", request, pb.NodePrepareResourcesResponse, limit_s)
        return {uid: _answer(one) for uid, one in answer.claims.items()}

    async def unprepare(self, claims: Sequence[ClaimReference], limit_s: float) -> dict[str, ClaimAnswer]:
        pb = self._messages
        request = pb.NodeUnprepareResourcesRequest(claims=self._claims(claims))
        answer = await self._call("NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse, limit_s)
        return {uid: ClaimAnswer(error=one.error) for uid, one in answer.claims.items()}

    async def health(self) -> AsyncIterator[Sequence[ToldHealth]]:
        """All of its devices, then what changed, until the driver ends it."""
        call = self._channel.unary_stream(
            f"{HEALTH}NodeWatchResources",
            request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )(health_pb2.NodeWatchResourcesRequest())
        try:
            async for answer in call:
                yield _Told(answer.devices)
        except grpc.aio.AioRpcError as error:
            raise translated("NodeWatchResources", error) from None
        finally:
            call.cancel()

    def _claims(self, claims: Sequence[ClaimReference]) -> list[Any]:
        return [self._messages.Claim(namespace=one.namespace, uid=one.uid, name=one.name) for one in claims]

    async def _call(self, method: str, request: Message, answer: type[Answer], limit_s: float) -> Answer:
        call = self._channel.unary_unary(
            f"{self._path}{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await observed(method, call(request, timeout=limit_s), self._observe)


class _Told(Sequence[ToldHealth]):
    """Read one by one, by whoever does not find it too long."""

    def __init__(self, devices: Sequence[health_pb2.DeviceHealth]) -> None:
        self._devices = devices

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, place: Any) -> Any:  # noqa: ANN401  # of a Sequence
        one = self._devices[place]
        return ToldHealth(
            pool=one.device.pool_name,
            device=one.device.device_name,
            status=STATUSES.get(one.health, "Unknown"),
            message=one.message,
            timeout_s=float(one.health_check_timeout_seconds),
        )


def _answer(one: dra_v1_pb2.NodePrepareResourceResponse) -> ClaimAnswer:
    """What it has is counted before anything is made of it."""
    if len(one.devices) > MOST_DEVICES:
        return ClaimAnswer(error=f"answers with {len(one.devices)} devices; expected at most {MOST_DEVICES}")
    return ClaimAnswer(tuple(map(_device, one.devices)), one.error)


def _device(one: dra_v1_pb2.Device) -> PreparedDevice:
    return PreparedDevice(
        requests=tuple(one.request_names),
        pool=one.pool_name,
        device=one.device_name,
        cdi_ids=tuple(one.cdi_device_ids),
        share_id=getattr(one, "share_id", ""),
    )

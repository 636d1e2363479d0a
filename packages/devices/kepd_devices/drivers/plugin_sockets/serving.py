# SPDX-License-Identifier: Apache-2.0
"""A driver's side: the sockets on which a kubelet finds kepd's own driver and asks it.

The registration socket appears after the other one and goes before it. Sockets of a process that was killed are removed
by whoever has the lock beside them, and never while somebody accepts there.
"""

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import grpc

from agent.model.devices.plugin import ClaimAnswer, ClaimReference, DeviceHealth
from agent.wire.kubelet import dra_health_v1alpha1_pb2 as health
from agent.wire.kubelet import dra_v1_pb2, dra_v1beta1_pb2
from agent.wire.kubelet import plugin_registration_v1_pb2 as registration

VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
SERVICES: Sequence[tuple[str, Any]] = (
    ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", dra_v1_pb2),
    ("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", dra_v1beta1_pb2),
)
DIRECTORY_MODE, SOCKET_MODE = 0o750, 0o600
Told = Callable[[bool, str], None]
HEALTH_TIMEOUT_S = 60


class SocketTaken(OSError):
    """Another process serves the driver."""


class Driver(Protocol):
    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, ClaimAnswer]: ...

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, ClaimAnswer]: ...

    def health(self) -> AsyncIterator[list[DeviceHealth]]: ...


class DriverSockets:
    """Below a kubelet's directory."""

    def __init__(self, kubelet: Path, name: str) -> None:
        self._name = name
        self.endpoint = kubelet / "plugins" / name / "dra.sock"
        self.registration = kubelet / "plugins_registry" / f"{name}-reg.sock"

    @asynccontextmanager
    async def serving(self, driver: Driver, now_s: Callable[[], float]) -> AsyncIterator[None]:
        """The driver answers meanwhile; nobody is asked to register it yet. Raises OSError."""
        lock = await asyncio.to_thread(self._lock)
        try:
            server = grpc.aio.server()
            for name, messages in SERVICES:
                server.add_generic_rpc_handlers((_Calls(driver, messages).handler(name),))
            server.add_generic_rpc_handlers((_health_handler(driver, now_s),))
            try:
                await _listen(server, self.endpoint)
                yield
            finally:
                await server.stop(2.0)
                with suppress(FileNotFoundError):
                    await asyncio.to_thread(self.endpoint.unlink)
        finally:
            os.close(lock)

    @asynccontextmanager
    async def registering(self, told: Told) -> AsyncIterator[None]:
        """A kubelet finds the driver meanwhile; `told` hears whether it was registered."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((_registration_handler(self._name, str(self.endpoint), told),))
        try:
            await _listen(server, self.registration)
            yield
        finally:
            with suppress(FileNotFoundError):
                await asyncio.to_thread(self.registration.unlink)
            await server.stop(1.0)

    def _lock(self) -> int:
        self.endpoint.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        self.registration.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        handle = os.open(self.endpoint.parent / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise SocketTaken(
                f"{self.endpoint.parent}/lock is held by another process, which serves {self._name}"
            ) from error
        for path in (self.registration, self.endpoint):
            if path.is_socket():
                if accepts(path):
                    os.close(handle)
                    raise SocketTaken(f"{path} is served by another process; stop that driver, or name this one anew")
                path.unlink()
        return handle


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.settimeout(1.0)
        try:
            one.connect(str(path))
        except OSError:
            return False
        return True


async def _listen(server: grpc.aio.Server, path: Path) -> None:
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    await asyncio.to_thread(path.chmod, SOCKET_MODE)


def _unary(behaviour: Callable[[Any, Any], Awaitable[Any]], request: Any) -> grpc.RpcMethodHandler:  # noqa: ANN401
    return grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=request.FromString, response_serializer=lambda one: one.SerializeToString()
    )


def _registration_handler(name: str, endpoint: str, told: Told) -> grpc.GenericRpcHandler:
    async def info(_request: registration.InfoRequest, _context: object) -> registration.PluginInfo:
        return registration.PluginInfo(type="DRAPlugin", name=name, endpoint=endpoint, supported_versions=VERSIONS)

    async def status(
        request: registration.RegistrationStatus, _context: object
    ) -> registration.RegistrationStatusResponse:
        told(request.plugin_registered, request.error)
        return registration.RegistrationStatusResponse()

    methods = {
        "GetInfo": _unary(info, registration.InfoRequest),
        "NotifyRegistrationStatus": _unary(status, registration.RegistrationStatus),
    }
    return grpc.method_handlers_generic_handler("pluginregistration.Registration", methods)


def _health_handler(driver: Driver, now_s: Callable[[], float]) -> grpc.GenericRpcHandler:
    async def watch(
        _request: health.NodeWatchResourcesRequest, _context: object
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]:
        async for devices in driver.health():
            answer = health.NodeWatchResourcesResponse()
            for one in devices:
                found = answer.devices.add(
                    health=health.HEALTHY if one.is_healthy else health.UNHEALTHY,
                    last_updated_time=int(now_s()),
                    health_check_timeout_seconds=HEALTH_TIMEOUT_S,
                    message=one.message[:1024],
                )
                found.device.pool_name, found.device.device_name = one.pool, one.device
            yield answer

    handler = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=health.NodeWatchResourcesRequest.FromString,
        response_serializer=health.NodeWatchResourcesResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("v1alpha1.DRAResourceHealth", {"NodeWatchResources": handler})


class _Calls:
    """One version of the service."""

    def __init__(self, driver: Driver, messages: Any) -> None:  # noqa: ANN401
        self._driver = driver
        self._pb = messages

    def handler(self, service: str) -> grpc.GenericRpcHandler:
        pb = self._pb
        methods = {
            "NodePrepareResources": _unary(self._prepare, pb.NodePrepareResourcesRequest),
            "NodeUnprepareResources": _unary(self._unprepare, pb.NodeUnprepareResourcesRequest),
        }
        return grpc.method_handlers_generic_handler(service, methods)

    async def _prepare(self, request: Any, _context: object) -> Any:  # noqa: ANN401
        pb = self._pb
        answer = pb.NodePrepareResourcesResponse()
        for uid, one in (await self._driver.prepare(_references(request))).items():
            found = answer.claims[uid]
            found.error = one.error
            for device in one.devices:
                made = found.devices.add(
                    request_names=device.requests,
                    pool_name=device.pool,
                    device_name=device.device,
                    cdi_device_ids=device.cdi_ids,
                )
                if device.share_id and "share_id" in pb.Device.DESCRIPTOR.fields_by_name:
                    made.share_id = device.share_id
        return answer

    async def _unprepare(self, request: Any, _context: object) -> Any:  # noqa: ANN401
        answer = self._pb.NodeUnprepareResourcesResponse()
        for uid, one in (await self._driver.unprepare(_references(request))).items():
            answer.claims[uid].error = one.error
        return answer


def _references(request: Any) -> list[ClaimReference]:  # noqa: ANN401
    return [ClaimReference(one.namespace, one.name, one.uid) for one in request.claims]

# SPDX-License-Identifier: Apache-2.0
"""The gRPC server behind the API socket: our services, health per plane, reflection.

Owns: the private socket, the server on it, and the relay in front. Lives as one unit of the task tree.
Never: admits anybody itself; service.py asks access.py for every call.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from agent.api.access import AccessRule
from agent.api.peer import PeerRelay
from agent.api.service import MethodTable
from agent.api.socket_path import check_length, make_directory
from agent.model.component import Report

__all__ = ["ApiServer"]

MAX_MESSAGE_BYTES = 16 << 20
PRIVATE_MODE = 0o700
# v1 is v1alpha under another name; tools ask for either.
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class ApiServer:
    """Serves until cancelled, then lets calls in flight end."""

    def __init__(
        self,
        services: Mapping[ServiceDescriptor, object],
        listener: socket.socket,
        private_directory: Path,
        rule: Callable[[], AccessRule],
        observe: Callable[[str, str], None],
    ) -> None:
        self._private = private_directory / f"api-{listener.fileno()}.sock"
        check_length(self._private)
        self._relay = PeerRelay(listener, str(self._private))
        self._table = MethodTable(rule, lambda: self._relay.peers, observe)
        for descriptor, implementation in services.items():
            self._table.add(descriptor, implementation)
        self._add_reflection([descriptor.full_name for descriptor in services])
        self.stop_grace_s = 20.0

    async def run(self, report: Report) -> None:
        """Serve."""
        make_directory(self._private.parent, PRIVATE_MODE)
        self._private.unlink(missing_ok=True)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers((self._table,))
        server.add_insecure_port(f"unix:{self._private}")
        await server.start()
        try:
            report.ready()
            await self._relay_until_cancelled(server)
        finally:
            await asyncio.shield(server.stop(0))
            self._private.unlink(missing_ok=True)

    async def _relay_until_cancelled(self, server: grpc.aio.Server) -> None:
        """The relay must outlive the server's grace period, or the last answers never arrive."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay.run(), name="api-relay")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._relay.stop_accepting()
                self._table.end_streams()
                # The server cancels what it has not begun with when it is told to stop, so it must have nothing to do.
                await self._relay.part(self.stop_grace_s)
                await server.stop(0)
                raise

    def _add_reflection(self, names: list[str]) -> None:
        # v1 has no descriptor in this package; it is served but not listed.
        servicer = reflection.aio.ReflectionServicer([*names, REFLECTION[1]])
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        for name in REFLECTION:
            self._table.add_foreign(f"/{name}/ServerReflectionInfo", handler)

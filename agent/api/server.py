# SPDX-License-Identifier: Apache-2.0
"""The gRPC servers behind the API socket: our services, health per plane, reflection.

gRPC buffers a request whole before it asks who calls, so rights alone bound nothing: forty unfinished requests of
16 MiB on four connections of a group reader ended the daemon. Each level of callers therefore has a server of its own
with its own bounds; all serve the same methods.

    caller   one request   calls at once   connections of one user
    read     64 KiB        16              16        16 MiB in all
    operate  2 MiB         16              16        512 MiB; who may start a privileged pod has easier ways
    admin    16 MiB        64              512

Owns: the private sockets, the servers on them, and the relay in front. Lives as one unit of the task tree.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc
import msgspec
from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from agent.api.access import AccessRule
from agent.api.peer import Peer, PeerRelay
from agent.api.service import MethodTable
from agent.api.socket_path import check_length, make_directory
from agent.model.component import Report
from agent.wire.kepd.v1 import access_pb2

LARGEST_ANSWER_BYTES = 16 << 20
PRIVATE_MODE = 0o700
# v1 is v1alpha under another name; tools ask for either.
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class Bounds(msgspec.Struct, frozen=True):
    """What callers of one level may have under way on one connection."""

    name: str
    request_bytes: int
    streams: int


BOUNDS = {
    access_pb2.LEVEL_READ: Bounds("read", 64 << 10, 16),
    access_pb2.LEVEL_OPERATE: Bounds("operate", 2 << 20, 16),
    access_pb2.LEVEL_ADMIN: Bounds("admin", 16 << 20, 64),
}


class ApiServer:
    def __init__(
        self,
        services: Mapping[ServiceDescriptor, object],
        listener: socket.socket,
        private_directory: Path,
        rule: Callable[[], AccessRule],
        observe: Callable[[str, str], None],
    ) -> None:
        self._rule = rule
        self._private = {
            level: private_directory / f"{bounds.name}-{listener.fileno()}.sock" for level, bounds in BOUNDS.items()
        }
        for path in self._private.values():
            check_length(path)
        self._relay = PeerRelay(listener, self._upstream_of)
        self._table = MethodTable(rule, lambda: self._relay.peers, observe)
        for descriptor, implementation in services.items():
            self._table.add(descriptor, implementation)
        self._add_reflection([descriptor.full_name for descriptor in services])
        self.stop_grace_s = 20.0

    def _upstream_of(self, peer: Peer) -> str:
        """A caller without any right gets its refusals from the server with the least bounds."""
        return str(self._private[self._rule().level_of(peer) or access_pb2.LEVEL_READ])

    async def run(self, report: Report) -> None:
        make_directory(next(iter(self._private.values())).parent, PRIVATE_MODE)
        servers = [self._server(BOUNDS[level], path) for level, path in self._private.items()]
        for server in servers:
            await server.start()
        try:
            report.ready()
            await self._relay_until_cancelled(servers)
        finally:
            await asyncio.shield(_stop(servers))
            for path in self._private.values():
                path.unlink(missing_ok=True)

    def _server(self, bounds: Bounds, path: Path) -> grpc.aio.Server:
        path.unlink(missing_ok=True)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", bounds.request_bytes),
                ("grpc.max_send_message_length", LARGEST_ANSWER_BYTES),
                ("grpc.max_concurrent_streams", bounds.streams),
                ("grpc.so_reuseport", 0),
            ]
        )
        server.add_generic_rpc_handlers((self._table,))
        server.add_insecure_port(f"unix:{path}")
        return server

    async def _relay_until_cancelled(self, servers: Sequence[grpc.aio.Server]) -> None:
        """The relay must outlive the servers' grace period, or the last answers never arrive."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay.run(), name="api-relay")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._relay.stop_accepting()
                self._table.end_streams()
                # A stopping server cancels calls that it has not begun, so none may be left when it stops.
                await self._relay.part(self.stop_grace_s)
                await _stop(servers)
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


async def _stop(servers: Sequence[grpc.aio.Server]) -> None:
    await asyncio.gather(*(server.stop(0) for server in servers))

# SPDX-License-Identifier: Apache-2.0
"""The gRPC servers behind the relay: our services, health per plane, reflection.

Owns: the private sockets and the servers on them. A server starts with the first caller of its level, which
saves gRPC's threads and memory on a node without callers.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_reflection.v1alpha import reflection, reflection_pb2

from agent.api.access import AccessRule
from agent.api.call_quota import Bounds
from agent.api.peer import Peer
from agent.api.service import MethodTable

LARGEST_ANSWER_BYTES = 16 << 20
# v1 is v1alpha under another name; tools ask for either.
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class GrpcServers:
    def __init__(
        self,
        services: Mapping[ServiceDescriptor, object],
        rule: Callable[[], AccessRule],
        peers: Callable[[], Mapping[str, Peer]],
        observe: Callable[[str, str], None],
        is_short: Callable[[], bool],
    ) -> None:
        self._table = MethodTable(rule, peers, observe, is_short)
        for descriptor, implementation in services.items():
            self._table.add(descriptor, implementation)
        self._add_reflection([descriptor.full_name for descriptor in services])
        self._servers: dict[Path, grpc.aio.Server] = {}

    async def serve(self, bounds: Bounds, path: Path) -> None:
        """One server at `path`; a second call for it does nothing."""
        if path not in self._servers:
            self._servers[path] = self._server(bounds, path)
            await self._servers[path].start()

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

    def end_streams(self) -> None:
        self._table.end_streams()

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop(0) for server in self._servers.values()))
        for path in self._servers:
            path.unlink(missing_ok=True)

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

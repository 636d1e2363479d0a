# SPDX-License-Identifier: Apache-2.0
"""The API socket: a relay in front, and behind it a gRPC server for each level of callers.

gRPC buffers a request whole before it asks who calls, so rights alone bound nothing: forty unfinished requests of
16 MiB on four connections of a group reader ended the daemon. Each level of callers therefore has a server of its own
with its own bounds; all serve the same methods.

    caller   one request   calls at once   connections of one user
    read     64 KiB        16              16
    operate  2 MiB         16              16
    admin    16 MiB        64              512

What the product of the three would allow, `shares` bounds per user.

Owns: the order in which they come and go. Lives as one unit of the task tree.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.descriptor import ServiceDescriptor

from agent.api.access import AccessRule
from agent.api.call_quota import BOUNDS
from agent.api.peer import Peer, PeerRelay
from agent.api.socket_path import check_length, make_directory
from agent.model.component import Report
from agent.wire.kepd.v1 import access_pb2

if TYPE_CHECKING:
    from agent.api.grpc_servers import GrpcServers

PRIVATE_MODE = 0o700


class ApiServer:
    def __init__(
        self,
        services: Mapping[ServiceDescriptor, object],
        listener: socket.socket,
        private_directory: Path,
        rule: Callable[[], AccessRule],
        observe: Callable[[str, str], None],
        *,
        is_short: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_short`: whether memory is, so that lists have to wait."""
        self._is_short = is_short
        self._services = services
        self._rule = rule
        self._observe = observe
        self._private = {
            level: private_directory / f"{bounds.name}-{listener.fileno()}.sock" for level, bounds in BOUNDS.items()
        }
        for path in self._private.values():
            check_length(path)
        self._relay = PeerRelay(listener, self._upstream_of)
        self._servers: GrpcServers | None = None
        self._serving = asyncio.Lock()
        self.stop_grace_s = 20.0

    async def _upstream_of(self, peer: Peer) -> str:
        """A caller without any right gets its refusals from the server with the least bounds."""
        level = self._rule().level_of(peer) or access_pb2.LEVEL_READ
        path = self._private[level]
        async with self._serving:
            if self._servers is None:
                self._servers = await asyncio.to_thread(self._grpc)
            await self._servers.serve(BOUNDS[level], path)
        return str(path)

    def _grpc(self) -> "GrpcServers":
        """Made with the first caller. gRPC costs 12 MiB and keeps threads awake, which a node without callers saves."""
        from agent.api.grpc_servers import GrpcServers

        return GrpcServers(self._services, self._rule, lambda: self._relay.peers, self._observe, self._is_short)

    async def run(self, report: Report) -> None:
        make_directory(next(iter(self._private.values())).parent, PRIVATE_MODE)
        try:
            report.ready()
            await self._relay_until_cancelled()
        finally:
            await asyncio.shield(self._stop())

    async def _relay_until_cancelled(self) -> None:
        """The relay must outlive the servers' grace period, or the last answers never arrive."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay.run(), name="api-relay")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._relay.stop_accepting()
                if self._servers is not None:
                    self._servers.end_streams()
                # A stopping server cancels calls that it has not begun, so none may be left when it stops.
                await self._relay.part(self.stop_grace_s)
                await self._stop()
                raise

    async def _stop(self) -> None:
        """A unit that starts again has new servers."""
        servers, self._servers = self._servers, None
        if servers is not None:
            await servers.stop()

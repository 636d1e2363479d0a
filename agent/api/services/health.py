# SPDX-License-Identifier: Apache-2.0
"""grpc.health.v1 over the board: one service name per part, the empty name for the daemon itself.

As the protocol wants it, a name that is no part is NOT_FOUND for a check and SERVICE_UNKNOWN for a watch.
"""

from collections.abc import AsyncIterator

from grpc_health.v1 import health_pb2

from agent.api.errors import FailureReason, not_found
from agent.api.watching import followed
from agent.model.component import Board

SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
WHOLE_DAEMON = ""


class HealthService:
    def __init__(self, board: Board) -> None:
        self._board = board

    async def check(self, request: health_pb2.HealthCheckRequest) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status is None:
            names = ", ".join(line.name for line in self._board.lines())
            text = f'"{request.service}" is not a part of kepd; the parts are {names}'
            raise not_found(FailureReason.NO_SUCH_PLANE, text)
        return health_pb2.HealthCheckResponse(status=status)

    async def list(self, _request: health_pb2.HealthListRequest) -> health_pb2.HealthListResponse:
        names = (WHOLE_DAEMON, *(line.name for line in self._board.lines()))
        statuses = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in names}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def watch(self, request: health_pb2.HealthCheckRequest) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        last: int | None = None
        async for _change in followed(self._board.feed):
            status = self._status(request.service)
            if status is None:
                status = SERVICE_UNKNOWN
            if status != last:
                last = status
                yield health_pb2.HealthCheckResponse(status=status)

    def _status(self, service: str) -> int | None:
        if service == WHOLE_DAEMON:
            return SERVING
        for line in self._board.lines():
            if line.name == service:
                return SERVING if line.is_ready else NOT_SERVING
        return None

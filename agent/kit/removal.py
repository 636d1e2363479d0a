# SPDX-License-Identifier: Apache-2.0
"""A container runtime that removes what it was told to remove.

A start that loses its caller at the wrong moment, because kepd dies, can leave a task of containerd that its CRI has
forgotten (seen with 2.1): the container counts as ended, so that stopping it does nothing, and all versions refuse to
remove what has a task. A kubelet is refused for ever, until containerd starts anew. Here containerd's own service ends
the task first.
"""

import structlog

from agent.drivers.containerd.driver import Containerd
from agent.drivers.cri.driver import CriRuntime
from agent.drivers.grpc_channel import Observer
from agent.model.runtime.error import RuntimeCallFailed

log = structlog.get_logger(plane="daemon")

# As gRPC names it. A container whose start goes on is refused with another.
STILL_RUNS = "FAILED_PRECONDITION"


class RemovingRuntime(CriRuntime):
    def __init__(
        self,
        endpoint: str,
        image_endpoint: str,
        containerd: Containerd,
        *,
        request_timeout_s: float = 120.0,
        observe: Observer | None = None,
    ) -> None:
        super().__init__(endpoint, image_endpoint, request_timeout_s=request_timeout_s, observe=observe)
        self._containerd = containerd

    async def remove_container(self, container_id: str) -> None:
        try:
            await super().remove_container(container_id)
        except RuntimeCallFailed as error:
            if error.code != STILL_RUNS:
                raise
            await self._end_lost(container_id, error)
            await super().remove_container(container_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        try:
            await super().remove_sandbox(sandbox_id)
        except RuntimeCallFailed as error:
            if error.code != STILL_RUNS:
                raise
            for one in await self.list_containers(sandbox_id):
                await self.remove_container(one.id)
            await super().remove_sandbox(sandbox_id)

    async def _end_lost(self, container_id: str, refusal: RuntimeCallFailed) -> None:
        """Another runtime has no tasks: then what it said counts."""
        try:
            await self._containerd.end_task(container_id)
        except RuntimeCallFailed as error:
            log.warning("lost_task_not_ended", container=container_id, error=str(error))
            raise refusal from None
        log.warning("lost_task_ended", container=container_id, error=str(refusal))

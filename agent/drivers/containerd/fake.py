# SPDX-License-Identifier: Apache-2.0
"""containerd's own services in memory, refusing what the real one refuses.

Owns: leases, image labels, ingests and an event bus that a test feeds. The contract suite runs against this and
against containerd.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping

from agent.model.ingest import Ingest
from agent.model.runtime_error import AlreadyExists, NotFound, RuntimeCallFailed, Unavailable
from agent.model.runtime_event import RuntimeEvent

__all__ = ["FakeContainerd"]


class FakeContainerd:
    """Same methods as the driver."""

    endpoint = "fake"

    def __init__(self) -> None:
        self.reachable = True
        self.ingests: list[Ingest] = []
        self.images: dict[str, dict[str, str]] = {}
        self._leases: dict[str, dict[str, str]] = {}
        self._listeners: list[asyncio.Queue[RuntimeEvent]] = []

    async def close(self) -> None:
        """Nothing to close."""

    def emit(self, event: RuntimeEvent) -> None:
        """Something happens to a container."""
        for queue in self._listeners:
            queue.put_nowait(event)

    async def version(self) -> str:
        self._enter("Version")
        return "1.6.20"

    async def server_uuid(self) -> str:
        self._enter("Server")
        return "00000000-0000-4000-8000-000000000000"

    async def list_ingests(self) -> list[Ingest]:
        self._enter("ListStatuses")
        return list(self.ingests)

    async def image_labels(self) -> dict[str, dict[str, str]]:
        self._enter("List")
        return {name: dict(labels) for name, labels in self.images.items()}

    async def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> None:
        self._enter("Create")
        if lease_id in self._leases:
            raise AlreadyExists("Create", f'lease "{lease_id}": already exists')
        if not lease_id:
            raise RuntimeCallFailed("Create", "lease id must not be empty", "INVALID_ARGUMENT")
        self._leases[lease_id] = dict(labels)

    async def list_leases(self) -> dict[str, dict[str, str]]:
        self._enter("List")
        return {lease_id: dict(labels) for lease_id, labels in self._leases.items()}

    async def delete_lease(self, lease_id: str) -> None:
        self._enter("Delete")
        if self._leases.pop(lease_id, None) is None:
            raise NotFound("Delete", f'lease "{lease_id}": not found')

    async def task_events(self) -> AsyncIterator[RuntimeEvent]:
        self._enter("Subscribe")
        queue: asyncio.Queue[RuntimeEvent] = asyncio.Queue(maxsize=1000)
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    def _enter(self, method: str) -> None:
        if not self.reachable:
            raise Unavailable(method, "connection refused")

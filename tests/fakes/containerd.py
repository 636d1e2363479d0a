# SPDX-License-Identifier: Apache-2.0
"""containerd's own services in memory, refusing what the real one refuses."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping

from msgspec.structs import replace

from agent.model.images.credential import Credential
from agent.model.images.platform import ImagePlatform
from agent.model.images.store import BlobInfo, ImageRecord, Ingest, StoreEvent, StoreRoots
from agent.model.runtime.error import AlreadyExists, NotFound, NotImplementedByRuntime, RuntimeCallFailed, Unavailable
from agent.model.runtime.event import RuntimeEvent


class FakeContainerd:
    endpoint = "fake"

    def __init__(self) -> None:
        self.reachable = True
        self.version_text = "1.6.20"
        self.ingests: list[Ingest] = []
        self._leases: dict[str, dict[str, str]] = {}
        self.records: dict[str, ImageRecord] = {}
        self.roots = StoreRoots(content="/", snapshotters={"overlayfs": "/"})
        self.blobs: dict[str, tuple[BlobInfo, bytes]] = {}
        self.lease_resources: dict[str, list[tuple[str, str]]] = {}
        self._listeners: list[asyncio.Queue[RuntimeEvent]] = []
        self._store_listeners: list[asyncio.Queue[StoreEvent]] = []

    async def close(self) -> None:
        """Nothing to close."""

    def emit(self, event: RuntimeEvent) -> None:
        for queue in self._listeners:
            queue.put_nowait(event)

    def emit_store(self, event: StoreEvent) -> None:
        for queue in self._store_listeners:
            queue.put_nowait(event)

    def put_blob(self, blob: BlobInfo, content: bytes = b"") -> None:
        self.blobs[blob.digest] = (blob, content)

    async def version(self) -> str:
        self._enter("Version")
        return self.version_text

    async def store_roots(self) -> StoreRoots:
        self._enter("Plugins")
        return self.roots

    async def list_ingests(self) -> list[Ingest]:
        self._enter("ListStatuses")
        return list(self.ingests)

    async def image_records(self) -> list[ImageRecord]:
        self._enter("List")
        return list(self.records.values())

    async def label_image(self, name: str, labels: Mapping[str, str]) -> None:
        self._enter("Update")
        record = self.records.get(name)
        if record is None:
            raise NotFound("Update", f'image "{name}": not found')
        merged = {key: value for key, value in {**record.labels, **labels}.items() if value}
        self.records[name] = replace(record, labels=merged)

    async def create_image(self, record: ImageRecord) -> None:
        self._enter("Create")
        if record.name in self.records:
            raise AlreadyExists("Create", f'image "{record.name}": already exists')
        if not record.digest:
            raise RuntimeCallFailed("Create", "image target digest must not be empty", "INVALID_ARGUMENT")
        self.records[record.name] = record

    async def delete_image(self, name: str) -> None:
        self._enter("Delete")
        if self.records.pop(name, None) is None:
            raise NotFound("Delete", f'image "{name}": not found')

    async def list_blobs(self, label: str) -> list[BlobInfo]:
        self._enter("List")
        return [blob for blob, _content in self.blobs.values() if label in blob.labels]

    async def blob_info(self, digest: str) -> BlobInfo | None:
        self._enter("Info")
        found = self.blobs.get(digest)
        return found[0] if found else None

    async def read_blob(self, digest: str, most_bytes: int) -> bytes:
        self._enter("Read")
        found = self.blobs.get(digest)
        if found is None:
            raise NotFound("Read", f"content {digest}: not found")
        if len(found[1]) > most_bytes:
            raise RuntimeCallFailed("Read", f"{digest} has more than {most_bytes} bytes", "OUT_OF_RANGE")
        return found[1]

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
        self.lease_resources.pop(lease_id, None)

    async def add_to_lease(self, lease_id: str, kind: str, resource_id: str) -> None:
        self._enter("AddResource")
        if lease_id not in self._leases:
            raise NotFound("AddResource", f'lease "{lease_id}": not found')
        self.lease_resources.setdefault(lease_id, []).append((kind, resource_id))

    async def fetch_content(
        self,
        reference: str,
        platform: ImagePlatform,
        *,
        hosts_folder: str,
        labels: Mapping[str, str],
        credential: Credential | None = None,
        server: str = "",
    ) -> None:
        del platform, hosts_folder, credential, server
        self._enter("Transfer")
        if self.version_text.startswith("1.6."):
            raise NotImplementedByRuntime("Transfer", "unknown service containerd.services.transfer.v1.Transfer")
        digest = f"sha256:{hashlib.sha256(reference.encode()).hexdigest()}"
        self.put_blob(BlobInfo(digest, 100, 0.0))
        self.records[reference] = ImageRecord(reference, digest, "", 100, 0.0, dict(labels))

    async def abort_ingest(self, ref: str) -> None:
        self._enter("Abort")
        if ref not in [ingest.ref for ingest in self.ingests]:
            raise NotFound("Abort", f"{ref}: not found")
        self.ingests = [ingest for ingest in self.ingests if ingest.ref != ref]

    async def store_events(self) -> AsyncIterator[StoreEvent]:
        self._enter("Subscribe")
        queue: asyncio.Queue[StoreEvent] = asyncio.Queue(maxsize=1000)
        self._store_listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._store_listeners.remove(queue)

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

# SPDX-License-Identifier: Apache-2.0
"""What the images plane needs from outside.

Everything but the runtime, state files and the clock may be absent; what depends on it is left out and reported.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Protocol

from agent.images.prefetch.plan import PodImage
from agent.model.images.credential import Credential
from agent.model.images.store import BlobInfo, Filesystem, ImageRecord, Ingest, StoreEvent, StoreRoots
from agent.model.text.records import RecordFiles
from agent.wire.cri import runtime_v1_pb2 as pb


class ImageRuntime(Protocol):
    async def image_status(self, image: str, *, handler: str = "") -> pb.Image | None: ...

    async def list_images(self) -> list[pb.Image]: ...

    async def pull_image(
        self,
        image: str,
        auth: pb.AuthConfig | None = None,
        sandbox_config: pb.PodSandboxConfig | None = None,
        *,
        handler: str = "",
    ) -> str: ...

    async def remove_image(self, image: str) -> None: ...

    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Paths of images, and of writable layers where the runtime keeps those apart."""

    async def sandbox_image(self) -> str: ...


class Usage(Protocol):
    async def list_containers(self) -> list[pb.Container]: ...

    async def container_status(self, container_id: str) -> pb.ContainerStatus: ...

    async def list_sandboxes(self) -> list[pb.PodSandbox]: ...


class Content(Protocol):
    async def store_roots(self) -> StoreRoots: ...

    async def list_ingests(self) -> list[Ingest]: ...

    async def list_blobs(self, label: str) -> list[BlobInfo]: ...

    async def blob_info(self, digest: str) -> BlobInfo | None: ...

    async def read_blob(self, digest: str, most_bytes: int) -> bytes: ...

    async def abort_ingest(self, ref: str) -> None: ...

    def store_events(self) -> AsyncIterator[StoreEvent]: ...


class ImageNames(Protocol):
    async def image_records(self) -> list[ImageRecord]: ...

    async def label_image(self, name: str, labels: Mapping[str, str]) -> None: ...

    async def create_image(self, record: ImageRecord) -> None: ...

    async def delete_image(self, name: str) -> None: ...


class Leases(Protocol):
    async def create_lease(self, lease_id: str, labels: Mapping[str, str]) -> None: ...

    async def list_leases(self) -> dict[str, dict[str, str]]: ...

    async def delete_lease(self, lease_id: str) -> None: ...

    async def add_to_lease(self, lease_id: str, kind: str, resource_id: str) -> None: ...


class Files(RecordFiles, Protocol):
    """State that outlives the process, and the space there is."""

    async def read(self, name: str) -> bytes | None: ...

    async def set_aside(self, name: str) -> str: ...

    async def measure(self, path: str) -> Filesystem: ...


class PodSource(Protocol):
    """Pods of this node that an untouched kubelet will start: all their images, again whenever they change. `trouble`:
    why there is no news at present; empty while there is."""

    @property
    def trouble(self) -> str: ...

    def snapshots(self) -> AsyncIterator[Sequence[PodImage]]: ...


class RolloutSource(Protocol):
    async def follow(self, tell: Callable[[Sequence[PodImage]], None]) -> None: ...


class WantedImages(Protocol):
    """Images that pods need which have no container yet: by manifest, by binding, or in the queue."""

    def wanted_images(self) -> Collection[str]: ...


class SizeProbe(Protocol):
    """Asks a registry how large an image is. None: it could not say."""

    async def size_bytes(self, reference: str, credential: Credential | None) -> int | None: ...


class ContentStore(Protocol):
    """Fetches images without unpacking them, and holds what it fetched for a day. All raise RuntimeCallFailed.
    `obstacle`: why an image cannot be fetched so on this node; empty where it can."""

    async def obstacle(self, reference: str) -> str: ...

    async def fetch(self, reference: str, credential: Credential | None, server: str) -> int: ...

    async def drop(self, reference: str) -> None: ...

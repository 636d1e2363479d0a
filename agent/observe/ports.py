# SPDX-License-Identifier: Apache-2.0
"""What observation needs from outside."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from agent.model.file_system import LookedAt
from agent.model.runtime_event import RuntimeEvent
from agent.wire.cri import runtime_v1_pb2 as pb


class Instances(Protocol):
    """Which sandboxes and containers there are. Details are with what the runtime tells beyond the protocol."""

    async def list_sandboxes(self) -> list[pb.PodSandbox]: ...

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]: ...

    async def container_status(self, container_id: str) -> pb.ContainerStatus: ...

    async def sandbox_details(self, sandbox_id: str) -> pb.PodSandboxStatusResponse: ...

    async def container_details(self, container_id: str) -> pb.ContainerStatusResponse: ...

    async def writable_layers(self) -> Mapping[str, tuple[int, int]]: ...

    async def image_filesystem(self) -> str: ...


class RuntimeEvents(Protocol):
    def listen(self) -> AsyncIterator[RuntimeEvent]: ...


class FileSystemsOfRuntime(Protocol):
    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Paths of images, and of writable layers where the runtime keeps those apart."""


class Disks(Protocol):
    """Blocking; raises OSError where a path cannot be seen."""

    def look(self, path: str) -> LookedAt: ...


class KernelFiles(Protocol):
    """Files of the kernel by absolute paths; blocking calls. `read` and `hold_process` raise OSError."""

    @property
    def kept(self) -> int: ...

    def close(self) -> None: ...

    def read(self, path: str) -> bytes: ...

    def read_all(self, paths: Sequence[str]) -> tuple[list[bytes | None], list[OSError]]: ...

    def forget(self, paths: Iterable[str]) -> None: ...

    def is_there(self, path: str) -> bool: ...

    def hold_process(self, pid: int) -> int: ...

    def read_of_process(self, hold: int, name: str) -> bytes | None: ...

    def let_go(self, hold: int) -> None: ...


class OomRecords(Protocol):
    """Small files that are there whole or not at all."""

    async def read_folder(self, folder: str) -> dict[str, bytes]: ...

    async def write(self, name: str, content: bytes, *, is_durable: bool = True) -> None: ...

    async def remove(self, name: str) -> None: ...

# SPDX-License-Identifier: Apache-2.0
"""What the pods plane needs from outside."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from agent.model.finding import Finding
from agent.model.runtime_event import RuntimeEvent
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["Clock", "Containers", "Events", "Manifests", "Sandboxes", "Snapshot"]


class Sandboxes(Protocol):
    """Sandboxes of the runtime."""

    async def list_sandboxes(self) -> list[pb.PodSandbox]: ...

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus: ...

    async def run_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> str: ...

    async def stop_sandbox(self, sandbox_id: str) -> None: ...

    async def remove_sandbox(self, sandbox_id: str) -> None: ...


class Containers(Protocol):
    """Containers and images of the runtime."""

    async def list_containers(self) -> list[pb.Container]: ...

    async def container_status(self, container_id: str) -> pb.ContainerStatus: ...

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str: ...

    async def start_container(self, container_id: str) -> None: ...

    async def stop_container(self, container_id: str, grace_s: int) -> None: ...

    async def image_status(self, image: str) -> pb.Image | None: ...

    async def pull_image(
        self, image: str, auth: pb.AuthConfig | None = None, sandbox_config: pb.PodSandboxConfig | None = None
    ) -> str: ...


class Snapshot(Protocol):
    """A look at the files: their content, what cannot be read now, and of which files nothing was ever read."""

    @property
    def files(self) -> Mapping[str, bytes]: ...

    @property
    def problems(self) -> tuple[Finding, ...]: ...

    @property
    def unread(self) -> frozenset[str]: ...


class Manifests(Protocol):
    """Files with pods."""

    def snapshots(self) -> AsyncIterator[Snapshot]: ...


class Events(Protocol):
    """News from the runtime."""

    def listen(self) -> AsyncIterator[RuntimeEvent]: ...


class Clock(Protocol):
    """Time."""

    def now_s(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...

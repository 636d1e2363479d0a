# SPDX-License-Identifier: Apache-2.0
"""What the proxy plane needs from outside, besides the socket of the runtime that every call goes to."""

from collections.abc import AsyncGenerator
from typing import Protocol

from agent.model.images.pull import CallerPull, PullRequest
from agent.model.pods.http_question import HttpAnswer, HttpQuestion
from agent.proxy.gates.kubelet_advice import KubeletSettings
from agent.wire.cri import runtime_v1_pb2 as pb


class ProxyRuntime(Protocol):
    """CRI, for the proxy's own questions: after a start, after lost events, for readiness and ended Jobs."""

    async def list_sandboxes(self) -> list[pb.PodSandbox]: ...

    async def list_containers(self) -> list[pb.Container]: ...

    async def container_status(self, container_id: str) -> pb.ContainerStatus: ...

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus: ...

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse: ...

    async def stop_container(self, container_id: str, grace_s: int) -> None: ...

    def event_messages(self) -> AsyncGenerator[bytes]:
        """Answers of GetContainerEvents, until the stream breaks. Raises NotImplementedByRuntime."""


class Pulls(Protocol):
    """The node's pull queue. Raises PullGivenUp or PullsAway."""

    async def run_caller_pull(self, request: PullRequest, fingerprint: str, pull: CallerPull) -> None: ...

    @property
    def is_busy(self) -> bool:
        """Whether anything is pulled or waits to be."""

    async def settled(self, image: str, longest_s: float) -> None:
        """Until no pull of an image of this name, digest or id is left, or so long."""


class Asker(Protocol):
    """Questions over the network. They raise OSError where no server could be reached, ValueError for an odd answer."""

    async def http_get(self, question: HttpQuestion) -> HttpAnswer: ...

    async def tcp_connect(self, host: str, port: int) -> None: ...


class ProxyRecords(Protocol):
    """Small files that are there whole or not at all."""

    async def read(self, name: str) -> bytes | None: ...

    async def write(self, name: str, content: bytes) -> None: ...

    async def set_aside(self, name: str) -> str: ...


class Kubelet(Protocol):
    """The configuration of the kubelet beside us. Raises OSError or ValueError where it cannot be read."""

    async def settings(self) -> KubeletSettings: ...

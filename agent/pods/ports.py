# SPDX-License-Identifier: Apache-2.0
"""What the pods plane needs from outside."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol

from agent.model.devices.container_devices import ContainerDevices
from agent.model.images.pull import PullRequest
from agent.model.nodes.use import NodeLook, PodUse
from agent.model.pods.http_question import HttpAnswer, HttpQuestion
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.runtime.environment import ClaimPlace
from agent.wire.cri import runtime_v1_pb2 as pb


class Sandboxes(Protocol):
    """Sandboxes of the runtime. `maps_host_ports` is None where it does not say."""

    async def maps_host_ports(self) -> bool | None: ...

    async def list_sandboxes(self) -> list[pb.PodSandbox]: ...

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus: ...

    async def run_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> str: ...

    async def stop_sandbox(self, sandbox_id: str) -> None: ...

    async def remove_sandbox(self, sandbox_id: str) -> None: ...


class Containers(Protocol):
    """Containers of the runtime. `exec_sync` with a limit of 0 seconds has none."""

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]: ...

    async def container_status(self, container_id: str) -> pb.ContainerStatus: ...

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str: ...

    async def start_container(self, container_id: str) -> None: ...

    async def stop_container(self, container_id: str, grace_s: int) -> None: ...

    async def remove_container(self, container_id: str) -> None: ...

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse: ...


class Maintenance(Protocol):
    """What is done to containers that run, and who does it."""

    async def version(self, deadline_s: float | None = None) -> pb.VersionResponse: ...

    async def memory_used(self, container_id: str) -> int | None: ...

    async def update_resources(self, container_id: str, resources: pb.LinuxContainerResources) -> None: ...

    async def reopen_log(self, container_id: str) -> None: ...

    async def checkpoint_container(self, container_id: str, location: str) -> None: ...


class Streams(Protocol):
    async def exec_url(self, request: pb.ExecRequest) -> str: ...

    async def attach_url(self, request: pb.AttachRequest) -> str: ...

    async def port_forward_url(self, request: pb.PortForwardRequest) -> str: ...


class ExecProcesses(Protocol):
    async def end(self, container_id: str, command: Sequence[str], since_s: float) -> bool: ...


class NodeImages(Protocol):
    """Images, and who may use them. `retry` forgets the pauses of a pod whose pulls failed; `why_waits`: what holds the
    pull of an image up, empty where nothing does; `tells_pulls`: pulls report their own events."""

    tells_pulls: bool

    async def image_status(self, image: str) -> pb.Image | None: ...

    async def may_use(self, request: PullRequest, image_id: str) -> bool: ...

    async def pull_image(self, request: PullRequest, sandbox_config: pb.PodSandboxConfig) -> str: ...

    def why_waits(self, image: str) -> str: ...

    def retry(self, namespace: str, name: str) -> None: ...


class ProbeClient(Protocol):
    """Questions over the network. They raise OSError where no server could be reached, ValueError for an odd answer."""

    async def http_get(self, question: HttpQuestion) -> HttpAnswer: ...

    async def tcp_connect(self, host: str, port: int) -> None: ...

    async def grpc_check(self, host: str, port: int, service: str, timeout_s: float) -> str: ...


class NodeFigures(Protocol):
    """What the node has left, and what pods use. They raise OSError or RuntimeCallFailed."""

    async def look(self) -> NodeLook:
        """A few reads."""

    async def use(self) -> Mapping[str, PodUse]:
        """By uid of the pod; a look at everything."""

    async def layers(self) -> Mapping[str, int]:
        """Bytes that containers wrote into their own layers, by their ids; not older than a minute."""

    async def make_room(self, signal: str) -> None:
        """Remove what belongs to no pod."""

    def arm(self, more_bytes: int | None) -> None:
        """Ring when so much more memory is in use, or something waits for memory; None: for the latter alone."""

    def disarm(self) -> None:
        """Nothing looks any more."""

    async def rung(self) -> None:
        """Until the kernel says that memory may run short."""


class Groups(Protocol):
    """Control groups by paths below their root; blocking calls that raise OSError."""

    def read(self, paths: Iterable[str]) -> Mapping[str, str | None]: ...

    def make(self, path: str) -> None: ...

    def write(self, path: str, value: str) -> None: ...

    def remove(self, group: str) -> None: ...


class Slices(Protocol):
    """Slices of systemd by the names of their units; calls raise OSError."""

    async def hold(self, unit: str, properties: Sequence[tuple[str, int]], *, anew: bool = False) -> None: ...

    async def stop(self, unit: str) -> None: ...

    async def close(self) -> None: ...


class Features(Protocol):
    """What the runtime can do; known as soon as it answered once."""

    async def features(self) -> RuntimeFeatures: ...


class PodDevices(Protocol):
    """Devices that pods claim. `hold` returns when all claims of a pod are prepared; `edits` says what a container
    gets of them. Both raise DevicesNotReady; `release` raises DevicesNotReleased until nothing is held."""

    async def hold(self, pod: PodSpec) -> None: ...

    async def edits(self, pod: PodSpec, container: ContainerSpec, runtime: RuntimeFeatures) -> ContainerDevices: ...

    async def release(self, uid: str) -> None: ...


class PodClaims(Protocol):
    """Storage that pods claim. `hold` finds what serves the claims of a pod, or makes it, and raises OSError; `places`
    says where it is, or why there is none; `paths` are all that pods may change by claims."""

    async def hold(self, pod: PodSpec) -> None: ...

    def places(self, pod: PodSpec) -> Mapping[str, ClaimPlace]: ...

    @property
    def paths(self) -> frozenset[str]: ...


class PodPolicies(Protocol):
    """What the kernel lets the network of a pod do."""

    async def hold(self, uid: str) -> None:
        """Until it has that. Raises PodUnprotected."""


class Logind(Protocol):
    """Announces that the node goes down, and waits for those that asked for a delay. Calls raise OSError where it
    cannot be reached; `news` does when the connection breaks."""

    def is_expected(self) -> bool: ...

    async def connect(self) -> None: ...

    async def close(self) -> None: ...

    async def take_lock(self) -> None: ...

    def drop_lock(self) -> None: ...

    async def longest_delay_s(self) -> float: ...

    async def raise_longest_delay(self, delay_s: float) -> None: ...

    async def is_going_down(self) -> bool: ...

    def news(self) -> AsyncIterator[bool]: ...

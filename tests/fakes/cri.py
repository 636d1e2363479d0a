# SPDX-License-Identifier: Apache-2.0
"""A container runtime in memory that refuses what a real one refuses.

Never: runs anything. A container runs until the test calls `exit` or somebody stops it. The same contract suite runs
against this and against containerd.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import count

from agent.model.runtime.error import NotFound, NotImplementedByRuntime, RuntimeCallFailed, Unavailable
from agent.model.runtime.event import EventKind, RuntimeEvent
from agent.model.runtime.features import RuntimeFeatures
from agent.model.text.outside_text import from_outside, login_values
from agent.wire.cri import runtime_v1_pb2 as pb

EVENT_TYPES = {
    EventKind.CREATED: pb.CONTAINER_CREATED_EVENT,
    EventKind.STARTED: pb.CONTAINER_STARTED_EVENT,
    EventKind.STOPPED: pb.CONTAINER_STOPPED_EVENT,
    EventKind.DELETED: pb.CONTAINER_DELETED_EVENT,
}


class FakeCri:
    """Same methods as the driver. `reachable`, `has_events` and `maps_ports` are for tests to switch. `registry` has
    what can be pulled, `sizes` how large it is, `pulls` what was asked for (image, user, handler), and `while_pulling`
    is awaited in every pull: it may take its time or raise."""

    endpoint = "fake"

    def __init__(self, now_ns: Callable[[], int] = lambda: 1) -> None:
        self.reachable = True
        self.has_events = True
        self.maps_ports: bool | None = True
        self.registry: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.pause_image = ""
        self.told_cni_folders = ("", "")
        self.unpackers = frozenset({"overlayfs"})
        self.image_places: tuple[str, ...] = ("/",)
        self.used: dict[str, int] = {}
        self.pulls: list[tuple[str, str, str]] = []
        self.while_pulling: Callable[[str, pb.AuthConfig | None], Awaitable[None]] | None = None
        self.calls: list[str] = []
        self.failures: dict[str, RuntimeCallFailed] = {}
        self._now_ns = now_ns
        self._ids = count(1)
        self._sandboxes: dict[str, pb.PodSandboxStatus] = {}
        self._containers: dict[str, pb.ContainerStatus] = {}
        self._holder: dict[str, str] = {}
        self._images: dict[str, pb.Image] = {}
        self._listeners: list[asyncio.Queue[RuntimeEvent]] = []

    async def close(self) -> None:
        """Nothing to close."""

    def exit(self, container_id: str, exit_code: int) -> None:
        status = self._containers[container_id]
        status.state = pb.CONTAINER_EXITED
        status.exit_code = exit_code
        status.finished_at = self._now_ns()
        status.reason = "Completed" if exit_code == 0 else "Error"
        self._tell(EventKind.STOPPED, container_id, exit_code)

    async def version(self, deadline_s: float | None = None) -> pb.VersionResponse:
        self._enter("Version", deadline_s)
        return pb.VersionResponse(version="0.1.0", runtime_name="fake", runtime_version="1", runtime_api_version="v1")

    async def status(self, deadline_s: float | None = None) -> pb.RuntimeStatus:
        self._enter("Status", deadline_s)
        ready = [pb.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
        return pb.RuntimeStatus(conditions=ready)

    async def features(self, deadline_s: float | None = None) -> RuntimeFeatures:
        self._enter("Status", deadline_s)
        return RuntimeFeatures(name="fake", version="1")

    async def maps_host_ports(self) -> bool | None:
        self._enter("Status")
        return self.maps_ports

    async def list_sandboxes(self) -> list[pb.PodSandbox]:
        self._enter("ListPodSandbox")
        return [
            pb.PodSandbox(
                id=status.id, metadata=status.metadata, state=status.state, created_at=status.created_at,
                labels=status.labels, annotations=status.annotations,
            )
            for status in self._sandboxes.values()
        ]  # fmt: skip

    async def list_containers(self, sandbox_id: str = "") -> list[pb.Container]:
        self._enter("ListContainers")
        return [
            pb.Container(
                id=status.id, pod_sandbox_id=self._holder[status.id], metadata=status.metadata, image=status.image,
                state=status.state, created_at=status.created_at, labels=status.labels, annotations=status.annotations,
            )
            for status in self._containers.values()
            if sandbox_id in ("", self._holder[status.id])
        ]  # fmt: skip

    async def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        self._enter("PodSandboxStatus")
        return self._sandbox("PodSandboxStatus", sandbox_id)

    async def container_status(self, container_id: str) -> pb.ContainerStatus:
        self._enter("ContainerStatus")
        copy = pb.ContainerStatus()
        copy.CopyFrom(self._container("ContainerStatus", container_id))
        return copy

    async def run_sandbox(self, config: pb.PodSandboxConfig, runtime_handler: str = "") -> str:
        self._enter("RunPodSandbox")
        if runtime_handler:
            raise RuntimeCallFailed("RunPodSandbox", f'no runtime for "{runtime_handler}" is configured')
        for known in self._sandboxes.values():
            if known.metadata == config.metadata:
                raise RuntimeCallFailed("RunPodSandbox", f"name is reserved for {known.id}")
        sandbox_id = f"s{next(self._ids):063d}"
        self._sandboxes[sandbox_id] = pb.PodSandboxStatus(
            id=sandbox_id, metadata=config.metadata, state=pb.SANDBOX_READY, created_at=self._now_ns(),
            network=pb.PodSandboxNetworkStatus(ip="10.0.0.2"), labels=config.labels, annotations=config.annotations,
        )  # fmt: skip
        self._tell(EventKind.STARTED, sandbox_id)
        return sandbox_id

    async def stop_sandbox(self, sandbox_id: str) -> None:
        self._enter("StopPodSandbox")
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            return
        for container_id, holder in self._holder.items():
            if holder == sandbox_id and self._containers[container_id].state == pb.CONTAINER_RUNNING:
                self.exit(container_id, 137)
        sandbox.state = pb.SANDBOX_NOTREADY
        self._tell(EventKind.STOPPED, sandbox_id)

    async def remove_sandbox(self, sandbox_id: str) -> None:
        self._enter("RemovePodSandbox")
        await self.stop_sandbox(sandbox_id)
        for container_id in [known for known, holder in self._holder.items() if holder == sandbox_id]:
            self._forget(container_id)
        if self._sandboxes.pop(sandbox_id, None):
            self._tell(EventKind.DELETED, sandbox_id)

    async def create_container(
        self, sandbox_id: str, config: pb.ContainerConfig, sandbox_config: pb.PodSandboxConfig
    ) -> str:
        self._enter("CreateContainer", sandbox_config)
        if self._sandbox("CreateContainer", sandbox_id).state != pb.SANDBOX_READY:
            raise RuntimeCallFailed("CreateContainer", f"sandbox {sandbox_id} is not running")
        image = self._find_image(config.image.image)
        if image is None:
            raise NotFound("CreateContainer", f'image "{config.image.image}" not found')
        for known, holder in self._holder.items():
            if holder == sandbox_id and self._containers[known].metadata == config.metadata:
                raise RuntimeCallFailed("CreateContainer", f"name is reserved for {known}")
        container_id = f"c{next(self._ids):063d}"
        self._containers[container_id] = pb.ContainerStatus(
            id=container_id, metadata=config.metadata, state=pb.CONTAINER_CREATED, created_at=self._now_ns(),
            image=config.image, image_ref=image.id, labels=config.labels, annotations=config.annotations,
            mounts=config.mounts,
        )  # fmt: skip
        self._holder[container_id] = sandbox_id
        self._tell(EventKind.CREATED, container_id)
        return container_id

    async def start_container(self, container_id: str) -> None:
        self._enter("StartContainer")
        status = self._container("StartContainer", container_id)
        if status.state != pb.CONTAINER_CREATED:
            state = pb.ContainerState.Name(status.state)
            raise RuntimeCallFailed("StartContainer", f"container is in {state} state")
        status.state = pb.CONTAINER_RUNNING
        status.started_at = self._now_ns()
        self._tell(EventKind.STARTED, container_id)

    async def stop_container(self, container_id: str, grace_s: int) -> None:
        self._enter("StopContainer")
        status = self._containers.get(container_id)
        if status is not None and status.state == pb.CONTAINER_RUNNING:
            self.exit(container_id, 143 if grace_s else 137)

    async def remove_container(self, container_id: str) -> None:
        self._enter("RemoveContainer")
        self._forget(container_id)

    async def exec_sync(self, container_id: str, command: list[str], timeout_s: int) -> pb.ExecSyncResponse:
        self._enter("ExecSync", timeout_s)
        if self._container("ExecSync", container_id).state != pb.CONTAINER_RUNNING:
            raise RuntimeCallFailed("ExecSync", "container is not running")
        return pb.ExecSyncResponse(exit_code=1 if command == ["false"] else 0)

    async def memory_used(self, container_id: str) -> int | None:
        self._enter("ContainerStats")
        self._container("ContainerStats", container_id)
        return self.used.get(container_id)

    async def update_resources(self, container_id: str, resources: pb.LinuxContainerResources) -> None:
        self._enter("UpdateContainerResources", resources)
        self._container("UpdateContainerResources", container_id)

    async def reopen_log(self, container_id: str) -> None:
        self._enter("ReopenContainerLog")
        if self._container("ReopenContainerLog", container_id).state != pb.CONTAINER_RUNNING:
            raise RuntimeCallFailed("ReopenContainerLog", "container is not running")

    async def checkpoint_container(self, container_id: str, location: str) -> None:
        self._enter("CheckpointContainer", container_id, location)
        raise NotImplementedByRuntime("CheckpointContainer", "method CheckpointContainer not implemented")

    async def image_status(self, image: str, *, handler: str = "") -> pb.Image | None:
        self._enter("ImageStatus", handler)
        return self._find_image(image)

    async def list_images(self) -> list[pb.Image]:
        self._enter("ListImages")
        return list(self._images.values())

    async def pull_image(
        self,
        image: str,
        auth: pb.AuthConfig | None = None,
        sandbox_config: pb.PodSandboxConfig | None = None,
        *,
        handler: str = "",
    ) -> str:
        self._enter("PullImage", sandbox_config)
        self.pulls.append((image, auth.username if auth else "", handler))
        if self.while_pulling is not None:
            secrets = login_values(auth.username, auth.password, auth.identity_token) if auth is not None else ()
            try:
                await self.while_pulling(image, auth)
            except RuntimeCallFailed as error:
                raise type(error)(error.method, from_outside(error.details, secrets), error.code) from None
        if image not in self.registry:
            raise NotFound("PullImage", f'failed to resolve image "{image}": not found')
        image_id = f"sha256:{sum(image.encode()):064x}"
        self._images[image_id] = pb.Image(id=image_id, repo_tags=[image], size=self.sizes.get(image, 1))
        return image_id

    async def image_filesystem(self) -> str:
        return (await self.file_systems())[0][0]

    async def file_systems(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        self._enter("ImageFsInfo")
        return self.image_places, ()

    async def image_use(self) -> dict[str, int]:
        return dict.fromkeys((await self.file_systems())[0], 0)

    async def snapshotters(self) -> frozenset[str]:
        self._enter("Status")
        return self.unpackers

    async def are_snapshot_annotations_off(self) -> bool:
        self._enter("Status")
        return False

    async def hosts_folder(self) -> str:
        self._enter("Status")
        return ""

    async def cni_folders(self) -> tuple[str, str]:
        self._enter("Status")
        return self.told_cni_folders

    async def sandbox_image(self) -> str:
        self._enter("Status")
        return self.pause_image

    async def remove_image(self, image: str) -> None:
        self._enter("RemoveImage")
        found = self._find_image(image)
        if found is not None:
            del self._images[found.id]

    async def events(self) -> AsyncIterator[RuntimeEvent]:
        with self._listening() as queue:
            while True:
                yield await queue.get()

    async def event_messages(self) -> AsyncGenerator[bytes]:
        with self._listening() as queue:
            while True:
                event = await queue.get()
                sandbox = self._sandboxes.get(event.sandbox_id)
                own = [one for one in self._containers.values() if self._holder[one.id] == event.sandbox_id]
                yield pb.ContainerEventResponse(
                    container_id=event.container_id, container_event_type=EVENT_TYPES[event.kind],
                    created_at=self._now_ns(), pod_sandbox_status=sandbox, containers_statuses=own,
                ).SerializeToString()  # fmt: skip

    @contextmanager
    def _listening(self) -> Iterator[asyncio.Queue[RuntimeEvent]]:
        self._enter("GetContainerEvents")
        if not self.has_events:
            raise NotImplementedByRuntime("GetContainerEvents", "method GetContainerEvents not implemented")
        queue: asyncio.Queue[RuntimeEvent] = asyncio.Queue(maxsize=1000)
        self._listeners.append(queue)
        try:
            yield queue
        finally:
            self._listeners.remove(queue)

    def _enter(self, method: str, *_arguments: object) -> None:
        self.calls.append(method)
        if not self.reachable:
            raise Unavailable(method, "connection refused")
        failure = self.failures.pop(method, None)
        if failure is not None:
            raise failure

    def _sandbox(self, method: str, sandbox_id: str) -> pb.PodSandboxStatus:
        if sandbox_id not in self._sandboxes:
            raise NotFound(method, f'sandbox "{sandbox_id}": not found')
        return self._sandboxes[sandbox_id]

    def _container(self, method: str, container_id: str) -> pb.ContainerStatus:
        if container_id not in self._containers:
            raise NotFound(method, f'container "{container_id}": not found')
        return self._containers[container_id]

    def _find_image(self, name: str) -> pb.Image | None:
        for image in self._images.values():
            if name == image.id or name in image.repo_tags:
                return image
        return None

    def _forget(self, container_id: str) -> None:
        if self._containers.pop(container_id, None):
            self._tell(EventKind.DELETED, container_id)
            del self._holder[container_id]

    def _tell(self, kind: EventKind, object_id: str, exit_code: int | None = None) -> None:
        event = RuntimeEvent(kind, object_id, self._holder.get(object_id, object_id), exit_code)
        for queue in self._listeners:
            queue.put_nowait(event)

# SPDX-License-Identifier: Apache-2.0
"""Carries out single steps of a plan.

Owns: the calls to the runtime and the directories for logs. Each step may be repeated after any part of it was done.
Never: decides, retries or remembers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent.model.pod import ContainerSpec, PodSpec
from agent.pods.logs import LogDirectories
from agent.pods.plan import Action, CreateContainer, MakeSandbox, RemoveSandbox, StartContainer, StopContainer
from agent.pods.ports import Containers, Sandboxes
from agent.pods.sandbox_config import container_config, sandbox_config
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["PodSettings", "Steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the plane takes from the configuration."""

    node: str
    instance: str
    name_suffix: bool
    log_directory: Path
    cgroup_root: str


class Steps:
    """The steps of all pods. They raise RuntimeCallFailed, OSError, or ValueError for text that no message can hold."""

    def __init__(self, sandboxes: Sandboxes, containers: Containers, settings: PodSettings) -> None:
        self._sandboxes = sandboxes
        self._containers = containers
        self._settings = settings
        self._logs = LogDirectories(settings.log_directory)

    async def carry_out(self, action: Action, waits_for: Callable[[str], None]) -> str:
        """One step; answers the id of what it made. `waits_for` is told what takes long."""
        match action:
            case StopContainer(container):
                await self._containers.stop_container(container.id, container.grace_s)
            case RemoveSandbox(sandbox, has_heir):
                await self._sandboxes.stop_sandbox(sandbox.id)
                # Before the sandbox: what it is called is known only as long as it is listed.
                if not has_heir:
                    await self._logs.remove(sandbox.namespace, sandbox.name, sandbox.uid)
                await self._sandboxes.remove_sandbox(sandbox.id)
            case MakeSandbox(pod):
                return await self._make(self._config(pod))
            case CreateContainer(pod, container, sandbox_id):
                return await self._create(pod, container, sandbox_id, waits_for)
            case StartContainer(container_id=container_id):
                await self._containers.start_container(container_id)
        return ""

    async def _make(self, config: pb.PodSandboxConfig) -> str:
        sandbox_id = ""
        try:
            self._logs.make(config.log_directory)
            sandbox_id = await self._sandboxes.run_sandbox(config)
        finally:
            if not sandbox_id:
                self._logs.take_back(config.log_directory)
        return sandbox_id

    async def _create(
        self, pod: PodSpec, container: ContainerSpec, sandbox_id: str, waits_for: Callable[[str], None]
    ) -> str:
        config = self._config(pod)
        if await self._containers.image_status(container.image) is None:
            waits_for(f"fetch {container.image} for {container.name}")
            await self._containers.pull_image(container.image, sandbox_config=config)
        self._logs.make(config.log_directory, container.name)
        return await self._containers.create_container(sandbox_id, container_config(pod, container), config)

    def _config(self, pod: PodSpec) -> pb.PodSandboxConfig:
        settings = self._settings
        return sandbox_config(pod, settings.instance, settings.log_directory, settings.cgroup_root)

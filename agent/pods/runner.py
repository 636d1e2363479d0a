# SPDX-License-Identifier: Apache-2.0
"""Carries out what plan.py says, and shows the pods of this node.

Owns: the loop (a manifest changed, the runtime told something, a pause is over), the steps, and the feed of pods. Its
tasks live in the group that `run` opens.
Never: decides. A pod whose step failed waits and is tried again; the others go on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.model.component import Report
from agent.model.feed import Feed
from agent.model.pod import PodSpec
from agent.model.pod_state import PodState
from agent.model.runtime_error import RuntimeCallFailed, Unavailable
from agent.pods.manifest import read_pods
from agent.pods.plan import (
    Action,
    CreateContainer,
    MakeSandbox,
    RemoveSandbox,
    SeenContainer,
    SeenSandbox,
    StartContainer,
    plan_pods,
)
from agent.pods.ports import Clock, Containers, Events, Manifests, Sandboxes
from agent.pods.sandbox_config import INSTANCE, UID, container_config, sandbox_config
from agent.pods.view import pod_state
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["PodRunner", "PodSettings"]

log = structlog.get_logger(plane="pods")

RETRY_S = 2.0
SAFETY_NET_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What the plane takes from the configuration."""

    node: str
    instance: str
    name_suffix: bool
    log_directory: Path
    cgroup_root: str


class PodRunner:
    """The pods plane. `pods` is what the API shows."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        containers: Containers,
        manifests: Manifests,
        events: Events,
        settings: PodSettings,
        *,
        clock: Clock,
    ) -> None:
        self._sandboxes = sandboxes
        self._containers = containers
        self._manifests = manifests
        self._events = events
        self._settings = settings
        self._clock = clock
        self._desired: list[PodSpec] | None = None
        self._problems: dict[str, str] = {}
        self._wake = asyncio.Event()
        self.pods: Feed[PodState] = Feed()

    async def run(self, report: Report) -> None:
        """Until cancelled; what runs goes on running."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_manifests(), name="pods-manifests")
            group.create_task(self._follow_events(), name="pods-events")
            while True:
                await self._wait(SAFETY_NET_S if not self._problems else RETRY_S)
                try:
                    await self._reconcile()
                except Unavailable as error:
                    report.degraded(f"the container runtime does not answer: {error.details}")
                    self._problems[""] = error.details
                    continue
                self._problems.pop("", None)
                if self._problems:
                    report.degraded("; ".join(f"{name}: {text}" for name, text in self._problems.items()))
                else:
                    report.ready(f"{len(self._desired or ())} pods")

    async def _wait(self, longest_s: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), longest_s)
        except TimeoutError:
            return
        self._wake.clear()

    async def _follow_manifests(self) -> None:
        async for files in self._manifests.snapshots():
            self._read(files)
            self._wake.set()

    def _read(self, files: Mapping[str, bytes]) -> None:
        pods, findings = read_pods(files, self._settings.node, name_suffix=self._settings.name_suffix)
        for finding in findings:
            log.warning("manifest_refused", finding=str(finding))
        self._desired = pods

    async def _follow_events(self) -> None:
        async for _event in self._events.listen():
            self._wake.set()

    async def _reconcile(self) -> None:
        """Plan and act until there is nothing to do, then show the result."""
        if self._desired is None:
            return
        for _round in range(2 * sum(len(pod.containers) + 1 for pod in self._desired) + 2):
            plan = plan_pods(self._desired, await self._observe())
            if not plan:
                break
            if not await self._carry_out(plan):
                break
        await self._show(self._desired)

    async def _carry_out(self, plan: Sequence[Action]) -> bool:
        """False if nothing of it worked."""
        worked = False
        for action in plan:
            name = "runtime" if isinstance(action, RemoveSandbox) else f"{action.pod.namespace}/{action.pod.name}"
            try:
                await self._act(action)
            except Unavailable:
                raise
            except RuntimeCallFailed as error:
                log.warning("pod_step_failed", step=str(action), error=str(error))
                self._problems[name] = f"{action}: {error.details}"
                continue
            log.info("pod_step_finished", step=str(action))
            self._problems.pop(name, None)
            worked = True
        return worked

    async def _act(self, action: Action) -> None:
        match action:
            case RemoveSandbox(sandbox_id):
                await self._sandboxes.stop_sandbox(sandbox_id)
                await self._sandboxes.remove_sandbox(sandbox_id)
            case MakeSandbox(pod):
                config = self._sandbox_config(pod)
                _make_log_directory(config)
                await self._sandboxes.run_sandbox(config)
            case CreateContainer(pod, container, sandbox_id):
                if await self._containers.image_status(container.image) is None:
                    await self._containers.pull_image(container.image, sandbox_config=self._sandbox_config(pod))
                config = self._sandbox_config(pod)
                _make_log_directory(config, container.name)
                await self._containers.create_container(sandbox_id, container_config(pod, container), config)
            case StartContainer(container_id, _):
                await self._containers.start_container(container_id)

    def _sandbox_config(self, pod: PodSpec) -> pb.PodSandboxConfig:
        settings = self._settings
        return sandbox_config(pod, settings.instance, settings.log_directory, settings.cgroup_root)

    async def _observe(self) -> list[SeenSandbox]:
        """Our sandboxes, newest first, with their containers."""
        inside: dict[str, list[SeenContainer]] = {}
        for container in await self._containers.list_containers():
            only_created = container.state == pb.CONTAINER_CREATED
            seen = SeenContainer(container.id, container.metadata.name, only_created)
            inside.setdefault(container.pod_sandbox_id, []).append(seen)
        ours = [
            sandbox
            for sandbox in await self._sandboxes.list_sandboxes()
            if sandbox.annotations.get(INSTANCE) == self._settings.instance
        ]
        return [
            SeenSandbox(
                sandbox.id,
                sandbox.labels.get(UID, sandbox.metadata.uid),
                sandbox.state == pb.SANDBOX_READY,
                tuple(inside.get(sandbox.id, ())),
            )
            for sandbox in sorted(ours, key=lambda one: -one.created_at)
        ]

    async def _show(self, desired: Sequence[PodSpec]) -> None:
        """Bring the feed up to date."""
        by_uid: dict[str, pb.PodSandbox] = {}
        for sandbox in await self._sandboxes.list_sandboxes():
            if sandbox.annotations.get(INSTANCE) == self._settings.instance:
                by_uid[sandbox.labels.get(UID, "")] = sandbox
        listed = await self._containers.list_containers()
        keys = set()
        for pod in desired:
            found = by_uid.get(pod.uid)
            status = await self._sandboxes.sandbox_status(found.id) if found else None
            inside = [one.id for one in listed if found and one.pod_sandbox_id == found.id]
            details = [await self._containers.container_status(container_id) for container_id in inside]
            key = f"{pod.namespace}/{pod.name}"
            keys.add(key)
            self.pods.put(key, pod_state(pod, status, details, self._problems.get(key, "")))
        for key in set(self.pods.items) - keys:
            self.pods.remove(key)


def _make_log_directory(config: pb.PodSandboxConfig, container: str = "") -> None:
    """The runtime writes logs but makes no directories for them."""
    (Path(config.log_directory) / container).mkdir(parents=True, exist_ok=True, mode=0o755)

# SPDX-License-Identifier: Apache-2.0
"""Which sandboxes and containers are observed, and in which files the kernel counts for each.

The runtime is asked for its lists after it told of a change, and for each sandbox and container once. A group is found
by the process of the sandbox: its containers' groups lie beside its own and are called alike, with other ids. Where one
is not, the container's own process says where. Never: a path that was guessed from a setting.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import structlog

from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.model.text.json_text import decode_json
from agent.observe.kernel.group_text import NO_FIGURES, NO_LIMITS, GroupFigures, GroupLimits
from agent.observe.kernel.hierarchies import CONTROLLERS, UNIFIED, Hierarchies, above, neighbour, read_groups
from agent.observe.kernel.node_text import Interface
from agent.observe.ports import Instances, KernelFiles
from agent.observe.sample.group_files import NO_FILES, GroupFiles, GroupKind, group_files, limit_files
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="observe")

POD_NAME, NAMESPACE, UID = (f"io.kubernetes.pod.{one}" for one in ("name", "namespace", "uid"))
CONTAINER_NAME = "io.kubernetes.container.name"
OURS = "kepd.dev/instance"
NANOS = 1e9
# Where the path of a group is shown, hierarchies of version 1 agree but in odd cases.
SHOWN = ("memory", UNIFIED, "cpu")


class _Info(msgspec.Struct):
    """What containerd and CRI-O tell of a sandbox or container as JSON."""

    pid: int = 0


@dataclass(kw_only=True)
class Observed:
    """One group, and what was read of it last. Of `every_file` those that say something are `files`; `limit_files` are
    read seldom. `ended_s` is when it was found to be gone."""

    id: str
    name: str = ""
    image: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)
    every_file: GroupFiles = NO_FILES
    files: GroupFiles = NO_FILES
    limit_files: GroupFiles = NO_FILES
    started_at_s: float = 0.0
    attempt: int = 0
    texts: list[bytes | None] = field(default_factory=list)
    # Passes since its signs last changed, and since anything of it did.
    still: int = 0
    same: int = 0
    limits: GroupLimits = NO_LIMITS
    limit_texts: list[bytes | None] = field(default_factory=list)
    limits_read_s: float = 0.0
    # When all there is of it was read last.
    whole_s: float | None = None
    figures: GroupFigures = NO_FIGURES
    # When the figures were found to be so, last.
    seen_s: float = 0.0
    ended_s: float | None = None
    is_whole: bool = True
    # Its group, before the runtime's list says so.
    is_gone: bool = False

    @cached_property
    def group(self) -> str:
        return next((self.groups[one] for one in SHOWN if one in self.groups), "")


@dataclass(kw_only=True)
class ObservedPod:
    """`hold` keeps the sandbox's process apart from another that gets its number; None where it has none to see."""

    namespace: str
    name: str
    uid: str
    is_ours: bool
    is_on_host_network: bool
    sandbox: Observed
    own: Observed | None
    hold: int | None
    created_at_s: float = 0.0
    interfaces: tuple[Interface, ...] = ()
    containers: dict[str, Observed] = field(default_factory=dict)

    @property
    def living(self) -> list[Observed]:
        """Groups that there are to read, without the pod's own."""
        return [one for one in (self.sandbox, *self.containers.values()) if one.ended_s is None]


class Roster:
    """`wants` says whether a sandbox is observed."""

    def __init__(
        self,
        instances: Instances,
        files: KernelFiles,
        wants: Callable[[pb.PodSandbox], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._instances = instances
        self._files = files
        self._wants = wants
        self._now_s = now_s
        self.pods: dict[str, ObservedPod] = {}
        self.is_stale = True
        self.has_pressure = True
        self.hierarchies = Hierarchies({})
        self.parents: dict[str, Observed] = {}

    async def look(self, keep_ended_s: float) -> None:
        """Take over what the runtime lists. Raises RuntimeCallFailed where it does not answer; then the next try
        looks again."""
        sandboxes = {one.id: one for one in await self._instances.list_sandboxes() if _is_pod(one) and self._wants(one)}
        containers = [one for one in await self._instances.list_containers() if one.pod_sandbox_id in sandboxes]
        self.is_stale = False
        for sandbox in sandboxes.values():
            if sandbox.id not in self.pods and sandbox.state == pb.SANDBOX_READY:
                await self._one(self._begin(sandbox))
        running = {one.id for one in containers if one.state == pb.CONTAINER_RUNNING}
        for container in containers:
            pod = self.pods.get(container.pod_sandbox_id)
            if pod is not None and container.id in running and container.id not in pod.containers:
                await self._one(self._begin_container(pod, container))
        ready = {one.id for one in sandboxes.values() if one.state == pb.SANDBOX_READY}
        self._end(ready, running)
        self._forget(keep_ended_s)
        self.parents = self._parents()

    async def _one(self, begins: Awaitable[None]) -> None:
        """What has gone meanwhile, or what the runtime will not tell of, keeps nothing else from being seen."""
        try:
            await begins
        except NotFound:
            pass
        except (RuntimeCallFailed, msgspec.DecodeError, OSError) as error:
            self.is_stale = True
            log.warning("group_not_found", error=str(error))

    async def _begin(self, sandbox: pb.PodSandbox) -> None:
        details = await self._instances.sandbox_details(sandbox.id)
        pid = _pid(details.info)
        hold, groups = self._process(pid)
        namespaces = details.status.linux.namespaces.options
        self.pods[sandbox.id] = ObservedPod(
            namespace=sandbox.labels[NAMESPACE],
            name=sandbox.labels[POD_NAME],
            uid=sandbox.labels.get(UID, ""),
            is_ours=OURS in sandbox.annotations,
            is_on_host_network=namespaces.network == pb.NODE,
            sandbox=self._observed(sandbox.id, GroupKind.SANDBOX, groups),
            own=self._own_group(sandbox.id, groups),
            hold=hold,
            created_at_s=sandbox.created_at / NANOS,
        )

    def _process(self, pid: int) -> tuple[int | None, dict[str, str]]:
        if pid <= 0:
            return None, {}
        hold = self._files.hold_process(pid)
        return hold, read_groups((self._files.read_of_process(hold, "cgroup") or b"").decode("utf-8", "replace"))

    def _own_group(self, sandbox_id: str, groups: Mapping[str, str]) -> Observed | None:
        """The pod's, if its sandbox lies in one; a foreign sandbox without a parent lies in the root."""
        parents = {one: above(group) for one, group in groups.items() if sandbox_id in group and above(group) != "/"}
        if not parents:
            return None
        return self._observed(f"pod:{sandbox_id}", GroupKind.POD, parents)

    def _observed(self, name: str, kind: GroupKind, groups: Mapping[str, str]) -> Observed:
        files = group_files(kind, groups, self.hierarchies, has_pressure=self.has_pressure)
        limits = NO_FILES if kind is GroupKind.SANDBOX else limit_files(groups, self.hierarchies)
        return Observed(id=name, groups=groups, every_file=files, files=files, limit_files=limits)

    async def _begin_container(self, pod: ObservedPod, container: pb.Container) -> None:
        status = await self._instances.container_status(container.id)
        beside = {one: neighbour(group, pod.sandbox.id, container.id) for one, group in pod.sandbox.groups.items()}
        groups = {one: group for one, group in beside.items() if group is not None}
        if not self._is_there(groups):
            pid = _pid((await self._instances.container_details(container.id)).info)
            hold, groups = self._process(pid)
            if hold is not None:
                self._files.let_go(hold)
        one = pod.containers[container.id] = self._observed(container.id, GroupKind.CONTAINER, groups)
        one.name = container.labels.get(CONTAINER_NAME, container.metadata.name)
        one.image = status.image.user_specified_image or status.image.image
        one.started_at_s = status.started_at / NANOS
        one.attempt = container.metadata.attempt

    def _is_there(self, groups: Mapping[str, str]) -> bool:
        folders = (self.hierarchies.folder(one, group) for one, group in groups.items())
        return any(folder is not None and self._files.is_there(folder) for folder in folders)

    def _end(self, ready: set[str], running: set[str]) -> None:
        now_s = self._now_s()
        for sandbox_id, pod in self.pods.items():
            if sandbox_id not in ready:
                self._ended(pod.sandbox, now_s)
                if pod.own is not None:
                    self._ended(pod.own, now_s)
                    pod.own = None
            for one in pod.containers.values():
                if one.id not in running:
                    self._ended(one, now_s)

    def _ended(self, one: Observed, now_s: float) -> None:
        if one.ended_s is None:
            one.ended_s = now_s
            self._files.forget((*one.files.paths, *one.limit_files.paths))

    def _forget(self, keep_ended_s: float) -> None:
        """What ended long ago. Nothing of it is open any more but the hold on its process."""
        until_s = self._now_s() - keep_ended_s
        for sandbox_id, pod in list(self.pods.items()):
            pod.containers = {
                one.id: one for one in pod.containers.values() if one.ended_s is None or one.ended_s >= until_s
            }
            if pod.sandbox.ended_s is not None and pod.hold is not None:
                self._files.let_go(pod.hold)
                pod.hold = None
            if pod.sandbox.ended_s is not None and pod.sandbox.ended_s < until_s and not pod.containers:
                del self.pods[sandbox_id]

    def root(self) -> Observed:
        return self._observed("/", GroupKind.CONTAINER, dict.fromkeys((*CONTROLLERS, UNIFIED), "/"))

    def find(self, instance: str) -> Observed | None:
        return next((pod.containers[instance] for pod in self.pods.values() if instance in pod.containers), None)

    def _parents(self) -> dict[str, Observed]:
        """The groups above pods, by the path that is shown, without the root."""
        found: dict[str, Mapping[str, str]] = {}
        for pod in self.pods.values():
            if pod.own is not None:
                for levels in _levels_above(pod.own.groups):
                    found.setdefault(next((levels[one] for one in SHOWN if one in levels), ""), levels)
        found.pop("", None)
        return {
            shown: self.parents.get(shown) or self._observed(shown, GroupKind.CONTAINER, groups)
            for shown, groups in found.items()
        }

    def close(self) -> None:
        for pod in self.pods.values():
            if pod.hold is not None:
                self._files.let_go(pod.hold)
                pod.hold = None
        self._files.close()


def _levels_above(groups: Mapping[str, str]) -> Iterable[Mapping[str, str]]:
    levels = dict(groups)
    while True:
        levels = {one: above(group) for one, group in levels.items() if above(group) != "/"}
        if not levels:
            return
        yield levels


def _is_pod(sandbox: pb.PodSandbox) -> bool:
    """Sandboxes of others need not be pods."""
    return bool(sandbox.labels.get(POD_NAME)) and bool(sandbox.labels.get(NAMESPACE))


def _pid(info: Mapping[str, str]) -> int:
    """Raises DecodeError where the runtime tells it in another way."""
    text = info.get("info", "")
    return decode_json(text, _Info).pid if text else 0

# SPDX-License-Identifier: Apache-2.0
"""Images of Deployments and DaemonSets of which this node runs a pod: where one was, the next one may come.

A new image is not due on all nodes at once. Never: decides what is fetched. An outage changes nothing.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.resource import (
    DAEMON_SETS,
    DEPLOYMENTS,
    PODS,
    Changed,
    ChangeType,
    Disconnected,
    Replaced,
    Resource,
)
from agent.images.prefetch.plan import PodImage
from agent.images.run.cluster.pod_source import spec_images
from agent.model.images.pull import NO_POD
from agent.model.kube_objects import Pod, WorkloadObject

log = structlog.get_logger(plane="images")

SPREAD_S = 60.0
DEPLOYMENT, DAEMON_SET = "Deployment", "DaemonSet"

Key = tuple[str, str, str]
"""Kind, namespace, name."""


def owner_of(pod: Pod) -> Key | None:
    """The workload that made a pod, told by its ReplicaSet's name where there is one between them."""
    meta = pod.metadata
    owner = next((one for one in meta.owner_references or () if one.controller), None)
    if owner is None:
        return None
    if owner.kind == DAEMON_SET:
        return DAEMON_SET, meta.namespace, owner.name
    ending = f"-{meta.labels.template_hash}" if meta.labels is not None and meta.labels.template_hash else ""
    if owner.kind == "ReplicaSet" and ending and owner.name.endswith(ending):
        return DEPLOYMENT, meta.namespace, owner.name.removesuffix(ending)
    return None


class KubeRollouts:
    def __init__(self, client: KubeClient, node: str, *, clock: SystemClock) -> None:
        self._client = client
        self._node = node
        self._clock = clock
        self._images: dict[Key, tuple[PodImage, ...]] = {}
        self._owners: dict[str, Key] = {}
        self._due_s: dict[str, float] = {}
        self._wake = asyncio.Event()

    async def follow(self, tell: Callable[[Sequence[PodImage]], None]) -> None:
        """Tell the images that are due, again whenever they change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_pods(), name="rollout-pods")
            for kind, resource in ((DEPLOYMENT, DEPLOYMENTS), (DAEMON_SET, DAEMON_SETS)):
                group.create_task(self._follow_workloads(kind, resource), name=f"rollout-{kind}")
            while True:
                await self._wake.wait()
                self._wake.clear()
                next_s = self._tell(tell)
                if next_s is not None:
                    group.create_task(self._ring(next_s), name="rollout-alarm")

    def _tell(self, tell: Callable[[Sequence[PodImage]], None]) -> float | None:
        """The images that are due; answers in how many seconds the next one is."""
        now_s = self._clock.now_s()
        wanted = [image for key in sorted(set(self._owners.values())) for image in self._images.get(key, ())]
        names = {image.image for image in wanted}
        self._due_s = {name: self._due_s.get(name, now_s + self._delay_s(name)) for name in names}
        tell([image for image in wanted if self._due_s[image.image] <= now_s])
        later = [due_s - now_s for due_s in self._due_s.values() if due_s > now_s]
        return min(later, default=None)

    def _delay_s(self, image: str) -> float:
        """The same for an image on this node each time, another one on the next node."""
        drawn = hashlib.sha256(f"{self._node} {image}".encode()).digest()[:4]
        return int.from_bytes(drawn) / 2**32 * SPREAD_S

    async def _ring(self, in_s: float) -> None:
        await self._clock.sleep(in_s)
        self._wake.set()

    async def _follow_pods(self) -> None:
        mine = PODS.narrowed(field_selector=f"spec.nodeName={self._node}")
        async with aclosing(self._client.follow(mine)) as news:
            async for one in news:
                before = set(self._owners.values())
                match one:
                    case Replaced(items=items):
                        self._owners = {pod.metadata.uid: key for pod in items if (key := _living_owner(pod))}
                    case Changed(change=change, object=pod):
                        key = _living_owner(pod) if change is not ChangeType.DELETED else None
                        self._owners.pop(pod.metadata.uid, None)
                        self._owners |= {pod.metadata.uid: key} if key is not None else {}
                    case Disconnected():
                        log.warning("rollout_watch_lost", error=one.reason)
                if before != set(self._owners.values()):
                    self._wake.set()

    async def _follow_workloads(self, kind: str, resource: Resource[WorkloadObject]) -> None:
        async with aclosing(self._client.follow(resource)) as news:
            async for one in news:
                match one:
                    case Replaced(items=items):
                        self._images = {key: images for key, images in self._images.items() if key[0] != kind}
                        self._images |= {_key(kind, item): _images(item) for item in items}
                        self._wake.set()
                    case Changed(change=change, object=workload):
                        self._change(_key(kind, workload), () if change is ChangeType.DELETED else _images(workload))
                    case Disconnected():
                        log.warning("rollout_watch_lost", error=one.reason)

    def _change(self, key: Key, images: tuple[PodImage, ...]) -> None:
        if self._images.get(key, ()) == images:
            return  # most changes are those of a status
        self._images[key] = images
        if not images:
            del self._images[key]
        if key in self._owners.values():
            self._wake.set()


def _living_owner(pod: Pod) -> Key | None:
    return owner_of(pod) if pod.metadata.deletion_timestamp is None else None


def _key(kind: str, workload: WorkloadObject) -> Key:
    return kind, workload.metadata.namespace, workload.metadata.name


def _images(workload: WorkloadObject) -> tuple[PodImage, ...]:
    found: Iterable[PodImage] = spec_images(workload.spec.template.spec, NO_POD, is_rollout=True)
    return tuple(found)

# SPDX-License-Identifier: Apache-2.0
"""Pods that the API server has bound to this node, as the images they will need, in the order of need.

Never: decides what is fetched. An outage changes nothing: what was known stays.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing

import structlog

from agent.drivers.kube.client import KubeClient
from agent.drivers.kube.resource import PODS, Changed, ChangeType, Disconnected, Malformed, Replaced
from agent.images.prefetch.plan import PodImage
from agent.model.images.pull import PodIdentity, PullPolicy
from agent.model.images.reference import default_policy
from agent.model.kube_objects import Pod, PodContainer, PodSpecObject

log = structlog.get_logger(plane="images")

WAITING_PHASES = ("", "Pending")
FAILED = "Failed"
OVER_PHASES = (FAILED, "Succeeded")
POLICIES = {policy.value: policy for policy in PullPolicy}


def pod_images(pod: Pod) -> Iterator[PodImage]:
    """What a pod needs, first things first; nothing of one that goes or is over. One that runs needs its images again
    when a container of it starts anew."""
    if pod.metadata.deletion_timestamp is not None or pod.status.phase in OVER_PHASES:
        return
    static_uid = pod.metadata.annotations.static_uid if pod.metadata.annotations is not None else None
    uid = static_uid or pod.metadata.uid
    identity = PodIdentity(uid=uid, namespace=pod.metadata.namespace, name=pod.metadata.name)
    yield from spec_images(pod.spec, identity, is_started=pod.status.phase not in WAITING_PHASES)


def spec_images(
    spec: PodSpecObject, pod: PodIdentity, *, is_rollout: bool = False, is_started: bool = False
) -> Iterator[PodImage]:
    """The images of a pod, or of what a pod will be like, in the order of need."""
    volumes = [
        PodContainer(image=volume.image.reference, image_pull_policy=volume.image.pull_policy)
        for volume in spec.volumes or ()
        if volume.image is not None
    ]
    for container in (*volumes, *(spec.init_containers or ()), *(spec.containers or ())):
        if container.image:
            policy = container.image_pull_policy or default_policy(container.image)
            yield PodImage(
                pod=pod,
                image=container.image,
                policy=POLICIES.get(policy, PullPolicy.IF_NOT_PRESENT),
                priority=spec.priority or 0,
                is_private=bool(spec.image_pull_secrets),
                is_rollout=is_rollout,
                is_started=is_started,
            )


class KubePods:
    """`gone` hears the uid of each pod that is deleted or about to be; `ends` of these, and of those that are over for
    the node, such as evicted ones."""

    def __init__(
        self, client: KubeClient, node: str, gone: Callable[[str], None], ends: Callable[[str], None] = lambda _: None
    ) -> None:
        self._client = client
        self._resource = PODS.narrowed(field_selector=f"spec.nodeName={node}")
        self._gone = gone
        self._ends = ends
        self.trouble = ""

    async def snapshots(self) -> AsyncIterator[Sequence[PodImage]]:
        pods: dict[tuple[str, str], Pod] = {}
        async with aclosing(self._client.follow(self._resource)) as news:
            async for one in news:
                has_healed, self.trouble = bool(self.trouble), ""
                match one:
                    case Replaced(items=items):
                        pods = self._replaced(pods, items)
                    case Changed(change=change, object=pod):
                        self._changed(pods, change, pod)
                    case Malformed(text=text):
                        log.warning("pod_unreadable", error=text)
                        continue
                    case Disconnected():
                        log.warning("pod_watch_lost", error=one.reason)
                        self.trouble = one.reason
                    case _ if not has_healed:
                        continue
                yield [image for pod in pods.values() for image in pod_images(pod)]

    def _replaced(self, before: dict[tuple[str, str], Pod], items: Sequence[Pod]) -> dict[tuple[str, str], Pod]:
        pods = {(pod.metadata.namespace, pod.metadata.name): pod for pod in items}
        present = {pod.metadata.uid for pod in items}
        for pod in before.values():
            if pod.metadata.uid not in present:
                self._gone(pod.metadata.uid)
                self._ends(pod.metadata.uid)
        for pod in items:
            self._tell(pod)
        return pods

    def _changed(self, pods: dict[tuple[str, str], Pod], change: ChangeType, pod: Pod) -> None:
        key = (pod.metadata.namespace, pod.metadata.name)
        if change is ChangeType.DELETED:
            pods.pop(key, None)
        else:
            pods[key] = pod
        if change is ChangeType.DELETED:
            self._gone(pod.metadata.uid)
            self._ends(pod.metadata.uid)
        else:
            self._tell(pod)

    def _tell(self, pod: Pod) -> None:
        if pod.metadata.deletion_timestamp is not None:
            self._gone(pod.metadata.uid)
        if pod.metadata.deletion_timestamp is not None or pod.status.phase == FAILED:
            self._ends(pod.metadata.uid)

# SPDX-License-Identifier: Apache-2.0
"""The images of one pod's containers and volumes, each with its pull policy; or the archive in the place of one.

A container may begin from a checkpoint, once: the runtime takes the archive in the place of the image. What the
manifest says of the container counts; the archive has memory and layer alone, so volumes are as the pod has them.
Whether processor and kernel can go on with it says CRIU, when the container starts.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from agent.model.images.credential import PULL_SECRET_KEYS, PullSecret, SecretId, SecretText
from agent.model.images.pull import PodIdentity, PullPolicy, PullRequest
from agent.model.images.reference import default_policy
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.admit import priority_of
from agent.pods.plan.work import FetchingAhead
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.run_state import FAILURES, LivePod
from agent.pods.runtime.environment import ConfigProblem, Sources
from agent.wire.cri import runtime_v1_pb2 as pb

# Words of the images plane for a pull that is not to be had; each keeps its name on the container.
REFUSALS = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "SignatureValidationFailed")
IMAGE_REASONS = (*REFUSALS, "ErrImageNeverPull")
OWN_EVENTS = {
    "FailedMount": "FailedMount",
    "ErrImageNeverPull": "ErrImageNeverPull",
    "ImageInspectError": "InspectFailed",
    "CDINotSupported": "CDINotSupported",
    "ClaimError": "ClaimError",
    "FailedPrepareDynamicResources": "FailedPrepareDynamicResources",
    "NetworkPolicyNotReady": "NetworkPolicyNotReady",
}
FRESH_S = 2.0


class PodImages:
    def __init__(self, run: LivePod, setup: ContainerSetup) -> None:
        self._run = run
        self._context = run.context
        self._setup = setup
        self._failed_ahead: dict[str, RuntimeCallFailed] = {}
        # What was there a moment ago, for whoever asks next: each call is a millisecond on the way to a container.
        self._seen: dict[str, tuple[pb.Image, float]] = {}

    def fetch_first(self) -> None:
        """The first image comes while the sandbox is made. Its outcome is that of the container's own pull."""
        first = next(iter(self._run.pod.containers), None)
        if first is None:
            # A sandbox that was found without any.
            return
        policy = first.fields.image_pull_policy or default_policy(first.image)
        if policy == "IfNotPresent" and FetchingAhead(first.image) not in self._run.tasks:
            self._run.spawn(FetchingAhead(first.image), self._fetch_first(first))

    async def _fetch_first(self, first: ContainerSpec) -> None:
        self._failed_ahead.pop(first.image, None)
        with suppress(RuntimeCallFailed):
            if await self._look(first.image) is not None:
                return
            try:
                request = self._request(first.image, "IfNotPresent", first.name)
                await self._context.images.pull_image(request, self._setup.sandbox_config(0))
            except RuntimeCallFailed as error:
                self._failed_ahead[first.image] = error

    async def _look(self, reference: str) -> pb.Image | None:
        """Ahead of the launch that will want it."""
        found = await self._context.images.image_status(reference)
        if found is not None:
            self._seen[reference] = found, self._context.clock.now_s()
        return found

    async def _look_again(self, reference: str) -> pb.Image | None:
        """An answer counts once: whoever fails with it asks anew."""
        found, at_s = self._seen.pop(reference, (None, 0.0))
        is_fresh = self._context.clock.now_s() - at_s <= FRESH_S
        return found if found is not None and is_fresh else await self._context.images.image_status(reference)

    def prefetch(self) -> None:
        """Images of later containers come while earlier ones start. It changes nothing else: a container that
        finds its image missing fetches it itself, and tells what is wrong with it."""
        images = dict.fromkeys(one.image for one in self._run.pod.containers if one.fields.image_pull_policy != "Never")
        for image in list(images)[1:]:
            if FetchingAhead(image) not in self._run.tasks:
                self._run.spawn(FetchingAhead(image), self._fetch_quietly(image))

    async def _came_ahead(self, image: str) -> bool:
        """Wait for an image that is on its way already; whether it is there now."""
        ahead = self._run.tasks.get(FetchingAhead(image))
        if ahead is not None:
            await asyncio.wait([ahead])
        if failure := self._failed_ahead.pop(image, None):
            raise failure
        return ahead is not None and await self._context.images.image_status(image) is not None

    async def _fetch_quietly(self, image: str) -> None:
        images = self._context.images
        with suppress(*FAILURES):
            if await images.image_status(image) is None:
                await images.pull_image(self._request(image, "IfNotPresent", ""), self._setup.sandbox_config(0))

    def _request(self, image: str, policy: str, container: str) -> PullRequest:
        request = image_request(self._run.pod, image, policy, container, self._context.sources())
        trace = self._run.trace
        return request if trace is None else replace(request, span=trace.of_start())

    async def of(self, container: ContainerSpec) -> pb.Image:
        """Of the volumes that it mounts, once per pod, and its own."""
        run = self._run
        await self._setup.learn()
        mounted = {mount.name for mount in container.fields.volume_mounts}
        for volume in run.pod.spec.volumes:
            if volume.image is None or volume.name not in mounted or volume.name in run.volume_images:
                continue
            self._setup.check_image_volume(volume)
            reference = volume.image.reference
            policy = volume.image.pull_policy or default_policy(reference)
            run.volume_images[volume.name] = (await self._image(reference, policy, container.name)).id
        policy = container.fields.image_pull_policy or default_policy(container.image)
        return await self._image(container.image, policy, container.name)

    async def present(self, container: ContainerSpec) -> pb.Image | None:
        """If its own can be used as it is; nothing is fetched or told."""
        policy = container.fields.image_pull_policy or default_policy(container.image)
        found = await self._look(container.image) if policy != "Always" else None
        request = self._request(container.image, policy, container.name)
        return found if found is not None and await self._context.images.may_use(request, found.id) else None

    async def _image(self, reference: str, policy: str, name: str) -> pb.Image:
        """Always and IfNotPresent both end with an image that is there."""
        run, context = self._run, self._context
        try:
            present = await self._look_again(reference)
        except RuntimeCallFailed as error:
            text = f'Failed to inspect image "{reference}": {error.details}'
            raise ConfigProblem(text, "ImageInspectError") from error
        request = self._request(reference, policy, name)
        if present is not None and policy != "Always" and await context.images.may_use(request, present.id):
            run.tell(
                "Pulled",
                f'Container image "{reference}" already present on machine and can be accessed by the pod',
                name,
            )
            return present
        if policy == "Never":
            text = f'Container image "{reference}" is not present with pull policy of Never'
            raise ConfigProblem(text, "ErrImageNeverPull")
        began_s = context.clock.now_s()
        run.note("pull_started", name, reference)
        run.problem = f"fetch {reference} for {name}"
        run.ring()
        try:
            if not await self._came_ahead(reference) or policy == "Always":
                await context.images.pull_image(request, self._setup.sandbox_config(0))
        except RuntimeCallFailed as error:
            run.note("pull_failed", name, reference)
            if present is not None and run.pod.notes.get("kepd.dev/fallback-to-present") == "true":
                return present
            reason, text = _refusal(error.details)
            raise ConfigProblem(text, reason) from error
        finally:
            run.problem = ""
        run.note("pull_finished", name, reference, context.clock.now_s() - began_s)
        found = await context.images.image_status(reference)
        if found is None:
            raise ConfigProblem(f'image "{reference}" vanished after its pull', "ErrImagePull")
        return found

    def tell_failure(self, container: ContainerSpec, reason: str, shown: str, text: str) -> None:
        """What happened, and what the state says of it, as far as nothing else reports it."""
        run, name = self._run, container.name
        if reason in OWN_EVENTS:
            run.tell(OWN_EVENTS[reason], text, name, is_warning=True)
            run.tell("Failed", f"Error: {reason}", name, is_warning=True)
        elif not self._context.images.tells_pulls:
            run.tell("Failed", f'Failed to pull image "{container.image}": {text}', name, is_warning=True)
            run.tell("Failed", f"Error: {reason}", name, is_warning=True)
        if shown != reason:
            run.tell("BackOff", f'Back-off pulling image "{container.image}"', name)
            run.tell("Failed", f"Error: {shown}", name, is_warning=True)


def _refusal(details: str) -> tuple[str, str]:
    word, colon, text = details.partition(": ")
    return (word, text) if colon and word in REFUSALS else ("ErrImagePull", details)


def image_request(pod: PodSpec, reference: str, policy: str, container: str, sources: Sources) -> PullRequest:
    found = dict(_secrets(pod, sources))
    return PullRequest(
        image=reference,
        policy=PullPolicy(policy),
        pod=PodIdentity(uid=pod.uid, namespace=pod.namespace, name=pod.name),
        container=container,
        priority=priority_of(pod.spec),
        secrets=tuple(one for one in found.values() if one is not None),
        missing_secrets=tuple(name for name, one in found.items() if one is None),
    )


def _secrets(pod: PodSpec, sources: Sources) -> Iterator[tuple[str, PullSecret | None]]:
    for one in pod.spec.image_pull_secrets:
        source = sources.get(("Secret", pod.namespace, one.name))
        if source is None:
            yield one.name, None
            continue
        kind = next((kind for kind, key in PULL_SECRET_KEYS.items() if key in source.data), "")
        key = PULL_SECRET_KEYS.get(kind)
        data = {key: SecretText(source.data[key].decode("utf-8", "replace"))} if key else {}
        yield one.name, PullSecret(SecretId(pod.namespace, one.name), kind, data)


async def archive_for(run: LivePod, container: ContainerSpec, image: pb.Image) -> str:
    """The path of the archive that it begins from; empty where it begins as its manifest says."""
    name = run.annotated.restores.get(container.name, "")
    if not name or run.memory.of(container.name).restored == name:
        return ""
    if not run.features.restores_checkpoints:
        raise ConfigProblem(
            f"{run.features.label} cannot begin from a checkpoint; containerd 2.1 to 2.3 can. Without the annotation "
            f"kepd.dev/restore.{container.name} the container begins as its manifest says"
        )
    folder = run.context.files.checkpoints
    found = await asyncio.to_thread(folder.described, name)
    if found is None:
        raise ConfigProblem(f"checkpoint {name} is not there, or broken; kepctl get checkpoints lists them")
    # The archive has only what the container changed of its image. A name may be another's by now, a digest not.
    digest = found.reference.rpartition("@")[2]
    if digest not in {image.id, *(one.rpartition("@")[2] for one in image.repo_digests)}:
        raise ConfigProblem(f"checkpoint {name} is of image {found.reference}; {container.image} is another")
    if "@" not in found.reference and run.features.pulls_to_restore:
        raise ConfigProblem(
            f"checkpoint {name} has its image by id alone, for it was imported; {run.features.label} asks a registry "
            "for it and finds none, containerd 2.2 and 2.3 look on the node first"
        )
    return str(folder.directory / name)

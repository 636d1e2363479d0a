# SPDX-License-Identifier: Apache-2.0
"""The pods plane's way to images: through the pull queue, where the images plane runs.

Owns: the translation between a pod's wish and the queue's answer.
Never: decides which pull is first.
"""

from agent.drivers.cri.driver import CriRuntime
from agent.images.puller import Puller
from agent.model.image_pull import PodIdentity, PullPolicy, PullRequest
from agent.model.runtime_error import RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb

__all__ = ["QueuedImages"]


class QueuedImages:
    """What is there by the runtime, what is not by the queue."""

    def __init__(self, cri: CriRuntime, puller: Puller) -> None:
        self._puller = puller
        self._image_status = cri.image_status

    async def image_status(self, image: str) -> pb.Image | None:
        """As the runtime has it."""
        return await self._image_status(image)

    async def pull_image(
        self, image: str, auth: pb.AuthConfig | None = None, sandbox_config: pb.PodSandboxConfig | None = None
    ) -> str:
        """Wait for the turn, then for the image. Credentials are the queue's to find."""
        del auth
        metadata = sandbox_config.metadata if sandbox_config is not None else pb.PodSandboxMetadata()
        pod = PodIdentity(uid=metadata.uid, namespace=metadata.namespace, name=metadata.name)
        # Whoever asks for what is there wants it fresh; what is not there comes once for all who wait (STA-08).
        is_present = await self._image_status(image) is not None
        policy = PullPolicy.ALWAYS if is_present else PullPolicy.IF_NOT_PRESENT
        request = PullRequest(image=image, policy=policy, pod=pod)
        outcome = await self._puller.request(request)
        if not outcome.image_id:
            raise RuntimeCallFailed("PullImage", f"{outcome.reason}: {outcome.message}")
        return outcome.image_id

# SPDX-License-Identifier: Apache-2.0
"""Pods and the pull queue: what is there by the runtime, what is not by the queue, which finds the credentials."""

from msgspec.structs import replace

from agent.drivers.cri.driver import CriRuntime
from agent.images.run.puller import Puller
from agent.model.images.pull import PullPolicy, PullRequest
from agent.model.runtime.call_notes import CALLER
from agent.model.runtime.error import RuntimeCallFailed
from agent.wire.cri import runtime_v1_pb2 as pb


class QueuedImages:
    tells_pulls = True

    def __init__(self, cri: CriRuntime, puller: Puller) -> None:
        self._puller = puller
        self._image_status = cri.image_status

    async def image_status(self, image: str) -> pb.Image | None:
        return await self._image_status(image)

    async def may_use(self, request: PullRequest, image_id: str) -> bool:
        """Whether the pod has proved its right to what is there, or need not (`images.verify`)."""
        return await self._puller.may_use(request, image_id)

    async def pull_image(self, request: PullRequest, sandbox_config: pb.PodSandboxConfig) -> str:
        del sandbox_config
        # Whoever asks for what is there wants it fresh; what is not there comes once for all who wait.
        if request.policy is PullPolicy.ALWAYS and await self._image_status(request.image) is None:
            request = replace(request, policy=PullPolicy.IF_NOT_PRESENT)
        outcome = await self._puller.request(request)
        caller = CALLER.get()
        if caller is not None:
            caller.pulled(request.image, outcome.phases)
        if not outcome.image_id:
            raise RuntimeCallFailed("PullImage", f"{outcome.reason}: {outcome.message}")
        return outcome.image_id

    def why_waits(self, image: str) -> str:
        pulls = self._puller.pulls.items.values()
        return next((one.wait_text for one in pulls if one.image == image and one.wait_text), "")

    def retry(self, namespace: str, name: str) -> None:
        """Whatever failed may work with other secrets."""
        self._puller.retry(namespace, name)

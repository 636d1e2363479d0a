# SPDX-License-Identifier: Apache-2.0
"""Calls of a kubelet and the pull queue: its pulls wait there, and its removals until no pull of the image is left."""

from agent.drivers.cri.driver import CriRuntime
from agent.images.run.puller import Puller
from agent.model.clock import Clock
from agent.model.images.pull import CallerPull, PullRequest
from agent.model.images.reference import ReferenceInvalid, parse_reference

LOOK_S = 0.2


class QueueForProxy:
    """The pull queue as a caller of CRI meets it."""

    def __init__(self, puller: Puller, cri: CriRuntime, clock: Clock) -> None:
        self._puller = puller
        self._cri = cri
        self._clock = clock

    async def run_caller_pull(self, request: PullRequest, fingerprint: str, pull: CallerPull) -> None:
        await self._puller.run_caller_pull(request, fingerprint, pull)

    @property
    def is_busy(self) -> bool:
        return any(not one.stage.is_over for one in self._puller.pulls.items.values())

    async def settled(self, image: str, longest_s: float) -> None:
        """A kubelet names images by id; the runtime knows what else they are called."""
        until_s = self._clock.now_s() + longest_s
        known = await self._cri.image_status(image)
        names = {_full_name(image)}
        if known is not None:
            names.update(map(_full_name, (*known.repo_tags, *known.repo_digests)))
        while names & self._under_way() and self._clock.now_s() < until_s:
            await self._clock.sleep(LOOK_S)

    def _under_way(self) -> set[str]:
        return {_full_name(one.image) for one in self._puller.pulls.items.values() if not one.stage.is_over}


def _full_name(image: str) -> str:
    try:
        return str(parse_reference(image))
    except ReferenceInvalid:
        return image

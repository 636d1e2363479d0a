# SPDX-License-Identifier: Apache-2.0
"""Takes the startup taint off this node once its Services answer, and again whenever it comes back (DS-10)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from agent.drivers.kube.client import JSON_PATCH, KubeClient
from agent.drivers.kube.errors import KubeError
from agent.drivers.kube.resource import NODES
from agent.model.clock import Clock
from agent.model.kube_objects import NodeObject, NodeTaint
from agent.model.nft_table import Family
from agent.services.run.family_sync import SyncReport

log = structlog.get_logger(plane="services")

STARTUP_TAINT = "kepd.dev/not-ready"
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


class StartupTaint:
    def __init__(
        self, find: Callable[[], KubeClient | None], node: str, clock: Clock, answers: Callable[[], bool]
    ) -> None:
        self._find = find
        self._node = node
        self._clock = clock
        self._answers = answers
        self._taints: Sequence[NodeTaint] = ()
        self._due = asyncio.Event()

    def saw(self, node: NodeObject) -> None:
        self._taints = node.spec.taints or ()
        self._look()

    def follow(self, _family: Family, _report: SyncReport) -> None:
        self._look()

    def _look(self) -> None:
        if lifting(self._taints) and self._answers():
            self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._lift()

    async def _lift(self) -> None:
        """Until it is gone: what stands on the node is looked at anew before each try."""
        retry_s = FIRST_RETRY_S
        while (steps := lifting(self._taints)) and self._answers():
            kube_client = self._find()
            try:
                if kube_client is not None:
                    await kube_client.patch(NODES, self._node, steps, content_type=JSON_PATCH)
                    self._taints = ()  # until the server tells of the next ones
                    log.info("startup_taint_removed", node=self._node, taint=STARTUP_TAINT, v=0)
                    return
            except KubeError as error:
                log.warning(
                    "startup_taint_kept",
                    node=self._node,
                    taint=STARTUP_TAINT,
                    error=str(error),
                    effect="pods without a toleration are not scheduled here",
                    retry_s=retry_s,
                )
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)


def lifting(taints: Sequence[NodeTaint]) -> list[Mapping[str, str]]:
    """Operations for these taints; none if ours is not among them. A list of taints has no keys that a patch could
    name, so each removal first tests what stands at its place: the server refuses the whole change if it moved
    meanwhile. From the last on, so that places stay right."""
    steps: list[Mapping[str, str]] = []
    for place, taint in reversed(list(enumerate(taints))):
        if taint.key == STARTUP_TAINT:
            path = f"/spec/taints/{place}"
            steps += [
                {"op": "test", "path": f"{path}/key", "value": STARTUP_TAINT},
                {"op": "test", "path": f"{path}/effect", "value": taint.effect},
                {"op": "remove", "path": path},
            ]
    return steps

# SPDX-License-Identifier: Apache-2.0
"""Takes the startup taint off this node once its Services answer, and again whenever it comes back.

With `services.taintWhenDown` also puts it on, while there are no rules.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Protocol

import structlog

from agent.drivers.kube.errors import KubeError
from agent.drivers.kube.resource import JSON_PATCH, NODES, Disconnected, Replaced
from agent.model.clock import Clock
from agent.model.kube_objects import NodeObject, NodeTaint
from agent.model.services.nft_table import Family
from agent.services.ruleset import SyncReport
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel.missing_rules import MissingRules

if TYPE_CHECKING:
    from agent.drivers.kube.client import KubeClient

log = structlog.get_logger(plane="services")

STARTUP_TAINT = "kepd.dev/not-ready"
EFFECT = "NoSchedule"
FIRST_RETRY_S = 1.0
TAINT = "taint"
"""What the intake waits for."""
LONGEST_WAIT_S = 30.0
END_S = 2.0
LONGEST_RETRY_S = 60.0
Steps = Sequence[Mapping[str, object]]


class Absence(Protocol):
    """What says that this node has no rules for Services."""

    def is_so(self) -> bool: ...

    def rest_s(self) -> float:
        """How long the taint stays as it is, so that it does not come and go all the time."""

    def changed(self) -> None:
        """The taint was put on or taken off."""


class NeverAbsent:
    """Puts no taint on."""

    def is_so(self) -> bool:
        return False

    def rest_s(self) -> float:
        return 0.0

    def changed(self) -> None: ...


class StartupTaint:
    def __init__(
        self,
        find: "Callable[[], KubeClient | None]",
        node: str,
        clock: Clock,
        answers: Callable[[], bool],
        absence: Absence | None = None,
    ) -> None:
        self._find = find
        self._node = node
        self._clock = clock
        self._answers = answers
        self._absence = absence or NeverAbsent()
        self._taints: Sequence[NodeTaint] = ()
        self._is_seen = False
        self._due = asyncio.Event()
        self.tried = asyncio.Event()
        """The node was seen, and has the taint that it should have, or the server refused."""

    def saw(self, node: NodeObject) -> None:
        self._taints = node.spec.taints or ()
        self._is_seen = True
        self.look()

    def follow(self, _family: Family, _report: SyncReport) -> None:
        self.look()

    def look(self) -> None:
        if self._steps():
            self._due.set()
        elif self._is_seen:
            self.tried.set()

    def _steps(self) -> Steps:
        if not self._is_seen:
            return []
        if self._absence.is_so():
            return adding(self._taints)
        return lifting(self._taints) if self._answers() else []

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            await self._settle()

    async def _settle(self) -> None:
        """Until it is as it should be: what stands on the node is looked at anew before each try."""
        retry_s = FIRST_RETRY_S
        while self._steps():
            if rest_s := self._absence.rest_s():
                await self._clock.sleep(rest_s)
                continue
            if await self.change():
                return
            await self._clock.sleep(retry_s)
            retry_s = min(2 * retry_s, LONGEST_RETRY_S)

    async def change(self) -> bool:
        """One try. Whether nothing is left to do, as far as the server has said."""
        steps, is_added = self._steps(), self._absence.is_so()
        kube_client = self._find()
        if not steps or kube_client is None:
            return not steps
        try:
            await kube_client.patch(NODES, self._node, steps, content_type=JSON_PATCH)
        except KubeError as error:
            effect = "pods are scheduled here" if is_added else "pods without a toleration are not scheduled here"
            text = "startup_taint_missing" if is_added else "startup_taint_kept"
            log.warning(text, node=self._node, taint=STARTUP_TAINT, error=str(error), effect=effect)
            return False
        finally:
            self.tried.set()
        # Until the server tells of the next ones.
        others = tuple(one for one in self._taints if one.key != STARTUP_TAINT)
        self._taints = (*others, NodeTaint(key=STARTUP_TAINT, effect=EFFECT)) if is_added else others
        self._absence.changed()
        text = "startup_taint_added" if is_added else "startup_taint_removed"
        log.info(text, node=self._node, taint=STARTUP_TAINT, v=0)
        return True


class TaintWork:
    """When the taint is looked at in the life of a kepd: before the first rules, all the time, before the end. Without
    one there is nothing to do.

    The first sync waits until the server took or refused the taint, so that it is there before kepd says that it is
    ready; never for a server that is silent, since without it there are no Services to write either.
    """

    def __init__(
        self,
        taint: StartupTaint | None = None,
        missing: MissingRules | None = None,
        intake: ServiceInputs | None = None,
    ) -> None:
        self._taint = taint
        self._missing = missing
        self._intake = intake
        if taint is not None and missing is not None:
            missing.heard = taint.look

    async def begin(self) -> None:
        if self._missing is not None:
            await self._missing.begin()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._taint is not None:
                group.create_task(self._taint.run(), name="startup-taint")
            if self._missing is not None:
                group.create_task(self._missing.run(), name="services-missing-rules")
                group.create_task(self._release(), name="startup-taint-first")

    async def _release(self) -> None:
        assert self._taint is not None  # noqa: S101 - it comes with the other
        assert self._intake is not None  # noqa: S101
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT_S):
                await self._taint.tried.wait()
        self._intake.complete(TAINT)

    async def end(self) -> None:
        if self._taint is None or self._missing is None:
            return
        await self._missing.end()
        if self._missing.is_so():
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await self._taint.change()


def lifting(taints: Sequence[NodeTaint]) -> list[Mapping[str, object]]:
    """Operations for these taints; none if ours is not among them. A list of taints has no keys that a patch could
    name, so each removal first tests what stands at its place: the server refuses the whole change if it moved
    meanwhile. From the last on, so that places stay right."""
    steps: list[Mapping[str, object]] = []
    for place, taint in reversed(list(enumerate(taints))):
        if taint.key == STARTUP_TAINT:
            steps += [*_tests(place, taint), {"op": "remove", "path": f"/spec/taints/{place}"}]
    return steps


def adding(taints: Sequence[NodeTaint]) -> list[Mapping[str, object]]:
    """Operations that append ours to these; none if it is among them. Refused as a whole where they are others."""
    if any(one.key == STARTUP_TAINT and one.effect == EFFECT for one in taints):
        return []
    ours = {"key": STARTUP_TAINT, "effect": EFFECT}
    if not taints:
        # A path that leads nowhere has the value null.
        return [
            {"op": "test", "path": "/spec/taints", "value": None},
            {"op": "add", "path": "/spec/taints", "value": [ours]},
        ]
    tests = [step for place, taint in enumerate(taints) for step in _tests(place, taint)]
    return [*tests, {"op": "add", "path": "/spec/taints/-", "value": ours}]


def _tests(place: int, taint: NodeTaint) -> list[Mapping[str, object]]:
    path = f"/spec/taints/{place}"
    return [
        {"op": "test", "path": f"{path}/key", "value": taint.key},
        {"op": "test", "path": f"{path}/effect", "value": taint.effect},
    ]


async def lift_taint(kube_client: "KubeClient", node: str, *, is_dry: bool) -> bool:
    """Once, for `kepd cleanup`, after which no kepd comes to do it. Whether it was on the node. Raises
    KubeError, for an answer that does not come too."""
    async with aclosing(kube_client.follow(NODES.narrowed(field_selector=f"metadata.name={node}"))) as news:
        async for one in news:
            if isinstance(one, Disconnected):
                raise one.error
            if isinstance(one, Replaced):
                steps = [step for item in one.items for step in lifting(item.spec.taints or ())]
                if steps and not is_dry:
                    await kube_client.patch(NODES, node, steps, content_type=JSON_PATCH)
                return bool(steps)
    return False

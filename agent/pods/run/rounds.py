# SPDX-License-Identifier: Apache-2.0
"""Looks at everything that the runtime has, at the start, after every gap in its news, and now and then.

News of one container reach the keeper of its pod alone. Never: decides what follows from what is there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from agent.model.clock import rung
from agent.model.runtime.error import DeadlineExceeded, RuntimeCallFailed, Unavailable
from agent.model.runtime.event import EventKind, RuntimeEvent, RuntimeEvents
from agent.pods.plan.restart import RetryPause
from agent.pods.run.disk.lost_networks import LostAddresses
from agent.pods.run.owners import Faults, Owners, contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.runtime.observed import SeenPod, seen_pods

LOOKS_AGAIN_S = (0.2, 0.8, 2.0)
"""After news of a sandbox: the runtime tells of an end before its lists know of it."""


class Rounds:
    """`found` is called for a pod that has no keeper, `taken_over` after a look (whether it is the first), `missed`
    where there was none."""

    def __init__(
        self,
        context: PodDependencies,
        owners: Owners,
        found: Callable[[str, SeenPod], Awaitable[None]],
        taken_over: Callable[[bool], None],
        missed: Callable[[], None],
    ) -> None:
        self._context = context
        self._owners = owners
        self._found, self._taken_over, self._missed = found, taken_over, missed
        # Somebody wants a look now.
        self.due = asyncio.Event()
        self.listed = asyncio.Event()
        # After the first look, also one in vain.
        self.looked = asyncio.Event()
        self.faults = Faults()
        self._lists, self._looks = RetryPause(), RetryPause()
        self._again_s: list[float] = []
        self._lost = LostAddresses(context.network_results, context.clock)

    def clear(self) -> None:
        self.listed.clear()
        self.faults = Faults()

    async def run(self, may_begin: Callable[[], bool]) -> None:
        while True:
            pause_s = self._context.settings().pods.relist
            self.due.clear()
            if may_begin():
                pause_s = min(await self._round(), pause_s)
            if self._again_s:
                pause_s = min(self._again_s.pop(0), pause_s)
            await rung(self.due, self._context.clock, self._context.clock.now_s() + pause_s)

    def look_after_faults(self) -> None:
        if self.faults.names:
            self.due.set()

    @property
    def troubles(self) -> list[str]:
        troubles = [self._lists.problem] if self._lists.problem else []
        return troubles + [f"{key}: kepd failed inside, see its log" for key in self.faults.names.values()]

    async def follow(self, events: RuntimeEvents) -> None:
        async for event in events.listen():
            await self._heard(event)

    async def _heard(self, event: RuntimeEvent) -> None:
        if event.kind is EventKind.LOST:
            self.due.set()
            return
        if event.kind in (EventKind.CREATED, EventKind.STARTED, EventKind.OOM):
            return
        keeper = self._owners.of_instance(event.container_id)
        if keeper is not None:
            with contained(keeper.run.pod.key, "look at its container"):
                keeper.observer.look_at(event.container_id)
        elif event.kind is EventKind.STOPPED:
            owner = self._owners.of_sandbox(event.container_id)
            # An end stops its sandboxes itself, and looks whether something is left.
            if owner is not None and owner.run.memory.stop is None:
                self._again_s = list(LOOKS_AGAIN_S)
                self.due.set()

    async def _round(self) -> float:
        """One look at everything; how long to rest at most."""
        context = self._context
        try:
            containers = await context.containers.list_containers()
            sandboxes = await context.sandboxes.list_sandboxes()
            seen = seen_pods(sandboxes, containers, context.settings().instance, context.wall_minus_now_s)
            self.faults = await self.merged(seen)
        except RuntimeCallFailed as error:
            what = "does not answer" if isinstance(error, Unavailable) else f"fails in {error.method}"
            self._lists.fail(context.clock.now_s(), f"the container runtime {what}: {error.details}")
            self._missed()
            self.looked.set()
            return self._lists.pause_s
        self._lists.reset()
        is_first = not self.listed.is_set()
        with contained("all", "release addresses that a power cut left taken"):
            await self._lost.look(sandboxes, is_first=is_first)
        self.listed.set()
        self._taken_over(is_first)
        self.looked.set()
        if self.faults.names:
            self._looks.fail(context.clock.now_s())
            return self._looks.pause_s
        self._looks.reset()
        return context.settings().pods.relist

    async def merged(self, seen: Mapping[str, SeenPod]) -> Faults:
        """Take over what was listed; answers with the pods for which that failed. Raises what concerns them all."""
        faults = Faults()
        gone = {
            uid: SeenPod()
            for uid, keeper in self._owners.keepers.items()
            if uid not in seen and (keeper.run.seen.sandboxes or keeper.run.seen.instances)
        }
        for uid, pod in {**seen, **gone}.items():
            keeper = self._owners.keepers.get(uid)
            if keeper is None and not pod.sandboxes:  # It ended while others were looked at.
                continue
            key = keeper.run.pod.key if keeper is not None else f"{pod.sandboxes[0].namespace}/{pod.sandboxes[0].name}"
            with faults.contained(uid, key, "look at it", but=(Unavailable, DeadlineExceeded)):
                await (self._found(uid, pod) if keeper is None else keeper.observer.merge(pod))
        return faults

# SPDX-License-Identifier: Apache-2.0
"""Looks at what the runtime has of one pod, and takes it over into what is known. A part of the keeper of its pod."""

import asyncio
from contextlib import suppress
from typing import Any

import structlog
from msgspec.structs import replace

from agent.model.runtime.error import NotFound, RuntimeCallFailed
from agent.pods.plan.work import KillingContainer, Refreshing, StoppingContainer
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.runtime.observed import SeenPod, SeenSandbox, Stage, sandboxes_newest_first
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

FIRST_SECOND_LOOK_S, LAST_SECOND_LOOK_S = 0.005, 1.0
# How long the call that ends a container may take to return once news of the exit has come.
LONGEST_STOP_RETURN_S = 5.0


class PodObserver:
    def __init__(self, run: LivePod) -> None:
        self._run = run
        # Containers that changed again while the runtime was being asked about them.
        self._stale: set[str] = set()

    def look_at(self, container_id: str) -> None:
        """Ask about one container. However many changes come during a lookup, they cause exactly one more."""
        work = Refreshing(container_id)
        if not self._may_change(container_id):
            return
        if not self._run.is_kept:
            # Its keeper has failed and pauses: the look at everything belongs to no pod.
            self._run.doubt()
        elif work in self._run.tasks:
            self._stale.add(container_id)
        else:
            self._run.spawn(work, self._refreshed(container_id))

    async def _refreshed(self, container_id: str) -> None:
        """News of an exit may come before the runtime's own books have it."""
        run, clock = self._run, self._run.context.clock
        pause_s = FIRST_SECOND_LOOK_S
        try:
            if await self._is_learned_by_stop(container_id):
                return
            if self._stops_of(container_id):
                pause_s = LAST_SECOND_LOOK_S / 2
            await run.refresh(container_id)
            while self._may_change(container_id) and (
                container_id in self._stale or (run.is_running(container_id) and pause_s < LAST_SECOND_LOOK_S)
            ):
                self._stale.discard(container_id)
                await clock.sleep(pause_s)
                pause_s *= 2
                await run.refresh(container_id)
            self._stale.discard(container_id)
        except RuntimeCallFailed as error:
            log.warning("container_not_looked_at", pod=run.pod.key, error=str(error))
            run.doubt()

    def _may_change(self, container_id: str) -> bool:
        """An end is never taken back."""
        known = self._run.seen.instance(container_id)
        return known is None or known.stage is not Stage.ENDED

    async def _is_learned_by_stop(self, container_id: str) -> bool:
        """Whether the call that ends it has returned with the end seen. It does as soon as the runtime's books have it,
        and each look before would be one for nothing."""
        run = self._run
        if under_way := self._stops_of(container_id):
            limit = asyncio.ensure_future(run.context.clock.sleep(LONGEST_STOP_RETURN_S))
            await asyncio.wait([limit, *under_way], return_when=asyncio.FIRST_COMPLETED)
            limit.cancel()
            if not run.is_running(container_id):
                self._stale.discard(container_id)
                return True
        return False

    def _stops_of(self, container_id: str) -> list[asyncio.Task[Any]]:
        tasks, known = self._run.tasks, self._run.seen.instance(container_id)
        works = (StoppingContainer(known.name), KillingContainer(known.name)) if known is not None else ()
        return [tasks[work] for work in works if work in tasks]

    async def merge(self, listed: SeenPod) -> None:
        """Take over a list of everything. What only one side knows is asked for by itself."""
        run = self._run
        known = {one.id: one for one in run.seen.sandboxes}
        earlier = set(known)
        sandboxes = []
        for one in listed.sandboxes:
            with suppress(NotFound):  # The list came late.
                sandboxes.append(await self._with_network(one, known.pop(one.id, None)))
        for sandbox_id, before in known.items():
            with suppress(NotFound):
                status = await run.context.sandboxes.sandbox_status(sandbox_id)
                sandboxes.append(replace(before, is_ready=status.state == pb.SANDBOX_READY))
        # Its own work may have made one while the runtime was asked.
        sandboxes += [one for one in run.seen.sandboxes if one.id not in earlier | {one.id for one in sandboxes}]
        run.saw(SeenPod(sandboxes_newest_first(sandboxes), run.seen.instances))
        instances = {one.id: one for one in run.seen.instances}
        for found in listed.instances:
            before_instance = instances.pop(found.id, None)
            if before_instance is None or (before_instance.stage is not found.stage):
                if before_instance is None:
                    run.saw(SeenPod(run.seen.sandboxes, (*run.seen.instances, found)))
                await run.refresh(found.id)
        for instance_id in instances:
            await run.refresh(instance_id)
        run.ring()

    async def _with_network(self, listed: SeenSandbox, before: SeenSandbox | None) -> SeenSandbox:
        if before is not None and (before.ip is not None or not listed.is_ready):
            return replace(listed, ip=before.ip, more_ips=before.more_ips, is_host_network=before.is_host_network)
        if not listed.is_ready:
            return listed
        status = await self._run.context.sandboxes.sandbox_status(listed.id)
        is_host_network = status.linux.namespaces.options.network == pb.NODE
        more_ips = tuple(one.ip for one in status.network.additional_ips)
        return replace(listed, ip=status.network.ip, more_ips=more_ips, is_host_network=is_host_network)

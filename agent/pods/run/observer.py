# SPDX-License-Identifier: Apache-2.0
"""Looks at what the runtime has of one pod, and takes it over into what is known. A part of the keeper of its pod."""

from contextlib import suppress

import structlog
from msgspec.structs import replace

from agent.model.runtime_error import NotFound, RuntimeCallFailed
from agent.pods.plan.work import Refreshing
from agent.pods.run.run_state import PodRun
from agent.pods.runtime.seen import SeenPod, SeenSandbox, sandboxes_newest_first
from agent.wire.cri import runtime_v1_pb2 as pb

log = structlog.get_logger(plane="pods")

FIRST_SECOND_LOOK_S, LAST_SECOND_LOOK_S = 0.005, 1.0


class Observer:
    def __init__(self, run: PodRun) -> None:
        self._run = run
        # Containers that changed again while the runtime was being asked about them.
        self._stale: set[str] = set()

    def look_at(self, container_id: str) -> None:
        """Ask about one container. However many changes come during a lookup, they cause exactly one more."""
        work = Refreshing(container_id)
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
            await run.refresh(container_id)
            while container_id in self._stale or (run.is_running(container_id) and pause_s < LAST_SECOND_LOOK_S):
                self._stale.discard(container_id)
                await clock.sleep(pause_s)
                pause_s *= 2
                await run.refresh(container_id)
        except RuntimeCallFailed as error:
            log.warning("container_not_looked_at", pod=run.pod.key, error=str(error))
            run.doubt()

    async def merge(self, listed: SeenPod) -> None:
        """Take over a list of everything. What only one side knows is asked for by itself."""
        run = self._run
        known = {one.id: one for one in run.seen.sandboxes}
        earlier = set(known)
        sandboxes = [await self._with_network(one, known.pop(one.id, None)) for one in listed.sandboxes]
        for sandbox_id, before in known.items():
            with suppress(NotFound):
                status = await run.context.sandboxes.sandbox_status(sandbox_id)
                sandboxes.append(replace(before, is_ready=status.state == pb.SANDBOX_READY))
        # Its own work may have made one while the runtime was asked.
        sandboxes += [one for one in run.seen.sandboxes if one.id not in earlier | {one.id for one in sandboxes}]
        run.seen = SeenPod(sandboxes_newest_first(sandboxes), run.seen.instances)
        instances = {one.id: one for one in run.seen.instances}
        for found in listed.instances:
            before_instance = instances.pop(found.id, None)
            if before_instance is None or (before_instance.stage is not found.stage):
                if before_instance is None:
                    run.seen = SeenPod(run.seen.sandboxes, (*run.seen.instances, found))
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

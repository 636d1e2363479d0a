# SPDX-License-Identifier: Apache-2.0
"""Carries out what plan/remove_dead.py finds: dead containers and sandboxes of one pod go."""

import asyncio

import structlog

from agent.model.nodes.file_system import Room
from agent.pods.plan.remove_dead import dead_ephemerals, dead_instances, dead_sandboxes
from agent.pods.plan.work import RemovingDead
from agent.pods.run.run_state import FAILURES, LivePod
from agent.pods.runtime.observed import Instance, SeenPod, Stage

log = structlog.get_logger(plane="pods")


class DeadRemover:
    def __init__(self, run: LivePod) -> None:
        self._run = run
        self._due_s = 0.0

    def advance(self) -> None:
        run = self._run
        is_worth_it = self._dead() or dead_sandboxes(run.seen)
        if is_worth_it and RemovingDead() not in run.tasks and run.context.clock.now_s() >= self._due_s:
            run.spawn(RemovingDead(), self._try_removing())

    def _dead(self) -> tuple[Instance, ...]:
        run = self._run
        # A full disk that they lie on needs the room more.
        most = 0 if Room.CONTAINERS in run.context.pressure.rooms else run.context.settings().pods.gc.keep_dead
        kept = dead_instances(run.pod, run.seen, most)
        return (*kept, *dead_ephemerals(run.seen, run.tasks))

    async def _try_removing(self) -> None:
        try:
            await self._remove_dead()
        except FAILURES as error:
            self._due_s = self._run.context.clock.now_s() + self._run.context.settings().pods.gc.period
            log.warning("dead_containers_not_removed", pod=self._run.pod.key, error=str(error))

    async def _remove_dead(self) -> None:
        run, context = self._run, self._run.context
        for instance in self._dead():
            if instance.stage is Stage.CREATED:
                # The runtime may be carrying out a start that was asked for before kepd died; what runs is kept.
                await run.refresh(instance.id)
                if instance.id not in {one.id for one in self._dead()}:
                    continue
            await context.containers.remove_container(instance.id)
            if instance.stage is Stage.ENDED:
                await asyncio.to_thread(
                    context.files.logs.remove_attempt, run.log_directory, instance.name, instance.attempt, instance.id
                )
            run.drop(instance.id)
        for sandbox in dead_sandboxes(run.seen):
            await context.stop_sandbox(sandbox.id)
            await context.sandboxes.remove_sandbox(sandbox.id)
            left = tuple(one for one in run.seen.sandboxes if one.id != sandbox.id)
            run.seen = SeenPod(left, run.seen.instances)

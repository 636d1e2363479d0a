# SPDX-License-Identifier: Apache-2.0
"""Takes away what is dead of one pod: containers and sandboxes by plan/remove_dead.py, and at the end all."""

import asyncio

import structlog
from msgspec.structs import replace

from agent.model.devices.problem import DevicesNotReleased
from agent.model.nodes.file_system import Room
from agent.pods.plan.remembered import record_name
from agent.pods.plan.remove_dead import dead_ephemerals, dead_instances, dead_sandboxes
from agent.pods.plan.transitions import without_pod_problem
from agent.pods.plan.work import RemovingDead
from agent.pods.run.one_pod.container_setup import ContainerSetup
from agent.pods.run.one_pod.run_state import FAILURES, LivePod, reason_of_error
from agent.pods.runtime.observed import Instance, SeenPod, Stage

log = structlog.get_logger(plane="pods")

RETRY_S = 1.0
NOT_RELEASED, LONGEST_RELEASE_PAUSE_S = "unprepare", 60.0


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
            run.saw(SeenPod(left, run.seen.instances))


class Remains:
    """What a pod that is over leaves: its devices, volumes, groups, files and record."""

    def __init__(self, run: LivePod, setup: ContainerSetup) -> None:
        self._run = run
        self._setup = setup

    async def release(self) -> None:
        """A pod that stays as a record holds no volumes and no cgroup; what is left goes with the record."""
        run, context = self._run, self._run.context
        await self._give_back()
        try:
            await asyncio.to_thread(context.files.release, run.pod.uid)
            await self._setup.release_groups()
        except OSError as error:
            log.warning("pod_volumes_not_released", pod=run.pod.key, error=str(error))

    async def _give_back(self) -> None:
        """Devices, once nothing of the pod runs; a driver that refuses is asked again, and delays no other pod."""
        run, pause_s = self._run, RETRY_S
        while True:
            try:
                await run.context.devices.release(run.pod.uid)
            except DevicesNotReleased as error:
                if run.memory.message != str(error):
                    run.tell("ClaimError", str(error), is_warning=True)
                run.memory = replace(run.memory, reason=NOT_RELEASED, message=str(error))
                run.show()
                await run.context.clock.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_RELEASE_PAUSE_S)
            else:
                break
        if run.memory.reason == NOT_RELEASED:
            run.memory = without_pod_problem(run.memory)

    def _remove_files(self) -> None:
        """In one go: each step in a thread of its own would cost as much as the step."""
        run, context = self._run, self._run.context
        for instance in run.seen.instances:
            context.files.logs.remove_links(instance.id)
        context.files.logs.remove(run.pod.namespace, run.pod.name, run.pod.uid)
        context.files.remove(run.pod.uid)

    async def tear_down(self) -> None:
        """Everything of a pod that is over; repeated until it works."""
        run, context = self._run, self._run.context
        pod = run.pod
        await self._give_back()
        while True:
            try:
                for sandbox in run.seen.sandboxes:
                    await context.sandboxes.remove_sandbox(sandbox.id)
                await asyncio.to_thread(self._remove_files)
                await self._setup.release_groups()
                context.requests.forget(pod.uid)
                await self._setup.level()
                run.is_forgotten = True
                await context.records.remove(record_name(pod.uid))
                break
            except FAILURES as error:
                run.memory = replace(run.memory, reason="FailedKillPod", message=reason_of_error(error))
                log.warning("pod_remains_not_removed", pod=pod.key, error=str(error))
                run.show()
                await context.clock.sleep(RETRY_S)
        run.saw(SeenPod())
        run.is_gone = True
        run.context.metrics.probes.forget(pod.uid)
        log.info("pod_gone", pod=pod.key, uid=pod.uid)

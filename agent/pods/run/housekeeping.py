# SPDX-License-Identifier: Apache-2.0
"""What has to be looked after now and then: logs that grow and disks that fill."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import structlog

from agent.model.nodes.file_system import Room
from agent.model.runtime.error import RuntimeCallFailed
from agent.pods.plan.remembered import PodOutcome
from agent.pods.plan.scarcity.storage_use import has_storage_limits, storage_limit, why_over_limit
from agent.pods.plan.scarcity.victims import HARD_GRACE_S
from agent.pods.ports import NodeFigures
from agent.pods.run.disk.logs import UNCOMPRESSED, rotated_name
from agent.pods.run.one_pod.keeper import PodWorker
from agent.pods.run.owners import contained
from agent.pods.run.pod_context import PodDependencies
from agent.pods.runtime.observed import Instance, Stage

log = structlog.get_logger(plane="pods")

VOLUME_PERIOD_S = 60.0
CHECKPOINTS_S = 600.0
# On a full disk a log is rotated at a tenth of its size, and only the one just rotated is kept.
EARLY_PART = 10


class Housekeeping:
    def __init__(self, context: PodDependencies, keepers: Callable[[], Sequence[PodWorker]], node: NodeFigures) -> None:
        self._context = context
        self._node = node
        self._keepers = keepers
        self._counted: set[str] = set()

    async def run(self) -> None:
        self._counted.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_volumes(group), name="pods-volumes")
            group.create_task(self._follow_checkpoints(), name="pods-checkpoints")
            while True:
                await self._context.clock.sleep(self._context.settings().pods.logs.interval)
                for keeper in self._keepers():
                    with contained(keeper.run.pod.key, "rotate its logs"):
                        await self.rotate_logs(keeper)

    async def _follow_volumes(self, group: asyncio.TaskGroup) -> None:
        """Each pod by itself: a volume with millions of files holds up no log, and no other pod's check."""
        while True:
            await self._context.clock.sleep(VOLUME_PERIOD_S)
            keepers = self._keepers()
            self._context.disks.keep({keeper.run.pod.uid for keeper in keepers})
            for keeper in keepers:
                if keeper.run.pod.uid not in self._counted:
                    self._counted.add(keeper.run.pod.uid)
                    group.create_task(self._count(keeper), name="pods-volumes-of-one")

    async def _follow_checkpoints(self) -> None:
        """Old ones go though no new one is made."""
        folder, clock = self._context.files.checkpoints, self._context.clock
        while True:
            with contained("all", "look after checkpoints"):
                gone = await asyncio.to_thread(folder.tidy, self._context.settings().pods.checkpoints, clock.wall_s())
                if gone:
                    log.info("checkpoints_removed", names=gone)
                await asyncio.to_thread(folder.listed)
            await clock.sleep(CHECKPOINTS_S)

    async def _count(self, keeper: PodWorker) -> None:
        with contained(keeper.run.pod.key, "check its volumes"):
            await self.check_volumes(keeper)
        self._counted.discard(keeper.run.pod.uid)

    async def free_logs(self) -> None:
        """Where logs lie there is no room: those of pods that ended go, and the others are rotated early."""
        for keeper in self._keepers():
            with contained(keeper.run.pod.key, "make room on the disk of its logs"):
                if keeper.run.memory.outcome is None:
                    await self.rotate_logs(keeper, is_early=True)
                elif freed := await asyncio.to_thread(self._context.files.logs.clear, keeper.run.log_directory):
                    log.warning("logs_removed", pod=keeper.run.pod.key, size_bytes=freed)

    async def rotate_logs(self, keeper: PodWorker, *, is_early: bool = False) -> None:
        logs = self._context.settings().pods.logs
        most_bytes, most_files = int(logs.max_size), logs.max_files
        if is_early or Room.LOGS in self._context.pressure.rooms:
            most_bytes, most_files = most_bytes // EARLY_PART, min(most_files, UNCOMPRESSED)
        for one in keeper.run.seen.instances:
            if one.stage is not Stage.RUNNING:
                continue
            path = keeper.run.log_directory / one.name / f"{one.attempt}.log"
            if self._context.files.logs.is_full(path, most_bytes):
                try:
                    await self._rotate(keeper, one, most_files)
                except (OSError, RuntimeCallFailed) as error:
                    log.warning("log_not_rotated", path=str(path), error=str(error))

    async def _rotate(self, keeper: PodWorker, one: Instance, most_files: int) -> None:
        path = keeper.run.log_directory / one.name / f"{one.attempt}.log"
        stamp = datetime.fromtimestamp(self._context.clock.wall_s(), UTC).strftime("%Y%m%d-%H%M%S")
        moved = await asyncio.to_thread(self._context.files.logs.rotate, path, stamp, most_files)
        try:
            await self._context.maintenance.reopen_log(one.id)
        except RuntimeCallFailed:
            # The runtime still writes to the file that was moved: it gets its name back.
            moved.rename(path)
            raise
        log.info("log_rotated", path=str(rotated_name(path, stamp)))

    async def check_volumes(self, keeper: PodWorker) -> None:
        run, context = keeper.run, self._context
        if not has_storage_limits(run.pod) or run.memory.stop is not None:
            return
        layers = await self._layers_of(keeper) if any(map(storage_limit, run.pod.containers)) else {}
        disk = await context.disks.of(run.pod, run.log_directory, newest_s=0.0)
        if text := why_over_limit(run.pod, layers, disk):
            run.tell("Evicted", text, is_warning=True)
            keeper.end("evicted", HARD_GRACE_S, PodOutcome(phase="Failed", reason="Evicted", message=text))

    async def _layers_of(self, keeper: PodWorker) -> dict[str, int]:
        """By container; what the runtime does not tell counts as nothing."""
        try:
            known = await self._node.layers()
        except RuntimeCallFailed as error:
            log.warning("layers_unknown", pod=keeper.run.pod.key, error=str(error))
            return {}
        found: dict[str, int] = {}
        for one in keeper.run.seen.instances:
            found[one.name] = found.get(one.name, 0) + known.get(one.id, 0)
        return found

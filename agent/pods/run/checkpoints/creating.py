# SPDX-License-Identifier: Apache-2.0
"""Makes a checkpoint of a container by the runtime, one at a time.

The runtime writes the archive and holds the container still meanwhile; what its probes say then counts for nothing.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from agent.model.pods.checkpoint import CheckpointReport, MadeCheckpoint
from agent.model.refused import Refused
from agent.model.runtime.error import DeadlineExceeded, NotImplementedByRuntime, RuntimeCallFailed
from agent.pods.plan.scarcity.checkpoints import MEMORY_TIMES, archive_name, why_no_room
from agent.pods.ports import NodeFigures
from agent.pods.run.checkpoints.folder import FILE_MODE
from agent.pods.run.one_pod.run_state import LivePod
from agent.pods.run.pod_context import PodDependencies

log = structlog.get_logger(plane="pods")

NEEDS = "that needs CRI-O, or containerd 2.0 or later, with criu; nothing was done"


class CheckpointMaker:
    def __init__(self, context: PodDependencies, node: NodeFigures) -> None:
        self._context = context
        self._node = node
        self._folder = context.files.checkpoints
        self._making: asyncio.Task[MadeCheckpoint] | None = None

    async def make(self, run: LivePod, container: str, instance_id: str) -> MadeCheckpoint:
        """It goes on to its end when the caller leaves, because half an archive has no use."""
        if self._making is not None and not self._making.done():
            name = next(iter(self._folder.writing), "another")
            raise Refused("no_checkpoint", f"{name} is being made; one at a time, so try again when it is there")
        self._making = asyncio.ensure_future(self._make(run, container, instance_id))
        self._making.add_done_callback(_ended)
        return await asyncio.shield(self._making)

    async def listed(self) -> Sequence[CheckpointReport]:
        return await asyncio.to_thread(self._folder.listed)

    async def delete(self, name: str) -> None:
        if not await asyncio.to_thread(self._folder.remove, name):
            raise Refused("no_archive", f'no checkpoint "{name}" is finished here; kepctl get checkpoints lists them')
        await self.listed()

    async def _make(self, run: LivePod, container: str, instance_id: str) -> MadeCheckpoint:
        clock = self._context.clock
        path = self._folder.directory / archive_name(run.pod.name, run.pod.namespace, container, clock.wall_s())
        self._folder.writing.add(path.name)
        began_s = clock.now_s()
        try:
            await self._need_room(run.pod.uid, container)
            await asyncio.to_thread(self._folder.make)
            with self._context.pauses.of(instance_id):
                await self._write(instance_id, path)
            took_s = clock.now_s() - began_s
        finally:
            self._folder.writing.discard(path.name)
        self._context.metrics.checkpoint_made(took_s)
        await asyncio.to_thread(self._folder.tidy, self._context.settings().pods.checkpoints, clock.wall_s())
        await self.listed()
        return MadeCheckpoint(str(path), took_s)

    async def _need_room(self, uid: str, container: str) -> None:
        """What nobody can tell keeps no one from trying."""
        try:
            used = (await self._node.use()).get(uid)
            look = await self._node.look()
        except (OSError, RuntimeCallFailed) as error:
            log.warning("node_figures_unknown", error=str(error), v=3)
            return
        one = next((each for each in used.containers if each.name == container), None) if used is not None else None
        needed = round(MEMORY_TIMES * (one.memory or 0)) + (one.layer_bytes or 0) if one is not None else 0
        if why := why_no_room(needed, look):
            raise Refused("no_room", f"no room for a checkpoint: {why}; make room, or see kepctl get checkpoints")

    async def _write(self, instance_id: str, path: Path) -> None:
        try:
            await self._context.maintenance.checkpoint_container(instance_id, str(path))
            await asyncio.to_thread(path.chmod, FILE_MODE)
        except NotImplementedByRuntime as error:
            raise Refused("no_checkpoint", f"{await self._runtime()} cannot make checkpoints; {NEEDS}") from error
        except DeadlineExceeded as error:
            text = f"the runtime has not answered in time and may still write {path}; the container may be paused"
            raise Refused("unavailable", f"{text} meanwhile; `kepctl get containers` shows its state") from error
        except (RuntimeCallFailed, OSError) as error:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            if "criu" in str(error).lower():
                text = f"{await self._runtime()} cannot make checkpoints: {error}; install criu 3.16 or later"
                raise Refused("no_checkpoint", text) from error
            raise Refused("unavailable", f"no checkpoint: {error}") from error

    async def _runtime(self) -> str:
        try:
            version = await self._context.maintenance.version()
        except RuntimeCallFailed:
            return "this container runtime"
        return f"{version.runtime_name} {version.runtime_version}"


def _ended(making: "asyncio.Task[MadeCheckpoint]") -> None:
    if not making.cancelled():
        # asyncio complains about an exception that is never read, which happens after the caller has left.
        log.info("checkpoint_ended", error=str(making.exception() or ""))

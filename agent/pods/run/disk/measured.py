# SPDX-License-Identifier: Apache-2.0
"""Sizes of logs and volumes: one walk and one value for limits, evictions and pages of metrics.

Few walks run at a time, of all pods. Who asks while one runs gets its value, and so does who asks soon after.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import structlog

from agent.model.clock import Clock
from agent.model.pods.pod import PodSpec
from agent.model.pods.space import PodSpace, VolumeSpace
from agent.pods.plan.scarcity.storage_use import DiskUse, TreeUse, size_limit
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.trees import DiskPace, idle_reads, tree_use
from agent.pods.runtime.volume_plan import mount_source

log = structlog.get_logger(plane="pods")

WALKS_AT_ONCE = 2
SHARED_FOR_S = 10.0
PAGES_WAIT_S = 30.0


def disk_use(files: PodFiles, pod: PodSpec, log_directory: Path, pace: DiskPace) -> DiskUse:
    """Volumes in memory are no disk."""
    home = files.of(pod.uid)
    own = [one.name for one in pod.spec.volumes if one.empty_dir is not None and not one.empty_dir.medium]
    with idle_reads():
        return DiskUse(
            logs={one.name: tree_use(log_directory / one.name, pace) for one in pod.containers},
            volumes={name: tree_use(home / mount_source(pod, name), pace) for name in own},
        )


def volume_spaces(files: PodFiles, pod: PodSpec, use: DiskUse) -> tuple[VolumeSpace, ...]:
    """Of emptyDirs: those on the disk as they were walked, those in memory as their mount says."""
    home, found = files.of(pod.uid), []
    for one in pod.spec.volumes:
        if one.empty_dir is None:
            continue
        try:
            whole = os.statvfs(home / mount_source(pod, one.name))
        except OSError:
            continue
        used = use.volumes.get(one.name)
        if one.empty_dir.medium:
            used = TreeUse((whole.f_blocks - whole.f_bfree) * whole.f_frsize, whole.f_files - whole.f_ffree)
        found.append(
            VolumeSpace(
                name=one.name,
                used_bytes=used.bytes if used is not None else 0,
                used_inodes=used.inodes if used is not None else 0,
                capacity_bytes=whole.f_blocks * whole.f_frsize,
                available_bytes=whole.f_bavail * whole.f_frsize,
                limit_bytes=size_limit(one),
                inodes=whole.f_files,
                inodes_free=whole.f_favail,
                is_memory=bool(one.empty_dir.medium),
            )
        )
    return tuple(found)


class MeasuredDisks:
    """A walk goes on whoever leaves, and ends with the loop."""

    def __init__(self, files: PodFiles, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._turns = asyncio.Semaphore(WALKS_AT_ONCE)
        self._known: dict[str, tuple[float, DiskUse]] = {}
        self._walks: dict[str, asyncio.Task[DiskUse]] = {}

    async def of(self, pod: PodSpec, log_directory: Path, newest_s: float = SHARED_FOR_S) -> DiskUse:
        """At most so old."""
        known = self._known.get(pod.uid)
        if known is not None and self._clock.now_s() - known[0] < newest_s:
            return known[1]
        walk = self._walks.get(pod.uid)
        if walk is None:
            walk = asyncio.get_running_loop().create_task(self._walk(pod, log_directory), name="pods-disk-use")
            self._walks[pod.uid] = walk
            walk.add_done_callback(lambda done: self._ended(pod.uid, done))
        return await asyncio.shield(walk)

    def _ended(self, uid: str, walk: asyncio.Task[DiskUse]) -> None:
        """Whoever waits has its failure; with none that waits it is no news either."""
        self._walks.pop(uid, None)
        if not walk.cancelled():
            walk.exception()

    async def _walk(self, pod: PodSpec, log_directory: Path) -> DiskUse:
        pace = DiskPace()
        async with self._turns:
            try:
                found = await asyncio.to_thread(disk_use, self._files, pod, log_directory, pace)
            finally:
                pace.stop()
        self._known[pod.uid] = self._clock.now_s(), found
        return found

    def keep(self, uids: set[str]) -> None:
        """What was measured of other pods is forgotten."""
        self._known = {uid: one for uid, one in self._known.items() if uid in uids}

    async def spaces(self, pods: Sequence[tuple[PodSpec, Path]]) -> list[PodSpace]:
        """Of pods, and where their logs lie; the last figures of what is not measured in time. What fails for one pod
        leaves the others theirs."""
        found = await asyncio.gather(*(self._space(pod, logs) for pod, logs in pods), return_exceptions=True)
        return [_or_none(pod, one) for (pod, _), one in zip(pods, found, strict=True)]

    async def _space(self, pod: PodSpec, log_directory: Path) -> PodSpace:
        is_whole = True
        try:
            async with asyncio.timeout(PAGES_WAIT_S):
                use = await self.of(pod, log_directory)
        except TimeoutError:
            is_whole, use = False, self._known.get(pod.uid, (0.0, DiskUse()))[1]
        volumes = await asyncio.to_thread(volume_spaces, self._files, pod, use)
        logs = {name: one.bytes for name, one in use.logs.items()}
        return PodSpace(
            namespace=pod.namespace, name=pod.name, uid=pod.uid, logs=logs, volumes=volumes, is_whole=is_whole
        )


def _or_none(pod: PodSpec, found: PodSpace | BaseException) -> PodSpace:
    if isinstance(found, PodSpace):
        return found
    log.warning("disk_use_unknown", pod=pod.key, error=repr(found))
    return PodSpace(namespace=pod.namespace, name=pod.name, uid=pod.uid, is_whole=False)

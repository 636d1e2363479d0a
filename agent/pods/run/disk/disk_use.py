# SPDX-License-Identifier: Apache-2.0
"""How much a pod has on the node's disk: its logs, and volumes that are its own. Blocking: it walks."""

import os
from pathlib import Path

from agent.model.pods.pod import PodSpec
from agent.model.pods.space import VolumeSpace
from agent.pods.plan.scarcity.storage_use import DiskUse, TreeUse, size_limit
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.pace import DiskPace, idle_reads
from agent.pods.run.disk.trees import tree_use
from agent.pods.runtime.volume_plan import mount_source


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

# SPDX-License-Identifier: Apache-2.0
"""How much a pod has on the node's disk: its logs, and volumes that are its own. Blocking: it walks."""

from pathlib import Path

from agent.model.pod import PodSpec
from agent.pods.plan.scarcity.storage_use import DiskUse
from agent.pods.run.disk.files import PodFiles
from agent.pods.run.disk.trees import tree_use
from agent.pods.runtime.volume_plan import mount_source


def disk_use(files: PodFiles, pod: PodSpec, log_directory: Path) -> DiskUse:
    """Volumes in memory are no disk."""
    home = files.of(pod.uid)
    own = [one.name for one in pod.spec.volumes if one.empty_dir is not None and not one.empty_dir.medium]
    return DiskUse(
        logs={one.name: tree_use(log_directory / one.name) for one in pod.containers},
        volumes={name: tree_use(home / mount_source(pod, name)) for name in own},
    )

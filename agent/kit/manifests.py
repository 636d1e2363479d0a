# SPDX-License-Identifier: Apache-2.0
"""The directory of manifests as the configuration in force has it. Each plane that reads it follows it by itself."""

from collections.abc import Callable
from pathlib import Path

from agent.config.document import Configuration
from agent.drivers.manifests.driver import ManifestDirectory
from agent.drivers.manifests.remembered import RememberedManifests
from agent.drivers.manifests.trust import Trust
from agent.model.manifests.in_force import REMEMBERED


def manifest_directory(
    current: Callable[[], Configuration], plane: str, *, has_sources: bool = False
) -> ManifestDirectory:
    """`has_sources`: with the folders that objects are made from. What a plane has in force is remembered for it."""

    def timing() -> tuple[float, float]:
        now = current().manifests
        return now.rescan, now.debounce

    return ManifestDirectory(
        Path(current().manifests.directory),
        timing,
        lambda: Trust(current().manifests.group_writable),
        has_sources=has_sources,
        memory=RememberedManifests(Path(current().node.state_directory) / REMEMBERED / plane),
    )

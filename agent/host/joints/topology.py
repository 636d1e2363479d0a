# SPDX-License-Identifier: Apache-2.0
"""Topology explained by the daemon.

Hints are explained from the objects that the services plane has, so that the answer is about the routes of this node.
Where that plane does not run, and for the spread of pods, which no plane computes, they are what is in force here.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.config.document import Configuration
from agent.drivers.manifests.driver import read_manifests as read_files
from agent.drivers.manifests.trust import Trust
from agent.objects.admitting import InForce, objects_in

if TYPE_CHECKING:
    # Loaded with the first question: a daemon that nobody asks keeps the memory.
    from agent.topology.manifest.objects import Manifests
    from agent.topology.spread.filter import WhatIf


class TopologyOfManifests:
    """Raises LookupError for what no manifest has, Refused where this node does not compute hints. `programmed`: the
    objects of the services plane, as topology reads them; None where that plane does not run. `in_force` is None where
    no plane follows the directory."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        programmed: "Callable[[], Manifests] | None" = None,
        in_force: Callable[[], InForce | None] = lambda: None,
    ) -> None:
        self._configuration = configuration
        self._programmed = programmed
        self._in_force = in_force

    def _read(self) -> "Manifests":
        return _manifests(self._in_force() or _of_directory(self._configuration()))

    async def hints(self, service: str) -> tuple[str, bool]:
        return await asyncio.to_thread(self._hints, service)

    def _hints(self, service: str) -> tuple[str, bool]:
        from agent.services.attach.manifests import hint_options
        from agent.topology.explain.documents import explain_hints

        configuration = self._configuration()
        manifests = self._read() if self._programmed is None else self._programmed()
        explanation = explain_hints(manifests, service, hint_options(configuration))
        return msgspec.json.encode(explanation).decode(), explanation.exit_code == 0

    async def spread(
        self,
        pod: str,
        *,
        honors_taints: bool,
        min_domains: int | None,
        dropped_nodes: frozenset[str],
        ignores_dead_domains: bool,
    ) -> tuple[str, bool]:
        from agent.topology.spread.filter import WhatIf

        what_if = WhatIf(honors_taints, min_domains, dropped_nodes, ignores_dead_domains)
        return await asyncio.to_thread(self._spread, pod, what_if)

    def _spread(self, pod: str, what_if: "WhatIf") -> tuple[str, bool]:
        from agent.topology.explain.documents import explain_spread

        explanation = explain_spread(self._read(), pod, what_if)
        return msgspec.json.encode(explanation).decode(), explanation.exit_code == 0


def _of_directory(configuration: Configuration) -> InForce:
    """Where no plane follows it."""
    manifests = configuration.manifests
    return objects_in(read_files(Path(manifests.directory), trust=Trust(manifests.group_writable)).files)


def _manifests(in_force: InForce) -> "Manifests":
    from agent.topology.manifest.objects import Document, read_manifests

    objects = in_force.objects.values()
    return read_manifests(
        [Document(object_.where, msgspec.json.decode(object_.document)) for object_ in objects if object_.document]
    )

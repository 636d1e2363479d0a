# SPDX-License-Identifier: Apache-2.0
"""Topology explained by the daemon.

Hints are explained from the objects that the services plane has, so that the answer is about the routes of this node.
Where that plane does not run, and for the spread of pods, which no plane computes, the manifest directory is read at
the moment of the question.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agent.config.document import Configuration
from agent.config.strict_yaml import documents_or_fault, plain
from agent.drivers.manifests.driver import read_manifests as read_files
from agent.drivers.manifests.trust import Trust

if TYPE_CHECKING:
    # Loaded with the first question: a daemon that nobody asks keeps the memory.
    from agent.topology.manifest.objects import Document, Manifests
    from agent.topology.spread.filter import WhatIf


class TopologyOfManifests:
    """Raises LookupError for what no manifest has, Refused where this node does not compute hints. `programmed`: the
    objects of the services plane, as topology reads them; None where that plane does not run."""

    def __init__(
        self, configuration: Callable[[], Configuration], programmed: "Callable[[], Manifests] | None" = None
    ) -> None:
        self._configuration = configuration
        self._programmed = programmed

    async def hints(self, service: str) -> tuple[str, bool]:
        return await asyncio.to_thread(self._hints, service)

    def _hints(self, service: str) -> tuple[str, bool]:
        from agent.services.attach.manifests import hint_options
        from agent.topology.explain.documents import explain_hints

        configuration = self._configuration()
        manifests = _manifests(configuration) if self._programmed is None else self._programmed()
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

        explanation = explain_spread(_manifests(self._configuration()), pod, what_if)
        return msgspec.json.encode(explanation).decode(), explanation.exit_code == 0


def _manifests(configuration: Configuration) -> "Manifests":
    from agent.topology.manifest.objects import read_manifests

    manifests = configuration.manifests
    snapshot = read_files(Path(manifests.directory), trust=Trust(manifests.group_writable))
    return read_manifests(list(_documents(snapshot.files)))


def _documents(files: Mapping[str, bytes]) -> "Iterator[Document]":
    from agent.topology.manifest.objects import Document

    for path, content in sorted(files.items()):
        trees, findings = documents_or_fault(content, path)
        if not findings:
            yield from (Document(tree.where, plain(tree)) for tree in trees)

# SPDX-License-Identifier: Apache-2.0
"""What people ask about images of the node, answered from the parts of the plane."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.images.access.mirrors import MirrorChain, default_chain, folder_names, read_hosts
from agent.images.run.collector import ImageCollector
from agent.images.run.inspector import ImageInspector
from agent.images.run.prefetcher import Prefetcher
from agent.images.run.puller import Puller
from agent.images.view.explain import explain_image, explain_pull
from agent.model.images.pull import ListedImage
from agent.model.images.reference import ReferenceInvalid, parse_reference
from agent.model.images.state import (
    CollectionState,
    ImageInspection,
    ImageState,
    MirrorState,
    PrefetchedImage,
    PullExplanation,
    PullStage,
)
from agent.model.outside_text import from_outside

DEFAULT_FOLDER = "_default"


class NodeImages:
    def __init__(
        self,
        puller: Puller,
        collector: ImageCollector,
        prefetcher: Prefetcher,
        hosts_folder: Callable[[], Path],
        inspector: ImageInspector,
    ) -> None:
        self._inspector = inspector
        self._puller = puller
        self._collector = collector
        self._prefetcher = prefetcher
        self._hosts_folder = hosts_folder

    async def images(self) -> Sequence[ImageState]:
        return await self._collector.refresh()

    async def collect(self, *, dry_run: bool) -> CollectionState:
        return await self._collector.collect(dry_run=dry_run)

    async def prefetch(self, images: Sequence[ListedImage]) -> Sequence[PrefetchedImage]:
        return await self._prefetcher.prefetch(images)

    async def mirrors(self) -> Sequence[MirrorState]:
        states = self._collector.images.items.values()
        names = {name.partition("/")[0] for image in states for name in image.names if "/" in name}
        chains = await asyncio.to_thread(self._chains, names)
        return [
            # The file is root's, and a URL in it may have a login.
            MirrorState(chain.registry, from_outside(host.url), host.capabilities, chain.source, chain.problem)
            for chain in chains
            for host in chain.hosts
        ]

    async def inspect(self, image: str) -> ImageInspection | None:
        return await self._inspector.inspect(image)

    async def explain(self, image: str) -> PullExplanation:
        try:
            reference = parse_reference(image)
        except ReferenceInvalid as error:
            return PullExplanation(image, "", False, None, (str(error),))
        name = str(reference)
        pulls = [
            state
            for state in self._puller.pulls.items.values()
            if state.reference == name and state.stage is not PullStage.SKIPPED
        ]
        pull = max(pulls, key=lambda one: (not one.stage.is_over, one.queued_at_s), default=None)
        states = await self._collector.refresh()
        found = next((state for state in states if name in state.names), None)
        sentences = [explain_pull(pull), *explain_image(name, found, pull)]
        sentences += [str(skip) for skip in self._prefetcher.plan.skips if skip.image in (image, name)]
        limits = ", ".join(f"{one.scope} {one.running} of {one.limit or 'any number'}" for one in self._puller.limits())
        sentences.append(f"pulls running: {limits}")
        return PullExplanation(image, name, found is not None, pull, tuple(sentences))

    def _chains(self, names: set[str]) -> list[MirrorChain]:
        folder = self._hosts_folder()
        listed = {path.parent.name for path in folder.glob("*/hosts.toml")}
        registries = names | {name.rstrip("_") for name in listed if name != DEFAULT_FOLDER and not name.endswith("_")}
        return [read_chain(folder, registry) for registry in sorted(registries)]


def read_chain(folder: Path, registry: str) -> MirrorChain:
    """All hosts that the runtime asks for a registry, by its file or without one."""
    for name in folder_names(registry):
        path = folder / name / "hosts.toml"
        try:
            return read_hosts(registry, path.read_bytes(), str(path))
        except OSError:
            continue
    return default_chain(registry)

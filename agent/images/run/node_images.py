# SPDX-License-Identifier: Apache-2.0
"""What people ask about images of the node, answered from the parts of the plane; one image also in full.

Never: asks a registry. What the node does not have is said to be unknown.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from agent.images.access.grants import who_may_use
from agent.images.access.mirrors import MirrorChain, default_chain, folder_names, read_hosts
from agent.images.ports import Content, ImageNames
from agent.images.run.collector import ImageCollector
from agent.images.run.prefetcher import Prefetcher
from agent.images.run.puller import Puller
from agent.images.run.records import AccessRecords
from agent.images.settings import ImageSettings
from agent.images.view.manifest import LARGEST_MANIFEST, Manifest, read_index, read_manifest
from agent.images.view.texts import explain_image, explain_pull
from agent.model.images.manifest import Blob
from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference
from agent.model.images.state import (
    ImageInspection,
    ImageState,
    InspectedLayer,
    InspectedPlatform,
    MirrorState,
    PullExplanation,
    PullStage,
)
from agent.model.images.store import ImageRecord
from agent.model.runtime.error import NotFound
from agent.model.text.outside_text import from_outside

DEFAULT_FOLDER = "_default"
SHORTEST_ID = 12
NO_MANIFEST = "the runtime did not keep its manifest, so its layers are unknown"


class ImageInspector:
    def __init__(
        self,
        collector: ImageCollector,
        names: ImageNames,
        content: Content,
        records: AccessRecords,
        settings: Callable[[], ImageSettings],
    ) -> None:
        self._collector = collector
        self._names = names
        self._content = content
        self._records = records
        self._settings = settings

    async def inspect(self, image: str) -> ImageInspection | None:
        """By name, or by the id or its beginning. None: it is not on the node. Raises RuntimeCallFailed."""
        state = find_image(image, await self._collector.refresh())
        if state is None:
            return None
        reference = _reference(image, state)
        records = {record.name: record for record in await self._names.image_records()}
        name = next((one for one in (str(reference), *state.names) if one in records), "")
        manifest, platforms = await self._made_of(state, records.get(name))
        layers = [
            InspectedLayer(layer.digest, layer.size, await self._has(layer.digest))
            for layer in (manifest.layers if manifest is not None else ())
        ]
        return ImageInspection(
            image=state,
            reference=name,
            digest=records[name].digest if name else "",
            media_type=records[name].media_type if name else "",
            manifest_digest=manifest.digest if manifest is not None else "",
            platforms=tuple(platforms),
            layers=tuple(layers),
            total_bytes=manifest.total_bytes if manifest is not None else 0,
            may_use=self.who_may_use_it(reference, state),
            notes=() if manifest is not None else (NO_MANIFEST,),
        )

    async def _made_of(
        self, state: ImageState, record: ImageRecord | None
    ) -> tuple[Manifest | None, list[InspectedPlatform]]:
        """The manifest that this node uses, and all platforms that there are."""
        top = await self._read(record.digest) if record is not None else b""
        entries = read_index(top)
        if not entries:
            return read_manifest(record.digest if record is not None else "", top), []
        used: Manifest | None = None
        platforms = []
        for entry in entries:
            content = await self._read(entry.digest)
            platforms.append(_platform(entry, is_present=bool(content)))
            manifest = read_manifest(entry.digest, content)
            if manifest is not None and (used is None or manifest.config.digest == state.id):
                used = manifest
        return used, platforms

    async def _read(self, digest: str) -> bytes:
        try:
            return await self._content.read_blob(digest, LARGEST_MANIFEST)
        except NotFound:
            return b""

    async def _has(self, digest: str) -> bool:
        return await self._content.blob_info(digest) is not None

    def who_may_use_it(self, reference: ImageReference | None, state: ImageState) -> tuple[str, ...]:
        if reference is None:
            return ()
        is_ours = self._records.is_pulled_by_us(state.id, str(reference))
        proofs = self._records.proofs(state.id, reference.repo)
        return who_may_use(reference.written, proofs, self._settings().access, is_pulled_by_us=is_ours)


class NodeImages:
    def __init__(
        self,
        puller: Puller,
        collector: ImageCollector,
        prefetcher: Prefetcher,
        hosts_folder: Callable[[], Path],
        inspector: ImageInspector,
    ) -> None:
        self.inspector = inspector
        self._puller = puller
        self.collector = collector
        self.prefetcher = prefetcher
        self._hosts_folder = hosts_folder

    async def mirrors(self) -> Sequence[MirrorState]:
        states = self.collector.images.items.values()
        names = {name.partition("/")[0] for image in states for name in image.names if "/" in name}
        chains = await asyncio.to_thread(self._chains, names)
        return [
            # The file is root's, and a URL in it may have a login.
            MirrorState(chain.registry, from_outside(host.url), host.capabilities, chain.source, chain.problem)
            for chain in chains
            for host in chain.hosts
        ]

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
        states = await self.collector.refresh()
        found = next((state for state in states if name in state.names), None)
        sentences = [explain_pull(pull), *explain_image(name, found, pull)]
        if found is not None:
            sentences += [f"who may use it: {who}" for who in self.inspector.who_may_use_it(reference, found)]
        sentences += [str(skip) for skip in self.prefetcher.plan.skips if skip.image in (image, name)]
        limits = ", ".join(
            f"{one.scope} {one.running}{f' of {one.limit}' if one.limit else ', without a limit'}"
            for one in self._puller.limits()
        )
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


def find_image(image: str, states: Sequence[ImageState]) -> ImageState | None:
    """By a name as people write it, an id, or the beginning of one that is no other's."""
    try:
        name = str(parse_reference(image))
    except ReferenceInvalid:
        name = ""
    named = [one for one in states if name and name in one.names]
    digits = image.removeprefix("sha256:")
    numbered = [one for one in states if one.id.removeprefix("sha256:").startswith(digits)]
    if len(digits) < SHORTEST_ID:
        numbered = []
    found = named or numbered
    return found[0] if len(found) == 1 or named else None


def _reference(image: str, state: ImageState) -> ImageReference | None:
    for written in (image, *state.names):
        try:
            reference = parse_reference(written)
        except ReferenceInvalid:
            continue
        if str(reference) in state.names:
            return reference
    return None


def _platform(entry: Blob, *, is_present: bool) -> InspectedPlatform:
    name = str(entry.platform) if entry.platform is not None else "any"
    return InspectedPlatform(name, entry.digest, is_present)

# SPDX-License-Identifier: Apache-2.0
"""One image of the node in full: what it is made of, for which platforms, who uses it and who may.

Never: asks a registry. What the node does not have is said to be unknown.
"""

from collections.abc import Callable, Sequence

from agent.images.access.grants import who_may_use
from agent.images.ports import Content, ImageNames
from agent.images.run.collector import ImageCollector
from agent.images.run.records import AccessRecords
from agent.images.settings import ImageSettings
from agent.images.view.manifest import LARGEST_MANIFEST, Manifest, read_index, read_manifest
from agent.model.images.manifest import Blob
from agent.model.images.reference import ImageReference, ReferenceInvalid, parse_reference
from agent.model.images.state import ImageInspection, ImageState, InspectedLayer, InspectedPlatform
from agent.model.images.store import ImageRecord
from agent.model.runtime.error import NotFound

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
            may_use=self._who_may_use(reference, state),
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

    def _who_may_use(self, reference: ImageReference | None, state: ImageState) -> tuple[str, ...]:
        if reference is None:
            return ()
        is_ours = self._records.is_pulled_by_us(state.id, str(reference))
        proofs = self._records.proofs(state.id, reference.repo)
        return who_may_use(reference.written, proofs, self._settings().access, is_pulled_by_us=is_ours)


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

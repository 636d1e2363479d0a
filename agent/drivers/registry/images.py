# SPDX-License-Identifier: Apache-2.0
"""Whole images from their registry: manifests first, then any blob from any offset.

Owns: the way from a name to the blobs of this machine's platform.
Source of behaviour: OCI distribution spec; IMG-F04.
"""

import hashlib
from dataclasses import dataclass, field

from agent.drivers.registry.errors import ProbeFailed
from agent.drivers.registry.manifest_size import (
    ImageDocument,
    blobs_of,
    choose_entry,
    is_digest,
    node_platform,
    read_document,
)
from agent.drivers.registry.session import Take
from agent.drivers.registry.visit import Visit
from agent.drivers.registry.visiting import Visitors
from agent.model.image_credential import Credential
from agent.model.image_reference import parse_reference

__all__ = ["OpenedImage", "RegistryImages"]

MOST_DOCUMENTS = 3


@dataclass(frozen=True, slots=True)
class OpenedImage:
    """`documents` and `blobs` by digest; the last document is the manifest."""

    documents: tuple[tuple[str, bytes], ...]
    blobs: tuple[tuple[str, int], ...]
    visit: Visit = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """Config and layers."""
        return sum(size for _digest, size in self.blobs)

    async def read(self, digest: str, offset: int, take: Take) -> None:
        """A blob's bytes from an offset on, in pieces. Raises ProbeFailed."""
        await self.visit.blob(digest, offset, take)


class RegistryImages:
    def __init__(self, visitors: Visitors, *, machine: str) -> None:
        self._visitors = visitors
        self._platform = node_platform(machine)

    async def open(self, reference: str, credential: Credential | None) -> OpenedImage:
        """What the image is made of. Raises ProbeFailed."""
        parsed = parse_reference(reference)
        visit = await self._visitors.visit(parsed, credential)
        documents: list[tuple[str, bytes]] = []
        wanted = parsed.digest or parsed.effective_tag
        for _ in range(MOST_DOCUMENTS):
            content = await visit.manifest(wanted)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            if wanted.startswith("sha256:") and wanted != digest:
                raise ProbeFailed("failed size validation: the manifest is not the one that was asked for")
            documents.append((digest, content))
            document: ImageDocument = read_document(content)
            blobs = blobs_of(document)
            if blobs is not None:
                if not all(map(is_digest, blobs)):
                    raise ProbeFailed("the manifest names a digest that is malformed")
                return OpenedImage(tuple(documents), tuple(blobs.items()), visit)
            wanted = choose_entry(document, self._platform)
        raise ProbeFailed("the index points to indexes only")

# SPDX-License-Identifier: Apache-2.0
"""The documents that say what an image is made of, as registries and content stores have them.

Source of behaviour: OCI image spec.
"""

from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class BlobPlatform(msgspec.Struct, frozen=True):
    """What an entry of an index is for."""

    os: str = ""
    architecture: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part) or "any"


class Blob(msgspec.Struct, frozen=True):
    """A layer, a config, or a manifest that an index names."""

    digest: str
    size: Size
    platform: BlobPlatform | None = None


class ImageDocument(msgspec.Struct, frozen=True):
    """A manifest (config and layers) or an index (manifests)."""

    config: Blob | None = None
    layers: tuple[Blob, ...] | None = None
    manifests: tuple[Blob, ...] | None = None


def read_document(content: bytes) -> ImageDocument | None:
    """None for anything else, the first Docker format too: it has no sizes."""
    try:
        document = msgspec.json.decode(content, type=ImageDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_manifest = document.config is not None and document.layers is not None
    return document if is_manifest or document.manifests is not None else None

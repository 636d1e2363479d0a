# SPDX-License-Identifier: Apache-2.0
"""How large an image is, by its manifest alone, which may be an index of several platforms.

Never: trusts what it reads further than a number: a digest that is not one is never asked for.
Source of behaviour: OCI image spec; containerd `platforms` for which variants an architecture runs.
"""

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec

from agent.drivers.registry.errors import ProbeFailed
from agent.model.image_platform import ImagePlatform

KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPT = ", ".join(KINDS)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


class WantedPlatform(msgspec.Struct, frozen=True):
    """The platform that an entry of an index is for."""

    architecture: str = ""
    os: str = ""
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True):
    """A reference to a blob or a manifest."""

    digest: str
    size: Size
    platform: WantedPlatform | None = None


class ImageDocument(msgspec.Struct, frozen=True):
    """A manifest (config and layers) or an index (manifests)."""

    config: Descriptor | None = None
    layers: Sequence[Descriptor] | None = None
    manifests: Sequence[Descriptor] | None = None


def read_document(content: bytes) -> ImageDocument:
    """A manifest or an index. Raises ProbeFailed for anything else, the first Docker format too: it has no sizes."""
    try:
        document = msgspec.json.decode(content, type=ImageDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProbeFailed("the answer is not a readable manifest") from None
    if document.manifests is None and (document.config is None or document.layers is None):
        raise ProbeFailed("the answer is JSON, but neither a manifest with sizes nor an index")
    return document


def total_bytes(document: ImageDocument) -> int | None:
    """Config and layers together, a blob that is in it twice once; None for an index."""
    if document.config is None or document.layers is None:
        return None
    return sum({blob.digest: blob.size for blob in (document.config, *document.layers)}.values())


def choose_entry(document: ImageDocument, platform: ImagePlatform) -> str:
    """The digest of the manifest for a platform. Raises ProbeFailed if there is none."""
    entries = document.manifests or ()
    for variant in platform.variants:
        wanted = WantedPlatform(platform.architecture, platform.os, variant)
        for entry in entries:
            if entry.platform == wanted:
                return _checked(entry.digest)
    if len(entries) == 1 and entries[0].platform is None:
        return _checked(entries[0].digest)
    raise ProbeFailed(f"the index has no manifest for {platform.os}/{platform.architecture}")


def _checked(digest: str) -> str:
    if DIGEST.fullmatch(digest) is None:
        raise ProbeFailed("the index names a digest that is malformed")
    return digest

# SPDX-License-Identifier: Apache-2.0
"""How large an image is, by its manifest alone.

Owns: reading manifests and indexes of OCI and Docker, which entry of an index this node would fetch, and the sum.
Never: trusts what it reads further than a number: a digest that is not one is never asked for.
Source of behaviour: OCI image spec; containerd `platforms` for which variants an architecture runs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from agent.drivers.registry.errors import ProbeFailed

__all__ = [
    "ACCEPT",
    "Platform",
    "blobs_of",
    "choose_entry",
    "is_digest",
    "node_platform",
    "read_document",
    "total_bytes",
]

KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPT = ", ".join(KINDS)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
MACHINES = {
    "x86_64": ("amd64", ("", "v1")),
    "aarch64": ("arm64", ("", "v8")),
    "armv8l": ("arm", ("v8", "v7", "", "v6", "v5")),
    "armv7l": ("arm", ("v7", "", "v6", "v5")),
    "armv6l": ("arm", ("v6", "v5")),
    "i386": ("386", ("",)),
    "i686": ("386", ("",)),
    "loongarch64": ("loong64", ("",)),
}
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]


@dataclass(frozen=True, slots=True)
class Platform:
    """What a node runs; the best variant comes first."""

    architecture: str
    variants: tuple[str, ...] = ("",)
    os: str = "linux"


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


def node_platform(machine: str) -> Platform:
    """The platform of a machine as `uname -m` calls it; most have the same name for both."""
    return Platform(*MACHINES.get(machine, (machine, ("",))))


def read_document(content: bytes) -> ImageDocument:
    """A manifest or an index. Raises ProbeFailed for anything else, the first Docker format too: it has no sizes."""
    try:
        document = msgspec.json.decode(content, type=ImageDocument)
    except (msgspec.DecodeError, RecursionError):
        raise ProbeFailed("the answer is not a readable manifest") from None
    if document.manifests is None and (document.config is None or document.layers is None):
        raise ProbeFailed("the answer is JSON, but neither a manifest with sizes nor an index")
    return document


def blobs_of(document: ImageDocument) -> dict[str, int] | None:
    """Config and layers with their sizes, a blob that is in it twice once; None for an index."""
    if document.config is None or document.layers is None:
        return None
    return {blob.digest: blob.size for blob in (document.config, *document.layers)}


def total_bytes(document: ImageDocument) -> int | None:
    """Config and layers together; None for an index."""
    blobs = blobs_of(document)
    return sum(blobs.values()) if blobs is not None else None


def choose_entry(document: ImageDocument, platform: Platform) -> str:
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


def is_digest(text: str) -> bool:
    """Whether it may be asked for."""
    return DIGEST.fullmatch(text) is not None


def _checked(digest: str) -> str:
    if not is_digest(digest):
        raise ProbeFailed("the index names a digest that is malformed")
    return digest

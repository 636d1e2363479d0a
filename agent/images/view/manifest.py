# SPDX-License-Identifier: Apache-2.0
"""Reads what an image consists of: layers with their sizes, from the manifest in the content store.

The runtime has chosen the platform by fetching. Source of behaviour: OCI image spec.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from agent.model.images.manifest import Blob, read_document

LARGEST_MANIFEST = 4 << 20


class _RootFilesystem(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...] = ()


class _Config(msgspec.Struct, frozen=True):
    rootfs: _RootFilesystem = msgspec.field(default_factory=_RootFilesystem)


class Manifest(msgspec.Struct, frozen=True):
    """One image for one platform. `size_bytes` is what the manifest itself weighs."""

    digest: str
    size_bytes: int
    config: Blob
    layers: tuple[Blob, ...] = msgspec.field(default=())

    @property
    def total_bytes(self) -> int:
        """All that a node without any of it has to fetch."""
        return self.size_bytes + self.config.size + sum(layer.size for layer in self.unique_layers)

    @property
    def unique_layers(self) -> tuple[Blob, ...]:
        """Layers to fetch; a blob that is in it twice comes once."""
        return tuple({layer.digest: layer for layer in self.layers}.values())


def read_manifest(digest: str, content: bytes) -> Manifest | None:
    """The manifest in a blob; None for an index, a config or anything else."""
    document = read_document(content)
    if document is None or document.config is None or document.layers is None:
        return None
    return Manifest(digest, len(content), document.config, document.layers)


def read_index(content: bytes) -> tuple[Blob, ...]:
    """The images of an index; none of anything else."""
    document = read_document(content)
    return document.manifests or () if document is not None else ()


def read_diff_ids(content: bytes) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(content, type=_Config).rootfs.diff_ids
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()


def chain_ids(diff_ids: Sequence[str]) -> tuple[str, ...]:
    """The names of the snapshots that the layers become, one on top of the other."""
    chain: list[str] = []
    for diff_id in diff_ids:
        if chain:
            chain.append("sha256:" + hashlib.sha256(f"{chain[-1]} {diff_id}".encode()).hexdigest())
        else:
            chain.append(diff_id)
    return tuple(chain)

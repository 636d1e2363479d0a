# SPDX-License-Identifier: Apache-2.0
"""Pods as manifests describe them.

Owns: the values, and the identity of a pod that has none of its own.
Never: reads YAML or talks to a runtime.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["DEFAULT_GRACE_S", "ContainerKind", "ContainerSpec", "PodSpec", "content_hash", "static_uid"]

DEFAULT_GRACE_S = 30
FNV_OFFSET = 0x6C62272E07BB014262B821756295C58D
FNV_PRIME = 0x0000000001000000000000000000013B
MASK_128 = (1 << 128) - 1
HASH_LENGTH = 32


class ContainerKind(StrEnum):
    """What a container is to its pod. A sidecar is an init container that is always restarted."""

    MAIN = "main"
    SIDECAR = "sidecar"
    INIT = "init"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container."""

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """One pod. `hash` changes with what its manifest says; `source` is its place in `file`."""

    namespace: str
    name: str
    uid: str
    hash: str = ""
    grace_s: int = DEFAULT_GRACE_S
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    containers: tuple[ContainerSpec, ...] = ()
    file: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """What no two pods of a node share."""
        return f"{self.namespace}/{self.name}"

    @property
    def full_name(self) -> str:
        """How messages name it."""
        return f"{self.name}_{self.namespace}({self.uid})"

    @property
    def version(self) -> tuple[str, str]:
        """Two that are equal here need not replace each other."""
        return self.uid, self.hash


def static_uid(content: str, node: str, path: str) -> str:
    """Identity of a pod from a file: the same as long as content, node and path are (IDN-02)."""
    digest = FNV_OFFSET
    # The path has the bytes that are no UTF-8 as os.fsdecode writes them.
    for byte in f"{content}host:{node}file:{path}".encode("utf-8", "surrogateescape"):
        digest = ((digest ^ byte) * FNV_PRIME) & MASK_128
    return f"{digest:032x}"


def content_hash(content: str) -> str:
    """What a sandbox remembers of its manifest (ADO-02)."""
    return hashlib.sha256(content.encode()).hexdigest()[:HASH_LENGTH]

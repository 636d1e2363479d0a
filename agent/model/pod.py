# SPDX-License-Identifier: Apache-2.0
"""Pods as manifests describe them.

Owns: the values, and the identity of a pod that has none of its own.
Never: reads YAML or talks to a runtime.
"""

from dataclasses import dataclass

__all__ = ["ContainerSpec", "PodSpec", "static_uid"]

FNV_OFFSET = 0x6C62272E07BB014262B821756295C58D
FNV_PRIME = 0x0000000001000000000000000000013B
MASK_128 = (1 << 128) - 1


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
    """One pod."""

    namespace: str
    name: str
    uid: str
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    containers: tuple[ContainerSpec, ...] = ()
    source: str = ""

    @property
    def full_name(self) -> str:
        """How messages name it."""
        return f"{self.name}_{self.namespace}({self.uid})"


def static_uid(content: str, node: str, path: str) -> str:
    """Identity of a pod from a file: the same as long as content, node and path are (IDN-02)."""
    digest = FNV_OFFSET
    for byte in f"{content}host:{node}file:{path}".encode():
        digest = ((digest ^ byte) * FNV_PRIME) & MASK_128
    return f"{digest:032x}"

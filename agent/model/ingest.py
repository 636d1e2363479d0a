# SPDX-License-Identifier: Apache-2.0
"""A blob on its way into the content store."""

from dataclasses import dataclass

__all__ = ["Ingest"]


@dataclass(frozen=True, slots=True)
class Ingest:
    """`ref` is containerd's name for the write, such as `layer-sha256:…`; `total_bytes` is 0 while unknown."""

    ref: str
    offset_bytes: int
    total_bytes: int
    updated_at_s: float = 0.0
    """When its last byte came, wall time; 0 = not told."""

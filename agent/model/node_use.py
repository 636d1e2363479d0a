# SPDX-License-Identifier: Apache-2.0
"""What a node still has of what runs out, and what its pods have of it."""

from collections.abc import Mapping
from typing import Literal

import msgspec


class Amount(msgspec.Struct, frozen=True):
    """Of one thing: bytes, inodes or processes."""

    available: int
    capacity: int


# Where a runtime keeps images and writable layers: all with the node's files; both apart; images apart and layers not.
Layout = Literal["one", "apart", "split"]


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """By signal, as a kubelet calls them; what is unknown is missing."""

    taken_s: float
    amounts: Mapping[str, Amount] = msgspec.field(default_factory=dict)
    layout: Layout = "one"


class ContainerUse(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    memory: int | None = None
    layer_bytes: int | None = None
    layer_inodes: int | None = None


class PodUse(msgspec.Struct, frozen=True, kw_only=True):
    """`memory` is the working set of the pod's own group, which also holds what no container counts."""

    memory: int | None = None
    processes: int | None = None
    containers: tuple[ContainerUse, ...] = ()

# SPDX-License-Identifier: Apache-2.0
"""What a node still has of what runs out, and what its pods have of it."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent.model.nodes.file_system import Room, rooms_on


class Amount(msgspec.Struct, frozen=True):
    """Of one thing: bytes, inodes or processes."""

    available: int
    capacity: int


# Where a runtime keeps images and writable layers: all with the node's files; both apart; images apart and layers not.
Layout = Literal["one", "apart", "split"]


class DiskPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that a signal is about, with all that is kept on it; `path` is where it was looked at."""

    path: str
    device: int
    roles: tuple[str, ...] = ()


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """By signal, as a kubelet calls them; what is unknown is missing. `places`: by the signal's first word."""

    taken_s: float
    amounts: Mapping[str, Amount] = msgspec.field(default_factory=dict)
    layout: Layout = "one"
    places: Mapping[str, DiskPlace] = msgspec.field(default_factory=dict)

    def rooms(self, signal: str) -> tuple[Room, ...]:
        """What can make room for a signal; where it is not known what is kept there, all that there is."""
        place = self.places.get(signal.partition(".")[0])
        return rooms_on(place.roles) if place is not None else tuple(Room)


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

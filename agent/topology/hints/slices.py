# SPDX-License-Identifier: Apache-2.0
"""Endpoints and their slices, as the hint computation reads and returns them.

Source of behaviour: k8s.io/endpointslice (utils.go, topologycache/sliceinfo.go).
"""

from collections.abc import Iterable

import msgspec


class Hints(msgspec.Struct, frozen=True, gc=False):
    """The hints object of an endpoint. It may be present and empty, which is not the same as absent."""

    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One endpoint. None in a condition means that it is not written down."""

    addresses: tuple[str, ...]
    zone: str | None = None
    node: str | None = None
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None
    hints: Hints | None = None
    hostname: str | None = None
    target: str | None = None

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""

    @property
    def is_ready(self) -> bool:
        """Ready for hints: the condition is written down and true. Proxies read a missing one as true."""
        return self.ready is True


class Slice(msgspec.Struct, frozen=True, gc=False):
    name: str
    endpoints: tuple[Endpoint, ...] = ()


class SliceLists(msgspec.Struct, frozen=True, gc=False):
    """The slices of one Service and address family, sorted by what a sync is about to do with them."""

    to_create: tuple[Slice, ...] = ()
    to_update: tuple[Slice, ...] = ()
    unchanged: tuple[Slice, ...] = ()

    @property
    def all(self) -> tuple[Slice, ...]:
        return self.to_create + self.to_update + self.unchanged


def ready_endpoints(slices: Iterable[Slice]) -> list[Endpoint]:
    return [endpoint for piece in slices for endpoint in piece.endpoints if endpoint.is_ready]


def with_hints(endpoint: Endpoint, hints: Hints | None) -> Endpoint:
    return endpoint if endpoint.hints == hints else msgspec.structs.replace(endpoint, hints=hints)


def without_hints(piece: Slice) -> Slice:
    """The slice with no hints object left, on ready and unready endpoints alike."""
    if not _has_hints(piece):
        return piece
    return Slice(piece.name, tuple(with_hints(endpoint, None) for endpoint in piece.endpoints))


def strip_hints(lists: SliceLists) -> SliceLists:
    """Removes all hints; an unchanged slice that had some has to be written and moves to the end of `to_update`."""
    moved = tuple(piece for piece in lists.unchanged if _has_hints(piece))
    return SliceLists(
        to_create=tuple(without_hints(piece) for piece in lists.to_create),
        to_update=tuple(without_hints(piece) for piece in lists.to_update + moved),
        unchanged=tuple(piece for piece in lists.unchanged if not _has_hints(piece)),
    )


def _has_hints(piece: Slice) -> bool:
    return any(endpoint.hints is not None for endpoint in piece.endpoints)

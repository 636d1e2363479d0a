# SPDX-License-Identifier: Apache-2.0
"""Keeps what a dump of the kernel found, by Service port, up to date while batches are written.

An element's owner follows from its key: elements of a way in begin with its address, protocol and port.
"""

from collections.abc import Iterable, Iterator

from agent.model.services.nft_table import MAPS, Batch, Content, Data
from agent.services.nftables.elements import frontend_key
from agent.services.routes.frontends import ServicePlan

NODE_PORT_BYTES = 8
_FRONTEND = ("address", "proto", "port")
_BY_FRONTEND = frozenset(name for name, one in MAPS.items() if one.key[:3] == _FRONTEND)
_BY_NODE_PORT = frozenset(name for name, one in MAPS.items() if one.key[:2] == _FRONTEND[1:])
_SHARED = frozenset({"cluster_ips", "hairpin", "aff_cluster", "aff_local"})


def frontends_of(plans: Iterable[ServicePlan | None]) -> frozenset[bytes]:
    return frozenset(
        frontend_key(frontend)
        for plan in plans
        if plan is not None
        for port in plan.ports
        for frontend in port.frontends
    )


def _way_in(name: str, key: bytes, width: int) -> bytes:
    """Of a map's element, b"" where several may share it. `width`: of an address, protocol and port."""
    if name in _BY_FRONTEND:
        return key[:width]
    return key[:NODE_PORT_BYTES] if name in _BY_NODE_PORT else b""


def without_spared(gone: Content, come: Content, frontends: frozenset[bytes]) -> Content:
    """Of what is to go, without what belongs to these ways in or may be shared by them, unless it is replaced."""
    if not frontends:
        return gone
    width = max(map(len, frontends))
    left: Content = {}
    for name, elements in gone.items():
        replacing = come.get(name, {})
        left[name] = {
            key: data
            for key, data in elements.items()
            if key in replacing or not (name in _SHARED or _way_in(name, key, width) in frontends)
        }
    return left


class Standing:
    """One table; `content` is changed in place."""

    def __init__(self, content: Content, width: int) -> None:
        self.content = content
        self._width = width
        self._keys: dict[bytes, set[tuple[str, bytes]]] = {}
        for name, elements in content.items():
            for key in elements:
                self._note(name, key)

    def _note(self, name: str, key: bytes) -> None:
        way_in = _way_in(name, key, self._width)
        if way_in:
            self._keys.setdefault(way_in, set()).add((name, key))

    def of(self, frontends: Iterable[bytes]) -> Iterator[tuple[str, bytes, Data]]:
        for frontend in frontends:
            for name, key in self._keys.get(frontend, ()):
                yield name, key, self.content[name][key]

    def take(self, batch: Batch) -> None:
        for name, keys in batch.deletes.items():
            for key in keys:
                self.content[name].pop(key, None)
                self._keys.get(_way_in(name, key, self._width), set()).discard((name, key))
        for name, pairs in batch.adds.items():
            self.content.setdefault(name, {}).update(pairs)
            for key, _ in pairs:
                self._note(name, key)

# SPDX-License-Identifier: Apache-2.0
"""Selects the endpoints of a service port that get its traffic, and remembers why.

A selection has the reasons too, so that the sync, the vectors and `kepctl explain route` cannot differ: view/explain.py
only puts them into words. Source of behaviour: KEP-1669, KEP-2433, KEP-3015.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import Literal

import msgspec

from agent.model.services.service import Backend, ServiceFacts, ServiceOptions

Mode = Literal["", "PreferSameNode", "PreferSameZone", "Fallback"]
Resort = Literal["", "terminating", "unready"]

HOSTNAME = "kubernetes.io/hostname"
ANYWHERE = "*"
_KEY = attrgetter("key")


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where this node is. `labels` by node name are there only where somebody wants an ordered fallback."""

    node: str
    zone: str = ""
    labels: Mapping[str, Mapping[str, str]] = msgspec.field(default_factory=dict)
    is_alone: bool = False
    """No cluster says where endpoints are, so one without a node is here."""


class Use(msgspec.Struct, frozen=True, gc=False):
    cluster: bool
    local: bool


class IgnoredHints(msgspec.Struct, frozen=True, gc=False):
    """Hints of one kind that are not followed. `missing`: how many ready endpoints have none; `example` is one of them.
    0: all have a hint, but none is for this node."""

    kind: Literal["node", "zone"]
    missing: int = 0
    example: str = ""


class Selection(msgspec.Struct, frozen=True, gc=False):
    """None: that list is not used; empty: it is used and has no endpoint.

    `everyone` is the union; `level` the key of the fallback that was taken; `last_resort`: no endpoint is ready, so the
    cluster list has those that terminate and still serve, or, where the Service asks for it, those that are not ready.
    """

    cluster: tuple[Backend, ...] | None
    local: tuple[Backend, ...] | None
    everyone: tuple[Backend, ...]
    has_any: bool
    mode: Mode = ""
    level: str = ""
    last_resort: Resort = ""
    ignored: tuple[IgnoredHints, ...] = ()


def use_of(service: ServiceFacts, is_reachable_from_outside: bool) -> Use:
    """SEL, table of derived values. A Local policy for outside traffic still needs the cluster list."""
    return Use(
        cluster=not service.is_internal_local or is_reachable_from_outside,
        local=service.is_internal_local or (service.is_external_local and is_reachable_from_outside),
    )


def merge(lists: Iterable[Iterable[Backend]]) -> tuple[Backend, ...]:
    """The backends of several slices as one list; the slices come in the order of their names."""
    together = [*chain.from_iterable(lists)]
    found = dict(zip(map(_KEY, together), together, strict=True))
    if len(found) < len(together):
        found = {}
        for backend in together:
            if not backend.is_terminating or backend.key not in found:
                found[backend.key] = backend
    return tuple(map(found.__getitem__, sorted(found)))


def select(
    backends: Sequence[Backend],
    use: Use,
    place: Place,
    options: ServiceOptions | None = None,
    *,
    are_plain: bool = False,
) -> Selection:
    """Backends as `merge` gives them. `are_plain`: it is known that all are ready and none has a hint."""
    if not backends:
        return Selection((), (), (), has_any=False)
    cluster: tuple[Backend, ...] | None = None
    mode: Mode = ""
    level = ""
    ignored: tuple[IgnoredHints, ...] = ()
    last_resort: Resort = ""
    has_any = False
    unready = _all_unready(backends) if options is not None and options.uses_unready and not are_plain else ()
    if use.cluster:
        ready = tuple(backends if are_plain else [one for one in backends if one.is_ready])
        if options is not None and options.topology_keys and not use.local:
            mode, (cluster, level) = "Fallback", _by_keys(ready, place, options)
        else:
            mode, ignored = ("", ()) if are_plain else _hints(ready, place)
            cluster = _follow_hints(ready, mode, place)
        if not ready:
            last_resort = "unready" if unready else "terminating"
            cluster = unready or tuple([one for one in backends if one.is_serving and one.is_terminating])
        has_any = bool(cluster) or bool(ready)
    local = None
    if use.local:
        has_any = has_any or any(one.is_ready or (one.is_serving and one.is_terminating) for one in backends)
        has_any = has_any or bool(unready)
        local = tuple([one for one in unready if is_local(one, place)]) or _local(backends, place)
    return Selection(cluster, local, _union(cluster, local), has_any, mode, level, last_resort, ignored)


def living_of(selection: Selection, judged: Iterable[Backend]) -> Selection:
    """A choice that is empty without the dead falls on them too, as they may be alive: on those that live, if any."""
    living = {one.key for one in judged if one.is_ready}
    cluster = tuple([one for one in selection.cluster or () if one.key in living]) or selection.cluster
    return msgspec.structs.replace(selection, cluster=cluster, everyone=_union(cluster, selection.local))


def _all_unready(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    """All that stay, where none of them is ready and none on its way out serves: a check that fails everywhere at once
    speaks of what all of them need, and whoever is left out makes it worse for the others."""
    if any(one.is_ready or (one.is_serving and one.is_terminating) for one in backends):
        return ()
    return tuple([one for one in backends if not one.is_terminating])


def _hints(ready: Sequence[Backend], place: Place) -> tuple[Mode, tuple[IgnoredHints, ...]]:
    """Hints count only if every ready endpoint has one, and one of them is for us. Those of nodes come first."""
    if not any(one.nodes or one.zones for one in ready):
        return "", ()
    nodes, zones = [one.nodes for one in ready], [one.zones for one in ready]
    if all(nodes) and any(place.node in names for names in nodes):
        return "PreferSameNode", ()
    if all(zones) and any(place.zone in names for names in zones):
        return "PreferSameZone", ()
    return "", (*_ignored("zone", zones, ready), *_ignored("node", nodes, ready))


def _ignored(
    kind: Literal["node", "zone"], hints: Sequence[Sequence[str]], ready: Sequence[Backend]
) -> Iterator[IgnoredHints]:
    if any(hints):
        without = [one.key for one, found in zip(ready, hints, strict=True) if not found]
        yield IgnoredHints(kind, len(without), without[0] if without else "")


def _follow_hints(ready: tuple[Backend, ...], mode: Mode, place: Place) -> tuple[Backend, ...]:
    if mode == "PreferSameNode":
        return tuple([one for one in ready if place.node in one.nodes])
    if mode == "PreferSameZone":
        return tuple([one for one in ready if place.zone in one.zones])
    return ready


def _by_keys(ready: tuple[Backend, ...], place: Place, options: ServiceOptions) -> tuple[tuple[Backend, ...], str]:
    """The first key for which enough ready endpoints are where we are."""
    own = place.labels.get(place.node, {})
    for key in options.topology_keys:
        if key == ANYWHERE:
            return ready, key
        value = place.node if key == HOSTNAME and not own.get(key) else own.get(key)
        if value is None:
            continue
        found = tuple([one for one in ready if _label_of(one, key, place) == value])
        if len(found) >= options.min_endpoints:
            return found, key
    return (), ""


def _label_of(backend: Backend, key: str, place: Place) -> str | None:
    labels = place.labels.get(backend.node, {})
    return backend.node if key == HOSTNAME and not labels.get(key) else labels.get(key)


def is_local(backend: Backend, place: Place) -> bool:
    """An endpoint is local by the name of its node alone, byte for byte; its zone does not matter."""
    return backend.node == place.node if backend.node else place.is_alone


def _local(backends: Sequence[Backend], place: Place) -> tuple[Backend, ...]:
    """Ready ones here, else those here that are on their way out and still serve."""
    here = [one for one in backends if is_local(one, place)]
    ready = tuple([one for one in here if one.is_ready])
    return ready or tuple([one for one in here if one.is_serving and one.is_terminating])


def _union(cluster: tuple[Backend, ...] | None, local: tuple[Backend, ...] | None) -> tuple[Backend, ...]:
    if not local:
        return cluster or ()
    if not cluster:
        return local
    return tuple(sorted({one.key: one for one in (*cluster, *local)}.values(), key=lambda one: one.key))

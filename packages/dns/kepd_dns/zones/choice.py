# SPDX-License-Identifier: Apache-2.0
"""Whose a name is: the longest suffix decides, by whole labels."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_network
from typing import Literal

import msgspec

from kepd_dns.cache.cache import Bounds
from kepd_dns.cache.entry import STALE_TTL_S
from kepd_dns.handover.state import Settings
from kepd_dns.upstreams.addresses import Server, read_server
from kepd_dns.wire.names import Malformed, labels, to_wire

Kind = Literal["own", "stub", "cluster", "other"]
MOST_PARENTS = 1024
OUTAGE_TTL_S = 5
"""Whoever is told something old of the cluster asks again soon."""


class Zone(msgspec.Struct, frozen=True):
    """Names of one kind. `label` is what metrics call it, `servers` of a stub domain."""

    number: int
    kind: Kind
    suffix: bytes
    label: str
    bounds: Bounds
    servers: tuple[Server, ...] = ()


class Zones:
    def __init__(self, zones: Iterable[Zone]) -> None:
        self.all = tuple(zones)
        self._by_suffix: Mapping[bytes, Zone] = {one.suffix: one for one in self.all}
        self.default = next(one for one in self.all if one.kind == "other")
        # Names have few parents.
        self._above = lru_cache(MOST_PARENTS)(self._search)

    def of(self, name: bytes) -> Zone:
        return self._by_suffix.get(name) or self._above(name[name[0] + 1 :] or name)

    def _search(self, name: bytes) -> Zone:
        zones, at = self._by_suffix, 0
        while length := name[at]:
            found = zones.get(name[at:])
            if found is not None:
                return found
            at += length + 1
        return self.default


def zones_of(settings: Settings) -> tuple[Zones, tuple[str, ...]]:
    """The zones, and what of the settings could not be read."""
    found: list[Zone] = [Zone(0, "other", b"\0", ".", _bounds(settings, Bounds(stale_s=settings.stale_s)))]
    faults = []
    local = Bounds(
        most_s=30,
        most_negative_s=5,
        stale_s=settings.stale_s if settings.outlives else min(30.0, settings.stale_s),
        stale_ttl_s=OUTAGE_TTL_S if settings.outlives else STALE_TTL_S,
        gives_stale_early=settings.is_alone,
    )
    bounds = _bounds(settings, local)
    if settings.has_cluster or settings.is_authoritative:
        kind: Kind = "cluster" if settings.has_cluster else "own"
        found.append(Zone(1, kind, to_wire(settings.zone), settings.zone, bounds))
    if settings.has_cluster:
        for text in settings.reverse_networks:
            for name in reverse_zones(text):
                found.append(Zone(len(found), "cluster", to_wire(name), name, bounds))
    for name, texts in settings.stub_domains.items():
        try:
            suffix = to_wire(name)
        except Malformed as error:
            faults.append(f"dns.stubDomains: {error}")
            continue
        servers = tuple(one for one in map(read_server, texts) if one is not None)
        found = [one for one in found if one.suffix != suffix or one.kind == "own"]
        if all(one.suffix != suffix for one in found):
            found.append(Zone(len(found) + 1, "stub", suffix, name, bounds_of_stub(settings), servers))
    return Zones(found), tuple(faults)


def is_beyond_schema(name: bytes, zone: bytes) -> bool:
    """Whether no rule of the Kubernetes DNS specification makes a name like this below `svc`: more labels than a host,
    or than a port and its protocol. A search list makes most of them."""
    if not name.endswith(SVC + zone):
        return False
    parts = labels(name[: -len(SVC + zone)] + b"\0")
    return len(parts) > 4 or (len(parts) == 4 and not (parts[0].startswith(b"_") and parts[1].startswith(b"_")))


SVC = b"\x03svc"


def bounds_of_stub(settings: Settings) -> Bounds:
    return _bounds(settings, Bounds(stale_s=settings.stale_s))


def _bounds(settings: Settings, bounds: Bounds) -> Bounds:
    """0 leaves what the zone has."""
    least_s = settings.ttl_min_s or bounds.least_s
    return msgspec.structs.replace(
        bounds,
        least_s=least_s,
        most_s=max(least_s, settings.ttl_max_s or bounds.most_s),
        most_negative_s=settings.negative_max_s or bounds.most_negative_s,
    )


def reverse_zones(network: str) -> list[str]:
    """Zones of in-addr.arpa and ip6.arpa that a network has, at whole labels."""
    found = ip_network(network, strict=False)
    step = 8 if found.version == 4 else 4
    prefix = -(-found.prefixlen // step) * step
    labels = prefix // step
    names = []
    for one in found.subnets(new_prefix=prefix):
        parts = one.network_address.reverse_pointer.split(".")
        suffix = parts[-2:]
        names.append(".".join((*parts[-2 - labels : -2], *suffix)))
        if len(names) >= MOST_REVERSE:
            break
    return names


MOST_REVERSE = 256

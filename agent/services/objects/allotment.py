# SPDX-License-Identifier: Apache-2.0
"""Gives Services of a bare node what an API server would have given them: an address, and an age.

Invariant: while a Service is there it keeps its address and the time at which it was first seen, over any restart; two
Services never have one address by allotment. A Service's own name says where to look first, so that the same Services
get the same addresses even where nothing is remembered.

Never: overrules an address that a manifest gives: whoever was allotted it before gets another one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import msgspec

from agent.model.kube_objects import Service
from agent.services.objects.addresses import read_range

MOST_TRIED = 1 << 16
Network = IPv4Network | IPv6Network


class Allotted(msgspec.Struct, frozen=True):
    """What one Service was given. `addresses` are in the order of its families."""

    seen: str
    addresses: tuple[str, ...] = ()


def allot(
    services: Iterable[Service], ranges: Iterable[str], before: Mapping[str, Allotted], now: str
) -> tuple[list[Service], dict[str, Allotted]]:
    services = list(services)
    networks = [ip_network(text, strict=False) for text in ranges if read_range(text) is not None]
    taken = {text for one in services for text in (one.spec.cluster_ip, *(one.spec.cluster_ips or ()))}
    wanting = [one for one in services if not one.spec.cluster_ip and one.spec.type != "ExternalName"]
    kept: dict[str, tuple[str, ...]] = {}
    for one in wanting:
        had = before.get(_name(one), Allotted(now)).addresses
        if had and not taken.intersection(had) and _fits(had, _networks(one, networks)):
            kept[_name(one)] = had
            taken.update(had)
    filled, known = [], {}
    for one in services:
        name = _name(one)
        addresses = kept.get(name, ())
        if one in wanting and not addresses:
            addresses = tuple(_free(name, _networks(one, networks), taken))
            taken.update(addresses)
        known[name] = Allotted(before[name].seen if name in before else now, addresses)
        filled.append(_with(one, addresses, known[name].seen))
    return filled, known


def _name(service: Service) -> str:
    return f"{service.metadata.namespace}/{service.metadata.name}"


def _networks(service: Service, networks: Sequence[Network]) -> list[Network]:
    """One for each family that the Service asks for; the first there is if it asks for none."""
    families = service.spec.ip_families or ()
    wanted = [int(family.removeprefix("IPv")) for family in families if family in ("IPv4", "IPv6")]
    if not wanted:
        return list(networks[:1])
    return [found for version in wanted for found in [one for one in networks if one.version == version][:1]]


def _fits(addresses: Sequence[str], networks: Sequence[Network]) -> bool:
    pairs = zip(map(ip_address, addresses), networks, strict=False)
    return len(addresses) == len(networks) and all(address in network for address, network in pairs)


def _free(name: str, networks: Iterable[Network], taken: set[str]) -> Iterator[str]:
    for network in networks:
        # Neither the first address nor the last one, which some programs take for something else.
        room = network.num_addresses - 2
        start = int.from_bytes(sha256(f"{name} {network.version}".encode()).digest()[:8], "big")
        for step in range(min(max(room, 0), MOST_TRIED)):
            text = str(network[1 + (start + step) % room])
            if text not in taken:
                yield text
                break


def _with(service: Service, addresses: tuple[str, ...], seen: str) -> Service:
    metadata, spec = service.metadata, service.spec
    if not metadata.creation_timestamp:
        metadata = msgspec.structs.replace(metadata, creation_timestamp=seen)
    if addresses:
        families = tuple("IPv6" if ":" in text else "IPv4" for text in addresses)
        spec = msgspec.structs.replace(spec, cluster_ip=addresses[0], cluster_ips=addresses, ip_families=families)
    return msgspec.structs.replace(service, metadata=metadata, spec=spec)

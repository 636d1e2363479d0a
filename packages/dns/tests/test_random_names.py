# SPDX-License-Identifier: Apache-2.0
"""Names of random Services against the Kubernetes DNS specification, as an oracle that is made of objects alone."""

import random
from collections.abc import Iterator
from ipaddress import ip_address

from kepd_dns.handover.state import EndpointName, Port, ServiceName
from kepd_dns.wire.names import to_text, to_wire
from kepd_dns.wire.question import NOERROR, NXDOMAIN
from kepd_dns.wire.records_text import TYPES, data_text
from kepd_dns.zones.own import OwnZone

NAMES, ZONE = 300, "cluster.local"
KINDS = ("A", "AAAA", "SRV", "PTR", "CNAME", "TXT")
Rows = dict[tuple[str, str], set[str]]


def drawn(draw: random.Random) -> list[ServiceName]:
    found, numbers = [], iter(range(1, 10_000))

    def address() -> str:
        number = next(numbers)
        return f"10.3.{number >> 8}.{number & 255}" if draw.random() < 0.6 else f"fd00:3::{number:x}"

    def ports() -> tuple[Port, ...]:
        some = draw.sample(["http", "dns", "", "metrics"], draw.randint(0, 3))
        return tuple(Port(next(numbers), name, draw.choice(["tcp", "udp"])) for name in some)

    for number in range(60):
        namespace, name = draw.choice(["shop", "default", "a"]), f"s{number}"
        kind = draw.choice(["cluster", "cluster", "headless", "headless", "external"])
        if kind == "external":
            found.append(ServiceName(namespace, name, external=f"db{number}.example.com"))
        elif kind == "headless":
            ends = [
                EndpointName(address(), draw.choice(["", f"pet-{one}"]), ports()) for one in range(draw.randint(0, 4))
            ]
            found.append(ServiceName(namespace, name, is_headless=True, endpoints=tuple(ends)))
        else:
            addresses = tuple(address() for _ in range(draw.randint(1, 2)))
            found.append(ServiceName(namespace, name, addresses, ports()))
    return found


def kind_of(address: str) -> str:
    return "AAAA" if ":" in address else "A"


def rows(services: list[ServiceName]) -> Rows:
    """Every record that there should be, by name and type."""
    found: Rows = {}

    def add(name: str, kind: str, data: str) -> None:
        found.setdefault((name, kind), set()).add(data)

    for one in services:
        base = f"{one.name}.{one.namespace}.svc.{ZONE}"
        if one.external:
            add(base, "CNAME", f"{one.external}.")
        for address in one.addresses:
            add(base, kind_of(address), address)
            add(ip_address(address).reverse_pointer, "PTR", f"{base}.")
        for port in one.ports:
            if port.name:
                add(f"_{port.name}._{port.protocol}.{base}", "SRV", f"{port.number} {base}.")
        for end in one.endpoints:
            host = f"{end.hostname or end.address.replace('.', '-').replace(':', '-')}.{base}"
            add(base, kind_of(end.address), end.address)
            add(host, kind_of(end.address), end.address)
            add(ip_address(end.address).reverse_pointer, "PTR", f"{host}.")
            for port in end.ports:
                if port.name:
                    add(f"_{port.name}._{port.protocol}.{base}", "SRV", f"{port.number} {host}.")
    return found


def asked(draw: random.Random, wanted: Rows) -> Iterator[str]:
    """Names that are there, names above them, and names beside them."""
    known = sorted({name for name, _ in wanted})
    for _ in range(NAMES):
        name = draw.choice(known)
        match draw.randrange(5):
            case 0:
                yield name.partition(".")[2] if not name.endswith(".arpa") else name
            case 1 if not name.endswith(".arpa"):
                yield f"x.{name}"
            case 2 if not name.endswith(".arpa"):
                yield f"no-{name}"
            case _:
                yield "".join(draw.choice([sign.upper(), sign]) for sign in name) if draw.random() < 0.3 else name


def answer(zone: OwnZone, name: str, kind: str) -> tuple[int, set[str], set[int], bool]:
    """Code, data, times to live, and whether the start of the zone is told beside."""
    found = zone.look(to_wire(name.lower()), TYPES[kind])
    data = {data_text(one.type, one.data) for one in found.answers}
    if kind == "SRV":
        data = {" ".join(text.split()[2:]) if len(text.split()) == 4 else text for text in data}
    return found.code, data, {one.ttl for one in found.answers}, bool(found.authority)


def test_three_hundred_random_names_are_answered_as_the_specification_says() -> None:
    """DNS-70 to DNS-73: data, time to live, names without data, and names that are not there; also after changes."""
    draw = random.Random(3)
    services = drawn(draw)
    zone = OwnZone(ZONE, ("169.254.20.10",), 7)
    for one in [*services[20:], *services, *services[:10]]:
        zone.put(one)
    for one in services[::7]:
        zone.drop(one.key)
    left = [one for number, one in enumerate(services) if number % 7]
    wanted = rows(left)
    exist = {name for name, _ in wanted}
    above = {name[at + 1 :] for name in exist for at, sign in enumerate(name) if sign == "."}
    seen = set()
    for name in asked(draw, wanted | rows(services)):
        plain = name.lower()
        for kind in KINDS:
            code, data, ttls, has_start = answer(zone, name, kind)
            target = wanted.get((plain, "CNAME"), set())
            want = wanted.get((plain, kind), set()) or target
            is_there = plain in exist or (plain in above and not plain.endswith(".arpa"))
            if plain.endswith(".arpa") and not is_there:
                # Addresses that no Service has are not ours to deny; whoever asks here is sent elsewhere.
                assert not zone.is_own(to_wire(plain)), (name, kind)
                continue
            assert (code, data) == (NOERROR if is_there else NXDOMAIN, want), (name, kind)
            assert ttls <= {5}, (name, kind)
            assert has_start == (not want), (name, kind)
            seen.add((code, bool(want)))
    assert seen == {(NOERROR, True), (NOERROR, False), (NXDOMAIN, False)}


def test_a_search_path_ends_at_the_nearest_service() -> None:
    """DNS-70: each name before it is denied, so that a resolver goes on."""
    draw = random.Random(4)
    services = [one for one in drawn(draw) if one.addresses]
    zone = OwnZone(ZONE, (), 1)
    for one in services:
        zone.put(one)
    for one in services:
        search = [f"{one.namespace}.svc.{ZONE}", f"svc.{ZONE}", ZONE]
        for short, first in ((one.name, 0), (f"{one.name}.{one.namespace}", 1), (f"{one.name}.{one.namespace}.svc", 2)):
            codes = [zone.look(to_wire(f"{short}.{suffix}"), TYPES["A"]).code for suffix in search[: first + 1]]
            assert codes == [NXDOMAIN] * first + [NOERROR], (short, codes)
            assert to_text(to_wire(f"{short}.{search[first]}")) == f"{one.name}.{one.namespace}.svc.{ZONE}."

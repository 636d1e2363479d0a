# SPDX-License-Identifier: Apache-2.0
"""Names of Services without an API server: a zone in memory, changed Service by Service.

Each Service brings its own records, and names above them exist as long as one of them does. A lookup is one step in a
dictionary, or two. Source of behaviour: Kubernetes DNS specification 1.1.0.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from ipaddress import ip_address

import msgspec

from kepd_dns.handover.state import EndpointName, ServiceName
from kepd_dns.wire.names import Malformed, from_labels, is_within, labels, suffixes, to_wire
from kepd_dns.wire.question import AAAA, CNAME, NOERROR, NS, NXDOMAIN, PTR, SOA, SRV, TXT, A
from kepd_dns.wire.writing import WrittenRecord

TTL_S = 5
VERSION, VERSION_TTL_S = b"1.1.0", 28800
MOST_STEPS = 8
LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?\Z")
PORT_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,13}[a-z0-9])?\Z")
Records = dict[int, list[bytes]]


class OwnAnswer(msgspec.Struct, frozen=True):
    """What the zone says. `target`: the chain goes on at a name elsewhere."""

    code: int
    answers: tuple[WrittenRecord, ...] = ()
    authority: tuple[WrittenRecord, ...] = ()
    extra: tuple[WrittenRecord, ...] = ()
    target: bytes = b""


def reverse_name(address: str) -> bytes:
    return to_wire(ip_address(address).reverse_pointer)


def dashed(address: str) -> str:
    """The label that stands for an endpoint without a hostname. `fd00::7` is `fd00--7`."""
    return str(ip_address(address)).replace(".", "-").replace(":", "-").strip("-") or "0"


def faults(service: ServiceName) -> Iterator[str]:
    """Names that cannot be told; the rest of the Service can."""
    for what, name in (("namespace", service.namespace), ("name", service.name)):
        if not LABEL.match(name):
            yield f"{what} {name!r} is no label of the DNS; the Service has no names"
    for port in service.ports:
        if port.name and not PORT_LABEL.match(port.name):
            yield f"port {port.name!r} is no label of at most 15 letters; it has no SRV records"
    for one in service.endpoints:
        if one.hostname and not LABEL.match(one.hostname):
            yield f"hostname {one.hostname!r} is no label of the DNS; the endpoint is named by its address"


class OwnZone:
    """`serial` is the number of the state. With `is_whole` all names of the zone are ours, without it only those that
    Services have. Changed by its owner alone."""

    def __init__(self, zone: str, addresses: Iterable[str] = (), serial: int = 0, *, is_whole: bool = True) -> None:
        self.zone = to_wire(zone)
        self.serial = serial
        self.is_whole = is_whole
        self._records: dict[bytes, Records] = {}
        self._exists: Counter[bytes] = Counter()
        self._services: dict[str, tuple[ServiceName, list[tuple[bytes, int, bytes]]]] = {}
        self._pods: set[tuple[bytes, bytes]] = set()
        self._server = to_wire(f"ns.dns.{zone}")
        if not is_whole:
            return
        self._add(to_wire(f"dns-version.{zone}"), TXT, bytes((len(VERSION),)) + VERSION)
        self._add(self.zone, NS, self._server)
        for kind, data in _addresses(addresses):
            self._add(self._server, kind, data)

    @property
    def services(self) -> int:
        return len(self._services)

    def put(self, service: ServiceName) -> None:
        before = self._services.get(service.key)
        if before is not None and before[0] == service:
            return
        self.drop(service.key)
        added = list(_records_of(service, self.zone))
        for name, kind, data in added:
            self._add(name, kind, data)
        self._services[service.key] = service, added

    def drop(self, key: str) -> None:
        before = self._services.pop(key, None)
        for name, kind, data in before[1] if before is not None else ():
            self._take(name, kind, data)

    def set_pods(self, pods: Iterable[tuple[str, str]]) -> None:
        found = set()
        for namespace, address in pods:
            if LABEL.match(namespace):
                found.add((dashed(address).encode(), namespace.encode()))
        self._pods = found

    def is_own(self, name: bytes) -> bool:
        """Names of the zone, and addresses that have a name in it."""
        return name in self._records or (self.is_whole and is_within(name, self.zone))

    def names_of(self, key: str) -> set[bytes]:
        """Those that a Service has."""
        known = self._services.get(key)
        return {name for name, _, _ in known[1]} if known is not None else set()

    def meant(self, name: bytes) -> str:
        """Of `SERVICE.NAMESPACE.svc` that is not there: the same Service elsewhere, else one of nearly this name."""
        from difflib import get_close_matches

        parts = labels(name)
        if parts[2:3] != (b"svc",) or not is_within(name, self.zone):
            return ""
        words = [one.decode("ascii", "replace") for one in parts]
        found = sorted(key for key in self._services if key.rpartition("/")[2] == words[0])
        found = found or get_close_matches(f"{words[1]}/{words[0]}", self._services, n=1, cutoff=0.7)
        return ".".join([*reversed(found[0].split("/")), *words[2:]]) if found else ""

    def look(self, name: bytes, kind: int) -> OwnAnswer:
        """The answer to a question, whose chain is followed within the zone (section 7)."""
        chain: list[WrittenRecord] = []
        seen = {name}
        while True:
            records = self._records.get(name)
            target = records.get(CNAME) if records is not None else None
            if target is None or kind == CNAME:
                return self._at(name, kind, chain, records)
            chain.append(WrittenRecord(name, CNAME, TTL_S, target[0]))
            name = target[0]
            if not self.is_own(name):
                return OwnAnswer(NOERROR, tuple(chain), target=name)
            if name in seen or len(seen) > MOST_STEPS:
                return OwnAnswer(NOERROR, tuple(chain))
            seen.add(name)

    def _at(self, name: bytes, kind: int, chain: list[WrittenRecord], records: Records | None) -> OwnAnswer:
        if records is not None and kind in records:
            ttl = VERSION_TTL_S if kind == TXT else TTL_S
            found = [WrittenRecord(name, kind, ttl, data) for data in records[kind]]
            extra = tuple(self._beside(found)) if kind == SRV else ()
            return OwnAnswer(NOERROR, (*chain, *found), extra=extra)
        if name == self.zone and kind == SOA:
            return OwnAnswer(NOERROR, (*chain, self.soa()))
        pod = self._pod(name)
        if pod is not None:
            data = [one for which, one in _addresses((pod,)) if which == kind]
            if data:
                return OwnAnswer(NOERROR, (*chain, WrittenRecord(name, kind, TTL_S, data[0])))
        is_there = records is not None or pod is not None or name in self._exists or name == self.zone
        code = NOERROR if is_there else NXDOMAIN
        return OwnAnswer(code, tuple(chain), (self.soa(),))

    def _beside(self, found: Iterable[WrittenRecord]) -> Iterator[WrittenRecord]:
        """Addresses of targets (RFC 2782)."""
        for target in dict.fromkeys(one.data[6:] for one in found):
            for kind in (A, AAAA):
                for data in self._records.get(target, {}).get(kind, ()):
                    yield WrittenRecord(target, kind, TTL_S, data)

    def _pod(self, name: bytes) -> str | None:
        """Only of a pod that is here with that address and namespace."""
        parts = labels(name)
        if len(parts) < 4 or parts[2] != b"pod" or from_labels(parts[3:]) != self.zone or parts[:2] not in self._pods:
            return None
        text = parts[0].decode()
        is_old = text.count("-") == 3 and text.replace("-", "").isdigit()
        return text.replace("-", "." if is_old else ":")

    def soa(self) -> WrittenRecord:
        numbers = b"".join(one.to_bytes(4, "big") for one in (self.serial & 0xFFFFFFFF, 7200, 1800, 86400, TTL_S))
        return WrittenRecord(self.zone, SOA, TTL_S, self._server + b"\x0ahostmaster" + self.zone + numbers)

    def _add(self, name: bytes, kind: int, data: bytes) -> None:
        found = self._records.setdefault(name, {}).setdefault(kind, [])
        found.append(data)
        if kind == PTR:
            found.sort()
        else:
            self._exists.update(self._above(name))

    def _take(self, name: bytes, kind: int, data: bytes) -> None:
        records = self._records[name]
        records[kind].remove(data)
        if not records[kind]:
            del records[kind]
        if not records:
            del self._records[name]
        if kind != PTR:
            self._exists -= Counter(self._above(name))

    def _above(self, name: bytes) -> Iterator[bytes]:
        """Names that exist because this one does."""
        for one in suffixes(name):
            if one == self.zone:
                return
            yield one


def _addresses(texts: Iterable[str]) -> Iterator[tuple[int, bytes]]:
    for text in texts:
        packed = ip_address(text).packed
        yield (A if len(packed) == 4 else AAAA), packed


def _records_of(service: ServiceName, zone: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    if not LABEL.match(service.namespace) or not LABEL.match(service.name):
        return
    base = from_labels((service.name.encode(), service.namespace.encode(), b"svc"))[:-1] + zone
    if service.external:
        try:
            yield base, CNAME, to_wire(service.external)
        except Malformed:
            return
    elif service.is_headless:
        yield from _headless(service, base)
    else:
        for address in dict.fromkeys(service.addresses):
            for kind, data in _addresses((address,)):
                yield base, kind, data
            yield reverse_name(address), PTR, base
        for port in service.ports:
            if service.addresses and PORT_LABEL.match(port.name):
                yield _port_name(port.name, port.protocol, base), SRV, _srv(100, port.number, base)


def _headless(service: ServiceName, base: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    targets: dict[tuple[bytes, str, str, int], None] = {}
    seen: set[tuple[str, bytes]] = set()
    for one in service.endpoints:
        host = _host(one, base)
        if (one.address, host) not in seen:
            for kind, data in _addresses((one.address,)):
                if not any(address == one.address for address, _ in seen):
                    yield base, kind, data
                yield host, kind, data
            if not any(address == one.address for address, _ in seen):
                yield reverse_name(one.address), PTR, host
            seen.add((one.address, host))
        for port in one.ports:
            if PORT_LABEL.match(port.name):
                targets[host, port.name, port.protocol, port.number] = None
    counts = Counter((name, protocol) for _, name, protocol, _ in targets)
    for host, name, protocol, number in targets:
        weight = max(1, 100 // counts[name, protocol])
        yield _port_name(name, protocol, base), SRV, _srv(weight, number, host)


def _host(endpoint: EndpointName, base: bytes) -> bytes:
    label = endpoint.hostname if LABEL.match(endpoint.hostname) else dashed(endpoint.address)
    return bytes((len(label),)) + label.encode() + base


def _port_name(port: str, protocol: str, base: bytes) -> bytes:
    return from_labels((f"_{port}".encode(), f"_{protocol.lower()}".encode()))[:-1] + base


def _srv(weight: int, number: int, target: bytes) -> bytes:
    return b"\0\0" + weight.to_bytes(2, "big") + number.to_bytes(2, "big") + target

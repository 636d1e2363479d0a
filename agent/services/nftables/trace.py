# SPDX-License-Identifier: Apache-2.0
"""Follows one new connection through the table, element by element, and prints elements in nft's own words for people.

The elements are those that should be there or those that a dump of the kernel brought. Each step names the map, what
was looked up. That these steps are the kernel's own is what the packet tests prove.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from agent.model.services.nft_table import MAPS, Content, Data, Family, MapKind, TableSettings
from agent.model.services.report import TraceStep
from agent.model.services.service import Address, Protocol
from agent.services.nftables.elements import HASHES, NUMBER, PORT, PREFIXES, PROTOCOLS
from agent.services.objects.addresses import address_of, endpoint_key

Verdict = Literal["dnat", "relay", "drop", "reject", "pass"]
BEHIND_FIREWALL = {
    "fw_rj": "rj",
    "fw_cluster": "x_cluster",
    "fw_local": "x_local",
    "nfw_rj": "rj",
    "nfw_cluster": "n_cluster",
    "nfw_local": "n_local",
}
EPS_OF = {prefix: eps for eps, prefix in PREFIXES.items()}
PROTOCOL_NAMES = {6: "tcp", 17: "udp", 132: "sctp"}
SIZES = {"proto": 4, "port": 4, "slot": 4, "number": 4}


class Packet(msgspec.Struct, frozen=True, gc=False):
    """The first packet of a connection. `is_from_host`, `is_to_host`: that end is an address of this node."""

    source: Address
    target: Address
    protocol: Protocol
    port: int
    is_from_host: bool = False
    is_to_host: bool = False
    is_from_pod_interface: bool = False


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Where it ends: at one of `targets` (address, port), each as likely as it stands there often. `is_masqueraded`
    None: only if it comes back to where it started."""

    verdict: Verdict
    steps: tuple[TraceStep, ...]
    targets: tuple[tuple[bytes, int], ...] = ()
    is_masqueraded: bool | None = False
    affinity_s: int = 0


class TraceEnded(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict)
        self.verdict: Verdict = verdict


def trace(content: Content, settings: TableSettings, packet: Packet) -> Outcome:
    return _TableWalk(content, settings, packet).outcome()


class _TableWalk:
    def __init__(self, content: Content, settings: TableSettings, packet: Packet) -> None:
        self._content = content
        self._settings = settings
        self._packet = packet
        self._steps: list[TraceStep] = []
        self._is_marked = False
        service = PROTOCOLS[packet.protocol] + PORT.pack(packet.port, 0)
        self._keys = {"": packet.target.packed + service, "np": service}

    def outcome(self) -> Outcome:
        try:
            self._dispatch()
        except TraceEnded as end:
            return Outcome(end.verdict, tuple(self._steps), is_masqueraded=self._is_marked and end.verdict == "pass")
        except Arrived as arrived:
            hairpin = any(self._is_hairpin(data) for data in arrived.targets)
            return Outcome(
                "dnat",
                tuple(self._steps),
                tuple((data[:-4], PORT.unpack(data[-4:])[0]) for data in arrived.targets),
                is_masqueraded=True if self._is_marked else None if hairpin else False,
                affinity_s=arrived.affinity_s,
            )
        self._note("the rest of the ruleset", "no map knows it")
        return Outcome("pass", tuple(self._steps), is_masqueraded=self._is_marked)

    def _note(self, place: str, found: str) -> None:
        self._steps.append(TraceStep(place, found))

    def _dispatch(self) -> None:
        target = self._packet.target.packed
        is_cluster_ip = target in self._elements("cluster_ips")
        if is_cluster_ip and self._comes_from_elsewhere():
            self._mark("dispatch", "to a cluster IP from outside the cluster")
        self._vmap("services", "")
        if self._is_node_port_address(target):
            self._vmap("nodeports", "np")
        self._unserved(is_cluster_ip=is_cluster_ip)

    def _unserved(self, *, is_cluster_ip: bool) -> None:
        """After translation, which another proxy may have done: its rules are not followed here."""
        if self._packet.is_to_host and not self._packet.is_from_host:
            return
        if self._keys[""] in self._elements("passed"):
            self._note("unserved passed", "without endpoints it passes unchanged")
            return
        if is_cluster_ip:
            self._note("unserved cluster_ips", "a cluster IP without such a port")
            raise TraceEnded("reject")
        if self._within("svc_cidrs", self._packet.target.packed):
            self._note("unserved svc_cidrs", "no Service of kepd has it: dropped unless another proxy translates it")
            raise TraceEnded("drop")

    def _comes_from_elsewhere(self) -> bool:
        if self._settings.masquerades_all:
            return True
        return self._settings.detection.mode != "none" and not self._is_from_pod()

    def _is_from_pod(self) -> bool:
        mode = self._settings.detection.mode
        if mode == "interface":
            return self._packet.is_from_pod_interface
        return mode == "cidrs" and self._within("pod_cidrs", self._packet.source.packed)

    def _is_node_port_address(self, target: bytes) -> bool:
        if self._settings.has_node_ports_everywhere:
            return self._packet.is_to_host
        return target in self._elements("np_addrs")

    def _mark(self, place: str, found: str) -> None:
        self._is_marked = True
        self._note(place, f"{found}: masqueraded")

    def _elements(self, name: str) -> Mapping[bytes, Data]:
        return self._content.get(name, {})

    def _within(self, name: str, address: bytes, before: bytes = b"") -> bool:
        item = before + address
        return any(key[: len(item)] <= item <= key[len(item) :] for key in self._elements(name))

    def _vmap(self, name: str, prefix: str) -> None:
        data = self._elements(name).get(self._keys[prefix])
        if not isinstance(data, str):
            return
        self._note(name, f"goto {data}" if data else "drop")
        if not data:
            raise TraceEnded("drop")
        self._chain(data)

    def _chain(self, name: str) -> None:
        if name == "rj":
            raise TraceEnded("reject")
        if name in BEHIND_FIREWALL:
            self._firewall(is_node_port=name.startswith("n"))
            self._chain(BEHIND_FIREWALL[name])
        elif name in ("x_cluster", "n_cluster"):
            self._mark(name, "from outside, any endpoint may get it")
            self._second(name)
            raise TraceEnded("drop")
        elif name in ("x_local", "n_local"):
            self._local(name)
        else:
            self._choose(name)

    def _firewall(self, *, is_node_port: bool) -> None:
        allowed, key = ("np_allow", "np") if is_node_port else ("fw_allow", "")
        if self._within(allowed, self._packet.source.packed, self._keys[key]):
            self._note(allowed, "the source is in a range")
            return
        self._note(allowed, "the source is in no range")
        raise TraceEnded("drop")

    def _second(self, name: str, policy: str = "cluster") -> None:
        is_node_port = name.startswith("n_")
        self._vmap(f"np_{policy}" if is_node_port else f"svc_{policy}", "np" if is_node_port else "")

    def _local(self, name: str) -> None:
        if self._is_from_pod():
            self._note(name, "from a pod of this cluster")
            self._second(name)
        if self._packet.is_from_host:
            self._mark(name, "from this node")
            self._second(name)
        self._note(name, "from elsewhere, endpoints of this node only")
        self._second(name, "local")
        raise TraceEnded("drop")

    def _choose(self, name: str) -> None:
        prefix, count, *timeout = name.split("_")
        hashing = next((kind for kind, letter in HASHES.items() if prefix.startswith(letter)), "")
        prefix = prefix[bool(hashing) :]
        eps = EPS_OF[prefix]
        key = self._keys["np" if prefix.startswith("n") else ""]
        targets = [self._elements(eps).get(key + NUMBER.pack(slot)) for slot in range(int(count))]
        found = [data for data in targets if isinstance(data, bytes)]
        if hashing and found:
            what = "addresses and ports" if hashing == "flow" else "the client's address"
            self._note(eps, f"one of {len(set(found))} by a hash of {what}, {count} slots")
            raise Arrived(found, 0)
        if not found:
            self._note(eps, "no endpoint in any slot")
            raise TraceEnded("drop")
        self._note(eps, f"one of {len(found)}")
        raise Arrived(found, int(timeout[0]) if timeout else 0)

    def _is_hairpin(self, data: bytes) -> bool:
        address = data[:-4]
        pair = address + address + PROTOCOLS[self._packet.protocol] + data[-4:]
        return address == self._packet.source.packed and pair in self._elements("hairpin")


class Arrived(Exception):
    def __init__(self, targets: list[bytes], affinity_s: int) -> None:
        super().__init__(len(targets))
        self.targets = targets
        self.affinity_s = affinity_s


def told_endpoint(data: bytes) -> str:
    return endpoint_key(address_of(data[:-4]).text, int.from_bytes(data[-4:-2], "big"))


def told_key(name: str, key: bytes, family: Family) -> str:
    """`10.96.0.10 . tcp . 80`; a range as `first-last` of what differs."""
    layout = MAPS[name]
    if layout.kind is MapKind.INTERVAL:
        half = len(key) // 2
        first, last = _parts(layout.key, key[:half], family), _parts(layout.key, key[half:], family)
        pairs = zip(first, last, strict=True)
        return " . ".join(low if low == high else f"{low}-{high}" for low, high in pairs)
    return " . ".join(_parts(layout.key, key, family))


def _parts(names: tuple[str, ...], key: bytes, family: Family) -> list[str]:
    found, at = [], 0
    for name in names:
        size = SIZES.get(name, 4 if family == "IPv4" else 16)
        found.append(_part(name, key[at : at + size]))
        at += size
    return found


def _part(name: str, piece: bytes) -> str:
    match name:
        case "address":
            return address_of(piece).text
        case "proto":
            return PROTOCOL_NAMES.get(piece[0], str(piece[0]))
        case "port":
            return str(int.from_bytes(piece[:2], "big"))
        case "slot":
            return str(NUMBER.unpack(piece)[0])
    return f"0x{piece.hex()}"


def told_data(data: Data) -> str:
    if data is None:
        return ""
    if isinstance(data, str):
        return f"goto {data}" if data else "drop"
    return f"0x{data.hex()}" if len(data) == SIZES["number"] else told_endpoint(data)

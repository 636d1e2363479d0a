# SPDX-License-Identifier: Apache-2.0
"""Who gets past policies on one bridge: frames of every kind from a pod that is refused, and what honest pods need."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.named_table import NamedTable
from agent.model.component import State
from agent.model.services.nft_error import RulesRefused
from agent.policies.manifest.objects import PolicedPod
from agent.policies.rules import bridge_text, nft_text
from agent.policies.rules.table import TABLE
from tests.lab.namespace import Namespace
from tests.policies.fake_table import FakeBridge
from tests.policies.running import GivenManifests, GivenPods, Running, running
from tests.policies.test_plane import policy

pytestmark = pytest.mark.node
NAMES = ("attacker", "victim", "friend", "one", "other")
PORT, FROM = 5353, 7777
ALL = "ff:ff:ff:ff:ff:ff"
FROM_FRIEND = policy("only-friend", "victim", ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}])
WITHIN_S = 20.0


def v4(name: str) -> str:
    return f"10.0.0.{16 + NAMES.index(name)}"


def v6(name: str) -> str:
    return f"fd00::{16 + NAMES.index(name):x}"


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def total(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    found = sum(struct.unpack(f"!{len(data) // 2}H", data))
    found = (found >> 16) + (found & 0xFFFF)
    return ~(found + (found >> 16)) & 0xFFFF


def ip4(source: str, target: str, body: bytes, protocol: int = 17) -> bytes:
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0) + ends
    return head[:10] + struct.pack("!H", total(head)) + head[12:] + body


def ip6(source: str, target: str, body: bytes, following: int = 17, hops: int = 64) -> bytes:
    """With the checksum that UDP and ICMPv6 have to have."""
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
    at = 6 if following == 17 else 2
    made = total(ends + struct.pack("!IHBB", len(body), 0, 0, following) + body)
    body = body[:at] + struct.pack("!H", made) + body[at + 2 :]
    return struct.pack("!IHBB", 6 << 28, len(body), following, hops) + ends + body


def udp(data: bytes, port: int = FROM, to: int = PORT) -> bytes:
    return struct.pack("!HHHH", port, to, 8 + len(data), 0) + data


def arp(kind: int, sender: bytes, source: str, target: str) -> bytes:
    told = struct.pack("!HHBBH", 1, 0x0800, 6, 4, kind) + sender + socket.inet_aton(source)
    return told + bytes(6) + socket.inet_aton(target)


def advertised(target: str, link: bytes, kind: int = 136, option: int = 2) -> bytes:
    return (
        struct.pack("!BBHI", kind, 0, 0, 0x60000000)
        + socket.inet_pton(socket.AF_INET6, target)
        + bytes([option, 1])
        + link
    )


TAGS = {
    "no tag": (b"", {4: b"\x08\x00", 6: b"\x86\xdd"}),
    "VLAN 0": (b"\x81\x00\0\0", {4: b"\x08\x00", 6: b"\x86\xdd"}),
    "VLAN 0 twice": (b"\x81\x00\0\0\x81\x00\0\0", {4: b"\x08\x00", 6: b"\x86\xdd"}),
    "802.1ad and 802.1Q": (b"\x88\xa8\0\0\x81\x00\0\0", {4: b"\x08\x00", 6: b"\x86\xdd"}),
}


class Bridge:
    """Five pods on a bridge as `kepd setup` has it, and what each of them hears, as frames."""

    def __init__(self) -> None:
        self.node = Namespace()
        self.pods = {name: Namespace() for name in NAMES}
        self.macs: dict[str, bytes] = {}
        self.ears: dict[str, socket.socket] = {}
        self.mouths: dict[str, socket.socket] = {}

    def build(self) -> None:
        node = self.node
        node.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
                 "net.ipv6.conf.default.accept_dad=0", "net.bridge.bridge-nf-call-iptables=1",
                 "net.bridge.bridge-nf-call-ip6tables=1")  # fmt: skip
        node.run("ip", "link", "add", "cni0", "type", "bridge", "mcast_snooping", "0")
        for one in ("10.0.0.1/24", "fd00::1/64"):
            node.run("ip", "address", "add", one, "dev", "cni0", *(("nodad",) if ":" in one else ()))
        node.run("ip", "link", "set", "cni0", "up")
        for name, inside in self.pods.items():
            inside.run("sysctl", "-q", "-w", "net.ipv6.conf.default.accept_dad=0")
            node.run("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", inside.path)
            node.run("ip", "link", "set", f"v-{name}", "master", "cni0", "up")
            node.run("bridge", "link", "set", "dev", f"v-{name}", "hairpin", "on")
            inside.run("ip", "address", "add", f"{v4(name)}/24", "broadcast", "10.0.0.255", "dev", "eth0")
            inside.run("ip", "address", "add", f"{v6(name)}/64", "dev", "eth0", "nodad")
            inside.run("ip", "link", "set", "eth0", "up")
            inside.run("ip", "route", "add", "default", "via", "10.0.0.1")
            self.macs[name] = mac(inside.run("ip", "-o", "link", "show", "eth0").split("link/ether ")[1].split()[0])
            self.ears[name], self.mouths[name] = (inside.call(self._raw) for _ in range(2))

    @staticmethod
    def _raw() -> socket.socket:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        made.bind(("eth0", 0))
        made.setblocking(False)
        return made

    def send(self, name: str, to: str, frame: bytes) -> None:
        """`to` is the name of a pod, or an address of links."""
        target = self.macs[to] if to in self.macs else mac(to)
        self.mouths[name].send(target + self.macs[name] + frame)

    def heard(self, name: str) -> Iterator[bytes]:
        """What has come to a pod since the last time; nothing that it sent itself."""
        while True:
            try:
                frame, (_, _, kind, *_) = self.ears[name].recvfrom(4096)
            except BlockingIOError:
                return
            if kind != socket.PACKET_OUTGOING:
                yield frame

    async def until(self, name: str, words: bytes) -> list[bytes]:
        """All frames that a pod hears until one has these words. They come in order: all is sent by one processor."""
        found: list[bytes] = []
        async with asyncio.timeout(WITHIN_S):
            while not any(words in one for one in found):
                found += self.heard(name)
                await asyncio.sleep(0.005)
        return found

    def close(self) -> None:
        for one in (*self.ears.values(), *self.mouths.values()):
            one.close()
        for place in (self.node, *self.pods.values()):
            place.close()

    def datagram(self, name: str, data: bytes, to: str, source: str = "") -> None:
        """As a process sends it that may nothing."""
        family = socket.AF_INET6 if ":" in to else socket.AF_INET
        inside = self.pods[name]
        index = inside.call(lambda: socket.if_nametoindex("eth0"))
        with inside.call(lambda: socket.socket(family, socket.SOCK_DGRAM)) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((source or ("::" if ":" in to else ""), FROM))
            one.sendto(data, (to, PORT, 0, index) if ":" in to else (to, PORT))


@pytest.fixture(scope="module")
def bridge() -> Iterator[Bridge]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    made = Bridge()
    try:
        made.build()
        yield made
    finally:
        made.close()
        os.sched_setaffinity(0, before)


@asynccontextmanager
async def enforced(bridge: Bridge, /, *objects: Any, **more: Any) -> AsyncIterator[Running]:
    node = bridge.node
    tables = {
        family: NamedTable(family, TABLE, command=node.command("nft"), opens=lambda: node.call(open_socket))
        for family in ("inet", "bridge")
    }
    flows = Conntrack(opens=lambda: node.call(open_socket))
    pods = [
        PolicedPod(f"uid-{name}", "default", name, (("app", name),), (v4(name), v6(name)), links=(f"v-{name}",))
        for name in NAMES
    ]
    given: dict[str, Any] = {"bridge": tables["bridge"], **more}
    try:
        async with running(
            GivenManifests(*objects), GivenPods(*pods), table=tables["inet"], flows=flows, **given
        ) as made:  # type: ignore[arg-type]
            await made.plane.hold("uid-victim")
            for name in NAMES:
                list(bridge.heard(name))
            yield made
    finally:
        await flows.close()
        for one in tables.values():
            one.close()
        node.run("nft", "-f", "-", text=nft_text.REMOVAL + bridge_text.REMOVAL)


def forbidden(bridge: Bridge) -> Iterator[tuple[str, str, bytes]]:
    """What an attacker with raw sockets sends to the victim: what it is, to which link, and the frame's rest."""
    me = bridge.macs["attacker"]
    ends = {4: (v4("attacker"), v4("victim")), 6: (v6("attacker"), v6("victim"))}
    make = {4: ip4, 6: ip6}
    for tag, (words, kinds) in TAGS.items():
        for family, kind in kinds.items():
            for link in ("victim", ALL):
                name = f"{tag}, IPv{family}, {'broadcast' if link == ALL else 'unicast'}"
                yield name, link, words + kind + make[family](*ends[family], udp(b"hostile"))
    for family, protocol in ((4, b"\0\x21"), (6, b"\0\x57")):
        inner = protocol + make[family](*ends[family], udp(b"hostile"))
        yield f"PPPoE, IPv{family}", "victim", b"\x88\x64\x11\0\0\x01" + struct.pack("!H", len(inner)) + inner
    for source in (v4("friend"), "10.0.0.1", "192.0.2.7", "0.0.0.0"):
        for target in (v4("victim"), "10.0.0.255", "255.255.255.255", "224.0.0.251"):
            yield f"source {source} to {target}", "victim", b"\x08\x00" + ip4(source, target, udp(b"hostile"))
    for source in (v6("friend"), "fd00::1", "fe80::1234", "::"):
        for target in (v6("victim"), "ff02::1", "ff02::fb"):
            yield f"source {source} to {target}", "victim", b"\x86\xdd" + ip6(source, target, udp(b"hostile"))
    echo = struct.pack("!BBHHH", 8, 0, total(b"\x08\0\0\0\0\x01\0\x01hostile\0"), 1, 1) + b"hostile\0"
    yield "ICMP echo to all", ALL, b"\x08\x00" + ip4(v4("attacker"), "10.0.0.255", echo, 1)
    echo6 = struct.pack("!BBHHH", 128, 0, 0, 1, 1) + b"hostile"
    yield "ICMPv6 echo to all", "33:33:00:00:00:01", b"\x86\xdd" + ip6(v6("attacker"), "ff02::1", echo6, 58)
    for kind in (1, 2):
        yield f"ARP {kind} as friend", ALL, b"\x08\x06" + arp(kind, me, v4("friend"), v4("victim"))
    yield "ARP in VLAN 0 as friend", ALL, b"\x81\0\0\0\x08\x06" + arp(2, me, v4("friend"), v4("victim"))
    for source in (v6("attacker"), "fe80::1234", v6("friend")):
        body = advertised(v6("friend"), me)
        yield f"advertisement by {source}", "victim", b"\x86\xdd" + ip6(source, v6("victim"), body, 58, 255)
    asked = advertised(v6("victim"), me, 135, 1)
    yield "solicitation as friend", "victim", b"\x86\xdd" + ip6(v6("friend"), v6("victim"), asked, 58, 255)
    router = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0) + b"\x01\x01" + me
    yield "router's advertisement", "33:33:00:00:00:01", b"\x86\xdd" + ip6("fe80::1234", "ff02::1", router, 58, 255)


def is_hostile(bridge: Bridge, frame: bytes) -> bool:
    """The attacker may ask for neighbours, and say which groups it is in."""
    claims = (
        socket.inet_aton(v4("friend")),
        *(socket.inet_pton(socket.AF_INET6, one) for one in (v6("friend"), "fe80::1234")),
    )
    return b"hostile" in frame or (frame[6:12] == bridge.macs["attacker"] and any(one in frame for one in claims))


@pytest.mark.parametrize("when", ["before the victim has answered", "after it has answered its friend"])
async def test_nothing_of_a_refused_source_arrives_whatever_frame_it_is_in(bridge: Bridge, when: str) -> None:
    """POL-16."""
    arrived = {}
    async with enforced(bridge, FROM_FRIEND):
        bridge.node.run("conntrack", "-F")
        if when.startswith("after"):
            bridge.send("friend", "victim", b"\x08\x00" + ip4(v4("friend"), v4("victim"), udp(b"hello")))
            bridge.send("friend", "victim", b"\x86\xdd" + ip6(v6("friend"), v6("victim"), udp(b"hello6")))
            await bridge.until("victim", b"hello6")
            bridge.send("victim", "friend", b"\x08\x00" + ip4(v4("victim"), v4("friend"), udp(b"yes", PORT, FROM)))
            bridge.send("victim", "friend", b"\x86\xdd" + ip6(v6("victim"), v6("friend"), udp(b"yes6", PORT, FROM)))
            await bridge.until("friend", b"yes6")
        attempts = [
            (name, partial(bridge.send, "attacker", link, frame)) for name, link, frame in forbidden(bridge)
        ] + [
            (f"a socket without rights, {source} to {to}", partial(bridge.datagram, "attacker", b"hostile", to, source))
            for to, source in (
                (v4("victim"), ""), ("10.0.0.255", ""), ("255.255.255.255", ""), ("224.0.0.1", ""), (v6("victim"), ""),
                ("ff02::1", ""), ("ff02::1", v6("attacker")),
            )
        ]  # fmt: skip
        for number, (name, attempt) in enumerate(attempts):
            end = f"end of {number}.".encode()
            attempt()
            bridge.send("friend", "victim", b"\x08\x00" + ip4(v4("friend"), v4("victim"), udp(end)))
            if frames := [one.hex() for one in await bridge.until("victim", end) if is_hostile(bridge, one)]:
                arrived[name] = frames

    assert arrived == {}
    assert len(attempts) > 60


async def test_who_is_limited_in_what_it_sends_gets_round_it_by_no_group_address(bridge: Bridge) -> None:
    """POL-16."""
    own, local = (v4("attacker"), v6("attacker")), ("0.0.0.0", "fe80::1234", "::")
    async with enforced(bridge, policy("closed", "attacker", policyTypes=["Egress"])):
        for source in (*own, *local):
            make, kind, to = (ip6, b"\x86\xdd", "ff02::fb") if ":" in source else (ip4, b"\x08\x00", "255.255.255.255")
            bridge.send("attacker", ALL, kind + make(source, to, udp(b"hostile", 68, 67)))
        bridge.send("other", "one", b"\x08\x00" + ip4(v4("other"), v4("one"), udp(b"the end")))
        heard = await bridge.until("one", b"the end")

    assert [one.hex() for one in heard if b"hostile" in one] == []


async def test_pods_find_each_other_and_those_of_no_policy_reach_all_at_once(bridge: Bridge) -> None:
    """POL-16: ARP, neighbour discovery, what asks for an address, and what is sent to all; a policed pod hears none of
    the latter and is reached by whom it allows."""
    async with enforced(bridge, FROM_FRIEND):
        for inside in bridge.pods.values():
            inside.run("ip", "neigh", "flush", "all")
        for source, target in (("one", "other"), ("friend", "victim")):
            for to in (v4(target), v6(target)):
                bridge.datagram(source, f"to {to}".encode(), to)
                await bridge.until(target, f"to {to}".encode())
        asks = udp(b"who gives me an address", 68, 67)
        bridge.send("one", ALL, b"\x08\x00" + ip4("0.0.0.0", "255.255.255.255", asks))
        await bridge.until("other", b"who gives me an address")
        bridge.send("other", ALL, b"\x08\x00" + ip4(v4("other"), "255.255.255.255", udp(b"take this", 67, 68)))
        await bridge.until("one", b"take this")
        for to in ("10.0.0.255", "224.0.0.251", "ff02::fb"):
            bridge.datagram("one", f"all of {to}".encode(), to)
            await bridge.until("other", f"all of {to}".encode())
        probe = arp(1, bridge.macs["one"], "0.0.0.0", v4("other"))
        bridge.send("one", ALL, b"\x08\x06" + probe)
        await bridge.until("other", b"\x08\x06" + probe)
        bridge.datagram("friend", b"the end", v4("victim"))
        heard = await bridge.until("victim", b"the end")

    assert [one for one in heard if b"all of" in one or b"address" in one] == []


@pytest.mark.parametrize("family", [4, 6])
async def test_where_no_link_is_known_what_goes_to_all_comes_to_nobody(bridge: Bridge, family: int) -> None:
    """POL-16: as where the kernel has no rules for bridges."""
    refused = FakeBridge(RulesRefused("Operation not supported"))
    async with enforced(bridge, FROM_FRIEND, bridge=refused) as node:
        message = await node.until(State.DEGRADED, "are not held to their links")
        advice = await node.plane.advice()
        for to in ("10.0.0.255", "224.0.0.251") if family == 4 else ("ff02::1", "ff02::fb"):
            bridge.datagram("attacker", b"hostile", to)
        bridge.datagram("friend", b"the end", v4("victim"))
        heard = await bridge.until("victim", b"the end")

    assert [one.hex() for one in heard if b"hostile" in one] == []
    assert "Operation not supported" in message
    assert "CONFIG_NF_TABLES_BRIDGE" in advice[0].mend

# SPDX-License-Identifier: Apache-2.0
"""A small cluster's network: one node with pods, a second node's pods, and a host outside.

Owns: the namespaces, their links, addresses and routes in both families, and the servers in the pods. Every pod has a
link of its own to the node, as with most network plug-ins, so that all its traffic passes the node's rules.
Never: names anything on the machine: all links live in namespaces that live as long as this process.

    pod1..pod3 --veth-- node --eth0-- (switch) --eth0-- remote (with far1, far2)
                                         `-----eth0-- client
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tests.lab.callers import Caller
from tests.lab.namespace import Namespace
from tests.lab.servers import Listener, Servers

__all__ = ["POD_RANGES", "PORT", "Network", "Place"]

Family = Literal["IPv4", "IPv6"]

PORT = 8080
"""Where every server listens, with TCP and UDP."""

LEGACY = {"iptables": "/proc/thread-self/net/ip_tables_names", "ip6tables": "/proc/thread-self/net/ip6_tables_names"}
LAN = {"IPv4": "192.168.7.{}", "IPv6": "fd00:7::{}"}
PODS = {"IPv4": "10.1.0.{}", "IPv6": "fd00:1::{}"}
FAR_PODS = {"IPv4": "10.2.0.{}", "IPv6": "fd00:2::{}"}
WIDTHS = {"IPv4": (32, 24), "IPv6": (128, 64)}
POD_RANGES = {"IPv4": "10.1.0.0/24", "IPv6": "fd00:1::/64"}
"""Of the pods on this node; the second node's begin with 10.2 and fd00:2."""
GATEWAY = 1
NODE, REMOTE, CLIENT = 1, 2, 9
OTHER_CLIENT = 10
"""A second address of the client, for source ranges."""


@dataclass(frozen=True)
class Place:
    """Somewhere with addresses; `caller` connects from there."""

    name: str
    namespace: Namespace
    v4: str
    v6: str
    caller: Caller

    def address(self, family: Family) -> str:
        return self.v4 if family == "IPv4" else self.v6


class Network:
    """Built at once, gone at the end of the `with`."""

    def __init__(self, *, pods: int = 3, far_pods: int = 2, ports: tuple[int, ...] = (PORT,)) -> None:
        self._stack = ExitStack()
        self.places: dict[str, Place] = {}
        try:
            self._build(pods, far_pods)
            listeners = [
                Listener(place.name, place.namespace.path, address, port)
                for place in self.places.values()
                if place.name != "client"
                for address in (place.v4, place.v6)
                for port in ports
            ]
            self.servers = self._stack.enter_context(Servers(listeners))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __getitem__(self, name: str) -> Place:
        return self.places[name]

    def clear(self) -> None:
        """Nothing that programs rules has ever been on the node, and nobody has connected."""
        namespace = self.node.namespace
        namespace.run("nft", "flush", "ruleset")
        for program, in_use in LEGACY.items():
            tables = namespace.call(Path(in_use).read_text).split() if Path(in_use).exists() else []
            if tables:
                namespace.run(f"{program}-legacy-restore", text="".join(f"*{table}\nCOMMIT\n" for table in tables))
        # A connection of an earlier test that nobody translated would bind its ports for minutes.
        namespace.run("conntrack", "-F")

    @property
    def node(self) -> Place:
        return self.places["node"]

    @property
    def client(self) -> Place:
        return self.places["client"]

    def _build(self, pods: int, far_pods: int) -> None:
        switch = self._namespace()
        switch.run("ip", "link", "add", "br0", "type", "bridge")
        switch.run("ip", "link", "set", "br0", "up")
        for name, number in (("node", NODE), ("remote", REMOTE), ("client", CLIENT)):
            self._plug(switch, name, number)
        node, remote, client = (self.places[name].namespace for name in ("node", "remote", "client"))
        for family, lan in LAN.items():
            pod_range, far_range = PODS[family], FAR_PODS[family]
            narrow, wide = WIDTHS[family]
            via_node, via_remote = lan.format(NODE), lan.format(REMOTE)
            flag = _flag(family)
            # Without a default route the node could not even try to reach the address of a Service.
            far = f"{flag} route add {far_range.format(0)}/{wide} via {via_remote}"
            _batch(node, [far, f"{flag} route add default via {via_remote}"])
            _batch(remote, [f"{flag} route add {pod_range.format(0)}/{wide} via {via_node}"])
            other = f"{flag} addr add {lan.format(OTHER_CLIENT)}/{narrow} dev eth0{_nodad(family)}"
            _batch(client, [f"{flag} route add default via {via_node}", other])
        for number in range(1, pods + 1):
            self._add_pod(f"pod{number}", number)
        for number in range(1, far_pods + 1):
            self._add_far_pod(f"far{number}", number)

    def _namespace(self) -> Namespace:
        made = self._stack.enter_context(Namespace())
        # Nobody else is on these links; waiting for whether an address is taken would cost seconds.
        for key in ("all", "default"):
            made.set(f"net.ipv6.conf.{key}.accept_dad", 0)
            made.set(f"net.ipv6.conf.{key}.forwarding", 1)
            made.set(f"net.ipv4.conf.{key}.rp_filter", 0)
        made.set("net.ipv4.ip_forward", 1)
        # Six refusals by ICMP would be all that a client gets within some seconds (TY-14).
        made.set("net.ipv4.icmp_ratelimit", 0)
        made.set("net.ipv6.icmp.ratelimit", 0)
        return made

    def _place(self, name: str, namespace: Namespace, addresses: dict[str, str]) -> None:
        caller = self._stack.enter_context(Caller(namespace, addresses["IPv4"], addresses["IPv6"]))
        self.places[name] = Place(name, namespace, addresses["IPv4"], addresses["IPv6"], caller)

    def _plug(self, switch: Namespace, name: str, number: int) -> None:
        """A host on the switch."""
        namespace = self._namespace()
        peer = f"type veth peer name eth0 netns {namespace.path}"
        _batch(switch, [f"link add port{number} {peer}", f"link set port{number} master br0 up"])
        addresses = {family: pattern.format(number) for family, pattern in LAN.items()}
        _batch(namespace, ["link set eth0 up"])
        for family, address in addresses.items():
            _batch(namespace, [f"{_flag(family)} addr add {address}/{WIDTHS[family][1]} dev eth0{_nodad(family)}"])
        self._place(name, namespace, addresses)

    def _add_pod(self, name: str, number: int) -> None:
        """A namespace with a link of its own; the node is its gateway by an address that all links share."""
        node, pod = self.node.namespace, self._namespace()
        link = f"veth{number}"
        peer = f"type veth peer name eth0 netns {pod.path}"
        _batch(node, [f"link add {link} {peer}", f"link set {link} up"])
        _batch(pod, ["link set eth0 up"])
        addresses = {family: pattern.format(10 + number) for family, pattern in PODS.items()}
        for family, address in addresses.items():
            flag, nodad, narrow = _flag(family), _nodad(family), WIDTHS[family][0]
            gateway = PODS[family].format(GATEWAY)
            here = f"{flag} addr add {gateway}/{narrow} dev {link}{nodad}"
            _batch(node, [here, f"{flag} route add {address}/{narrow} dev {link}"])
            there = [f"addr add {address}/{narrow} dev eth0{nodad}", f"route add {gateway} dev eth0"]
            _batch(pod, [f"{flag} {line}" for line in (*there, f"route add default via {gateway}")])
        self._place(name, pod, addresses)

    def _add_far_pod(self, name: str, number: int) -> None:
        """An address of the second node is enough: to the first one it is a pod behind a route."""
        remote = self.places["remote"].namespace
        addresses = {family: pattern.format(10 + number) for family, pattern in FAR_PODS.items()}
        for family, address in addresses.items():
            _batch(remote, [f"{_flag(family)} addr add {address}/{WIDTHS[family][0]} dev lo{_nodad(family)}"])
        self._place(name, remote, addresses)

    def pods(self) -> Iterator[Place]:
        """On this node."""
        return (place for name, place in self.places.items() if name.startswith("pod"))


def _flag(family: str) -> str:
    return "-4" if family == "IPv4" else "-6"


def _nodad(family: str) -> str:
    return "" if family == "IPv4" else " nodad"


def _batch(namespace: Namespace, lines: list[str]) -> None:
    """`ip -batch` has no family per line; the flag of the first line is that of all."""
    flag = lines[0].split()[0] if lines[0].startswith("-") else ""
    text = "\n".join(line.removeprefix(flag).strip() for line in lines) + "\n"
    namespace.run("ip", *([flag] if flag else []), "-batch", "-", text=text)

# SPDX-License-Identifier: Apache-2.0
"""A node, pods and an outside of network namespaces: some pods hang on one bridge, others on links of their own.

Every end listens at every port, so whatever is not answered was refused on the way.
"""

import selectors
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from tests.lab.namespace import Namespace
from tests.policies.random_cases import NODE, NUMBERS, OUTSIDE

T = TypeVar("T")
PODS = 8
BRIDGED = 4
RESET = struct.pack("ii", 1, 0)
KINDS = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
GIVE_UP_S = 10.0


def pod_addresses(number: int) -> tuple[str, str]:
    return f"10.0.0.{16 + number}", f"fd00::{16 + number:x}"


class PolicyNetwork:
    """`ends` by address. `node` has the rules."""

    def __init__(self) -> None:
        self.node = Namespace()
        self.places: dict[str, Namespace] = dict.fromkeys(NODE, self.node)
        self._made = [self.node]
        self._sockets: list[socket.socket] = []
        self.ears = selectors.DefaultSelector()

    def build(self) -> None:
        node = self.node
        node.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
                 "net.ipv6.conf.default.accept_dad=0", "net.ipv4.conf.all.rp_filter=0",
                 "net.bridge.bridge-nf-call-iptables=1", "net.bridge.bridge-nf-call-ip6tables=1")  # fmt: skip
        node.run("ip", "link", "add", "cni0", "type", "bridge")
        self._up(node, "cni0", NODE)
        for number in range(PODS):
            is_bridged = number < BRIDGED
            others = [one for one in range(BRIDGED) if is_bridged and one != number]
            self._end(f"pod{number}", pod_addresses(number), "cni0" if is_bridged else "", others)
        self._end("outside", OUTSIDE, "", [])
        for place in dict.fromkeys(self.places.values()):
            self._listen(place)

    def _up(self, place: Namespace, link: str, addresses: tuple[str, ...]) -> None:
        place.run("ip", "link", "set", link, "up")
        for one in addresses:
            more = ("nodad",) if ":" in one else ()
            place.run("ip", "address", "add", f"{one}/{128 if ':' in one else 32}", "dev", link, *more)

    def _end(self, name: str, addresses: tuple[str, ...], bridge: str, others: list[int]) -> None:
        inside = Namespace()
        self._made.append(inside)
        inside.run("sysctl", "-q", "-w", "net.ipv6.conf.default.accept_dad=0")
        self.node.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", inside.path)
        if bridge:
            self.node.run("ip", "link", "set", name, "master", bridge, "up")
        else:
            self._up(self.node, name, NODE[1:])
        self._up(inside, "eth0", addresses)
        for one in addresses:
            self.places[one] = inside
            self.node.run("ip", "route", "add", one, "dev", bridge or name)
        for address in (one for other in others for one in pod_addresses(other)):
            inside.run("ip", "route", "add", address, "dev", "eth0")
        for family, gateway in (("-4", NODE[0]), ("-6", NODE[1])):
            inside.run("ip", family, "route", "add", gateway, "dev", "eth0")
            inside.run("ip", family, "route", "add", "default", "via", gateway, "dev", "eth0")

    def _listen(self, place: Namespace) -> None:
        for kind in KINDS.values():
            for port in NUMBERS:
                ear = place.call(lambda kind=kind: socket.socket(socket.AF_INET6, kind))  # type: ignore[misc]
                ear.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                ear.bind(("::", port))
                ear.setblocking(False)
                if kind == socket.SOCK_STREAM:
                    ear.listen(64)
                self.ears.register(ear, selectors.EVENT_READ)
                self._sockets.append(ear)

    def socket(self, source: str, protocol: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in source else socket.AF_INET
        made = self.places[source].call(lambda: socket.socket(family, KINDS[protocol]))
        made.setblocking(False)
        made.bind((source, 0))
        return made

    async def reaches(
        self, source: str, destination: str, protocol: str, port: int, refused: Callable[[], Awaitable[int]]
    ) -> bool:
        """Whether it arrives; `refused` counts the packets that the rules dropped, which is how one is known to."""
        before = await refused()
        with self.socket(source, protocol) as begun, selectors.DefaultSelector() as answers:
            if protocol == "TCP":
                begun.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                begun.connect_ex((destination, port))
                answers.register(begun, selectors.EVENT_WRITE)
            else:
                begun.sendto(b"?", (destination, port))
            for _ in range(int(GIVE_UP_S * 100)):
                if protocol == "TCP" and answers.select(0.005):
                    error = begun.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if error:
                        raise OSError(error, f"{source} to {destination}:{port}")
                    begun.close()
                    self.hear()
                    return True
                if protocol == "UDP" and self.hear():
                    return True
                if await refused() > before:
                    return False
        raise TimeoutError(f"{protocol} {source} to {destination}:{port} neither arrived nor was refused")

    def hear(self) -> int:
        """Take what has come; how many datagrams that was."""
        count = 0
        for key, _ in self.ears.select(0):
            ear = key.fileobj
            if isinstance(ear, socket.socket):
                if ear.type == socket.SOCK_STREAM:
                    ear.accept()[0].close()
                else:
                    count += bool(ear.recvfrom(64)[0])
        return count

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self.ears.close()
        for place in self._made:
            place.close()


@contextmanager
def policy_network() -> Iterator[PolicyNetwork]:
    with ExitStack() as stack:
        network = PolicyNetwork()
        stack.callback(network.close)
        network.build()
        yield network

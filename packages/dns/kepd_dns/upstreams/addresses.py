# SPDX-License-Identifier: Apache-2.0
"""Servers as people write them: addresses with or without a port, and the node's resolv.conf."""

from ipaddress import ip_address
from typing import Literal, NamedTuple

Protocol = Literal["udp", "tcp"]
PORT = 53
MOST_SERVERS = 16


class Server(NamedTuple):
    address: str
    port: int = PORT
    protocol: Protocol = "udp"

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


def read_server(text: str) -> Server | None:
    """`10.0.0.1`, `10.0.0.1:5353`, `[fd00::1]:53`, `fd00::1`; None: it is none of these."""
    host, port = text.strip(), str(PORT)
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    address, _, scope = host.partition("%")
    try:
        number = int(port)
        canonical = str(ip_address(address))
    except ValueError:
        return None
    if not 0 < number < 65536:
        return None
    return Server(f"{canonical}%{scope}" if scope else canonical, number)


def read_resolv_conf(text: str) -> tuple[Server, ...]:
    """Its servers, each once."""
    found = []
    for line in text.splitlines():
        words = line.split("#")[0].split(";")[0].split()
        if words[:1] == ["nameserver"] and len(words) > 1:
            server = read_server(f"[{words[1]}]" if ":" in words[1] else words[1])
            if server is not None:
                found.append(server)
    return tuple(dict.fromkeys(found))[:MOST_SERVERS]

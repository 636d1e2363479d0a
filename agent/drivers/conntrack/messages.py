# SPDX-License-Identifier: Apache-2.0
"""Messages of connection tracking: the question for flows, the answers, the deletion.

Of an answer only the two tuples, the zone, the number and the state of TCP are read: 100 000 flows decoded as a whole
would keep a core busy for half a minute.
Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h of the kernel.
"""

import struct

from agent.drivers.netlink.attributes import Answer, attribute, attributes, nested, number
from agent.model.services.flow import Flow, FlowTarget
from agent.model.services.nft_table import Family
from agent.model.services.service import Protocol

_SUBSYSTEM = 1 << 8
GET, DELETE = _SUBSYSTEM | 1, _SUBSYSTEM | 2

_NUMBERS: dict[Protocol, int] = {"TCP": 6, "UDP": 17, "SCTP": 132}
_NAMES: dict[int, Protocol] = {number: name for name, number in _NUMBERS.items()}

_ORIGINAL, _REPLY, _PROTOCOL_STATE, _IDENTITY, _ZONE, _FILTER = 1, 2, 4, 12, 18, 25
_ADDRESSES, _PORTS = 1, 2
_PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_TCP, _TCP_STATE = 1, 1
_LAST_ACK, _TIME_WAIT, _CLOSED = 6, 7, 8
_IPV4_BYTES = 4
_BY_DESTINATION, _BY_PROTOCOL, _BY_DESTINATION_PORT = 1 << 1, 1 << 3, 1 << 5


def question(protocol: Protocol) -> bytes:
    """All flows of one protocol; the kernel leaves out the others (since 5.8)."""
    return _filtered(_BY_PROTOCOL, nested(_PORTS, attribute(_PROTOCOL, bytes([_NUMBERS[protocol]]))))


def question_to(target: FlowTarget) -> bytes:
    """All flows that were sent there: a twentieth of the work where there are 100 000 others. In IPv6 to that
    port of any address: the kernel's comparison of IPv6 addresses is the wrong way round."""
    port = attribute(_DESTINATION_PORT, target.port.to_bytes(2, "big"))
    ports = nested(_PORTS, attribute(_PROTOCOL, bytes([_NUMBERS[target.protocol]])), port)
    by = _BY_PROTOCOL | _BY_DESTINATION_PORT
    if len(target.address) > _IPV4_BYTES:
        return _filtered(by, ports)
    return _filtered(by | _BY_DESTINATION, nested(_ADDRESSES, attribute(2, target.address)), ports)


def _filtered(by: int, *original: bytes) -> bytes:
    return nested(_ORIGINAL, *original) + nested(_FILTER, attribute(1, struct.pack("=I", by)))


def flow(answer: Answer, family: Family) -> Flow | None:
    """None if it is none of the protocols we know."""
    block, begin, end = answer
    parts = {kind: (at, stop) for kind, at, stop in attributes(block, begin, end)}
    if _ORIGINAL not in parts or _REPLY not in parts:
        return None
    original = _tuple(block, *parts[_ORIGINAL])
    reply = _tuple(block, *parts[_REPLY])
    protocol = _NAMES.get(original[0])
    if protocol is None:
        return None
    return Flow(
        family,
        protocol,
        original[1],
        original[3],
        original[2],
        original[4],
        reply[1],
        reply[3],
        int.from_bytes(block[slice(*parts.get(_IDENTITY, (0, 0)))], "big"),
        int.from_bytes(block[slice(*parts.get(_ZONE, (0, 0)))], "big"),
        protocol == "TCP" and _PROTOCOL_STATE in parts and _is_over(block, *parts[_PROTOCOL_STATE]),
    )


def _is_over(block: bytes, begin: int, end: int) -> bool:
    """Of a TCP connection."""
    for kind, at, stop in attributes(block, begin, end):
        for inner, a, _ in attributes(block, at, stop) if kind == _TCP else ():
            if inner == _TCP_STATE:
                return block[a] in (_LAST_ACK, _TIME_WAIT, _CLOSED)
    return False


def deletion(one: Flow) -> bytes:
    """By the full original tuple, the zone and the kernel's number."""
    first = 1 if one.family == "IPv4" else 3
    addresses = nested(_ADDRESSES, attribute(first, one.source), attribute(first + 1, one.destination))
    ports = nested(
        _PORTS,
        attribute(_PROTOCOL, bytes([_NUMBERS[one.protocol]])),
        attribute(_SOURCE_PORT, one.source_port.to_bytes(2, "big")),
        attribute(_DESTINATION_PORT, one.destination_port.to_bytes(2, "big")),
    )
    zone = attribute(_ZONE, one.zone.to_bytes(2, "big")) if one.zone else b""
    identity = number(_IDENTITY, one.identity) if one.identity else b""
    return nested(_ORIGINAL, addresses, ports) + zone + identity


def _tuple(block: bytes, begin: int, end: int) -> tuple[int, bytes, bytes, int, int]:
    """Protocol number, source, destination, and their ports."""
    source = destination = b""
    protocol = source_port = destination_port = 0
    for kind, at, stop in attributes(block, begin, end):
        for inner, a, b in attributes(block, at, stop):
            if kind == _ADDRESSES:
                # 1 and 2 are of IPv4, 3 and 4 of IPv6.
                if inner % 2:
                    source = block[a:b]
                else:
                    destination = block[a:b]
            elif kind == _PORTS and inner == _PROTOCOL:
                protocol = block[a]
            elif kind == _PORTS and inner == _SOURCE_PORT:
                source_port = int.from_bytes(block[a:b], "big")
            elif kind == _PORTS and inner == _DESTINATION_PORT:
                destination_port = int.from_bytes(block[a:b], "big")
    return protocol, source, destination, source_port, destination_port

# SPDX-License-Identifier: Apache-2.0
"""SCTP without a kernel that has its sockets: INIT packets by hand, and ears for them.

Owns: the packet with its checksum (RFC 9260), which connection tracking verifies. The tracking itself is common.
Never: completes an association.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.lab.network import Place

__all__ = ["Arrival", "SctpEars", "send_init"]

PROTOCOL = 132
_POLYNOMIAL = 0x82F63B78


@dataclass(frozen=True)
class Arrival:
    """An INIT that came to a place."""

    place: str
    source: str
    port: int


class SctpEars:
    """Raw sockets in some places."""

    def __init__(self, stack: ExitStack, places: list[Place]) -> None:
        self._ears = [(place, stack.enter_context(_raw(place, family))) for place in places for family in _FAMILIES]

    def heard(self, port: int, within_s: float = 1.0) -> list[Arrival]:
        """INITs that come to this port; returns after the first one, or when time is up."""
        for _ in range(max(1, round(within_s / _STEP_S))):
            found = [arrival for place, ear in self._ears for arrival in _arrivals(place, ear) if arrival.port == port]
            if found:
                return found
        return []

    @staticmethod
    @contextmanager
    def of(*places: Place) -> Iterator["SctpEars"]:
        with ExitStack() as stack:
            yield SctpEars(stack, list(places))


_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_STEP_S = 0.02


def send_init(place: Place, address: str, port: int, source_port: int = 40_000) -> None:
    """The first packet of an association."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    chunk = struct.pack(">BBHIIHHI", 1, 0, 20, 0x1234, 65_536, 1, 1, 0x5678)
    head = struct.pack(">HHI", source_port, port, 0)
    packet = head + struct.pack("<I", _checksum(head + bytes(4) + chunk)) + chunk

    def send() -> None:
        with socket.socket(family, socket.SOCK_RAW, PROTOCOL) as out:
            out.bind((place.v6 if family == socket.AF_INET6 else place.v4, 0))
            out.sendto(packet, (address, 0))

    place.caller.run(send)


def _raw(place: Place, family: socket.AddressFamily) -> socket.socket:
    def make() -> socket.socket:
        made = socket.socket(family, socket.SOCK_RAW, PROTOCOL)
        made.bind((place.v6 if family == socket.AF_INET6 else place.v4, 0))
        return made

    made = place.caller.run(make)
    made.settimeout(_STEP_S / 8)
    return made


def _arrivals(place: Place, ear: socket.socket) -> Iterator[Arrival]:
    while True:
        try:
            packet, (source, *_) = ear.recvfrom(2048)
        except TimeoutError:
            return
        begin = 4 * (packet[0] & 15) if ear.family == socket.AF_INET else 0
        (port,) = struct.unpack_from(">H", packet, begin + 2)
        if len(packet) > begin + 12 and packet[begin + 12] == 1:
            yield Arrival(place.name, source, port)


def _checksum(data: bytes) -> int:
    """CRC32c."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF

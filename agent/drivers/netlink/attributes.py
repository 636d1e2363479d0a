# SPDX-License-Identifier: Apache-2.0
"""Netlink messages and attributes as bytes.

Source: include/uapi/linux/netlink.h and netfilter/nfnetlink.h of the kernel.
"""

import struct
from collections.abc import Iterator

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
CREATE, APPEND = 0x400, 0x800

Answer = tuple[bytes, int, int]
"""A block of bytes, and where in it the attributes of a message begin and end."""

HEADER = struct.Struct("=IHHII")
"""Length, type, flags, sequence number, port id."""

_ATTRIBUTE = struct.Struct("=HH")
_NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_FAMILIES = {"inet": 1, "IPv4": 2, "bridge": 7, "IPv6": 10}


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(len(payload) + 4, kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(parts))


def text(kind: int, value: str) -> bytes:
    """A string, with the zero byte at its end."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """Four bytes, most significant first, as netfilter has its numbers."""
    return attribute(kind, value.to_bytes(4, "big"))


def message(kind: int, flags: int, sequence: int, family: str, payload: bytes, resource: int = 0) -> bytes:
    """A whole nfnetlink message. `family` is one of ours, or "" for all."""
    generic = struct.pack("=BBH", _FAMILIES.get(family, 0), 0, ((resource & 0xFF) << 8) | (resource >> 8))
    return HEADER.pack(20 + len(payload), kind, flags, sequence, 0) + generic + payload


def attributes(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Type, begin and end of the payload of each attribute in a piece of `data`."""
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4 or at + length > end:
            return
        yield kind & _TYPE_MASK, at + 4, at + length
        at += (length + 3) & ~3

# SPDX-License-Identifier: Apache-2.0
"""Netlink messages and attributes as bytes.

Owns: headers, padding and nesting of netlink and of nfnetlink, and the constants of nf_tables that we use.
Never: knows what our table is made of.
Source: include/uapi/linux/netlink.h, netfilter/nfnetlink.h and netfilter/nf_tables.h of the kernel.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

__all__ = [
    "ACK",
    "APPEND",
    "CREATE",
    "DUMP",
    "EXCLUSIVE",
    "HEADER",
    "REQUEST",
    "Message",
    "attribute",
    "attributes",
    "message",
    "nested",
    "number",
    "text",
]

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
CREATE, EXCLUSIVE, APPEND = 0x400, 0x200, 0x800

HEADER = struct.Struct("=IHHII")
"""Length, type, flags, sequence number, port id."""

_ATTRIBUTE = struct.Struct("=HH")
_NESTED = 0x8000
_TYPE_MASK = 0x3FFF
_SUBSYSTEM = 10 << 8
_FAMILIES = {"IPv4": 2, "IPv6": 10}


class Message(IntEnum):
    """Types of nf_tables messages."""

    NEW_TABLE = _SUBSYSTEM | 0
    GET_TABLE = _SUBSYSTEM | 1
    DELETE_TABLE = _SUBSYSTEM | 2
    NEW_CHAIN = _SUBSYSTEM | 3
    GET_CHAIN = _SUBSYSTEM | 4
    DELETE_CHAIN = _SUBSYSTEM | 5
    NEW_RULE = _SUBSYSTEM | 6
    GET_RULE = _SUBSYSTEM | 7
    DELETE_RULE = _SUBSYSTEM | 8
    NEW_SET = _SUBSYSTEM | 9
    DELETE_SET = _SUBSYSTEM | 11
    NEW_ELEMENTS = _SUBSYSTEM | 12
    GET_ELEMENTS = _SUBSYSTEM | 13
    DELETE_ELEMENTS = _SUBSYSTEM | 14
    NEW_GENERATION = _SUBSYSTEM | 15
    GET_GENERATION = _SUBSYSTEM | 16


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(len(payload) + 4, kind) + payload + bytes(-len(payload) % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    """An attribute made of attributes."""
    return attribute(kind | _NESTED, b"".join(parts))


def text(kind: int, value: str) -> bytes:
    """A string, with the zero byte at its end."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """Four bytes, most significant first, as nf_tables has all its numbers."""
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

# SPDX-License-Identifier: Apache-2.0
"""Reads addresses and address ranges as the API does, which differs from Python.

The reading is lenient (leading zeros are decimal, never octal; an IPv4-mapped IPv6 address is an IPv4 one), the
spelling of what was read canonical.
"""

import re
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address

from agent.model.services.nft_table import Family
from agent.model.services.service import Address, Range

FAMILIES: tuple[Family, Family] = ("IPv4", "IPv6")
BITS = {"IPv4": 32, "IPv6": 128}
V4 = re.compile(r"(\d{1,10})\.(\d{1,10})\.(\d{1,10})\.(\d{1,10})", re.ASCII)
MAPPED = b"\x00" * 10 + b"\xff\xff"
LONGEST_TEXT = 64


def read_address(text: str) -> Address | None:
    found = V4.fullmatch(text)
    if found is not None:
        packed = _octets(found.groups())
        return None if packed is None else Address("IPv4", ".".join(map(str, packed)), packed)
    packed = _packed_v6(text)
    if packed is None:
        return None
    if packed.startswith(MAPPED):
        packed = packed[12:]
    return address_of(packed)


def _octets(parts: Iterable[str]) -> bytes | None:
    try:
        return bytes(int(part) for part in parts)
    except ValueError:
        return None


def _packed_v6(text: str) -> bytes | None:
    if ":" not in text or "%" in text or len(text) > LONGEST_TEXT:
        return None
    head, _, tail = text.rpartition(":")
    if "." in tail:
        found = V4.fullmatch(tail)
        octets = None if found is None else _octets(found.groups())
        if octets is None:
            return None
        text = f"{head}:{octets[:2].hex()}:{octets[2:].hex()}"
    try:
        return IPv6Address(text).packed
    except AddressValueError:
        return None


def address_of(packed: bytes) -> Address:
    if len(packed) == len(MAPPED) + 4:
        return Address("IPv6", str(IPv6Address(packed)), packed)
    return Address("IPv4", ".".join(map(str, packed)), packed)


def read_range(text: str) -> Range | None:
    """None: that is not a CIDR. A mapped prefix below 96 has no IPv4 meaning and is none."""
    body, slash, length = text.partition("/")
    address = read_address(body)
    if address is None or not slash or not length.isascii() or not length.isdecimal() or len(length) > len("128"):
        return None
    bits = BITS[address.family]
    prefix = int(length)
    if address.family == "IPv4" and ":" in body:
        prefix -= 96
    if not 0 <= prefix <= bits:
        return None
    return _range(address, prefix)


def _range(address: Address, prefix: int) -> Range:
    bits = BITS[address.family]
    host = (1 << (bits - prefix)) - 1
    first = int.from_bytes(address.packed, "big") & ~host
    packed = first.to_bytes(bits // 8, "big")
    last = (first | host).to_bytes(bits // 8, "big")
    text = ".".join(map(str, packed)) if address.family == "IPv4" else str(IPv6Address(packed))
    return Range(address.family, f"{text}/{prefix}", packed, last, prefix)


def collapse(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """None inside another, sorted; two CIDRs either nest or are disjoint."""
    kept: list[Range] = []
    for one in sorted(set(ranges), key=lambda item: (item.first, item.prefix)):
        if not kept or one.first > kept[-1].last:
            kept.append(one)
    return tuple(kept)


def whole(address: Address) -> Range:
    return _range(address, BITS[address.family])


def endpoint_key(address: str, port: int) -> str:
    """`ip:port`, IPv6 in brackets: what endpoints are told apart and sorted by."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def unfit_endpoint(address: Address) -> str:
    """Why no connection can be sent there; "" if one can."""
    packed = address.packed
    if not any(packed):
        return "unspecified"
    if address.family == "IPv4":
        if packed[0] == 127:
            return "loopback"
        if packed[:2] == b"\xa9\xfe":
            return "link-local"
        return "multicast" if 224 <= packed[0] < 240 else "broadcast" if packed == b"\xff" * 4 else ""
    if packed == b"\x00" * 15 + b"\x01":
        return "loopback"
    if packed[0] == 0xFE and packed[1] & 0xC0 == 0x80:
        return "link-local"
    return "multicast" if packed[0] == 0xFF else ""

# SPDX-License-Identifier: Apache-2.0
"""Prints elements of the maps in nft's own words, for people only."""

from agent.model.services.nft_table import MAPS, Data, Family, MapKind
from agent.services.nftables.elements import NUMBER
from agent.services.objects.addresses import address_of, endpoint_key

PROTOCOL_NAMES = {6: "tcp", 17: "udp", 132: "sctp"}
SIZES = {"proto": 4, "port": 4, "slot": 4, "number": 4}


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

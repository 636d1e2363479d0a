# SPDX-License-Identifier: Apache-2.0
"""Elements of our maps as the kernel takes them; a range is two elements of a tree or one of a concatenation.

Encoding 100 000 of them is what takes the time of a first sync, so these are loops over constant frames instead of
calls per element.
"""

import errno
import struct
from collections.abc import Mapping, Sequence

from agent.drivers.netlink.attributes import attribute, nested, number, text
from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import Data, MapKind, MapLayout

Counts = Mapping[bytes, tuple[int, int]]
"""Key → packets and bytes that an element begins with."""

_ADDRESS_BYTES = {"IPv4": 4, "IPv6": 16}
_LINK_BYTES = 16
_ELEMENT, _KEY, _DATA, _FLAGS, _TIMEOUT, _EXPRESSION, _KEY_END = 1, 1, 2, 3, 4, 7, 10
_VALUE, _VERDICT = 1, 2
_INTERVAL_END = number(_FLAGS, 1)
_GOTO, _DROP = -4 & 0xFFFFFFFF, 0


def key_size(layout: MapLayout, family: str) -> int:
    """Bytes of a key; of a range, of one end of it."""
    sizes = {"address": _ADDRESS_BYTES[family], "link": _LINK_BYTES}
    return sum(sizes.get(part, 4) for part in layout.key)


def data_size(layout: MapLayout, family: str) -> int:
    """Bytes of the data, where it has a fixed size."""
    address = _ADDRESS_BYTES[family]
    return {MapKind.ENDPOINT: address + 4, MapKind.NUMBER: 4, MapKind.CLIENT: address + 16}.get(layout.kind, 0)


def additions(
    layout: MapLayout, family: str, pairs: Sequence[tuple[bytes, Data]], counts: Counts | None = None
) -> list[bytes]:
    """The elements, one piece of bytes each. Verdicts may go on counting where an element before them ended."""
    size = key_size(layout, family)
    if layout.kind is MapKind.INTERVAL:
        _check_sizes(layout, [key for key, _ in pairs], 2 * size)
        return [_range(layout, key, size) for key, _ in pairs]
    _check_sizes(layout, [key for key, _ in pairs], size)
    match layout.kind:
        case MapKind.MEMBER:
            head = _head(size, 0)
            return [head + key for key, _ in pairs]
        case MapKind.VERDICT:
            return _verdicts(layout, size, pairs, counts or {})
        case _:
            return _valued(layout, size, data_size(layout, family), pairs)


def deletions(layout: MapLayout, family: str, keys: Sequence[bytes]) -> list[bytes]:
    """The elements as a deletion names them."""
    size = key_size(layout, family)
    if layout.kind is MapKind.INTERVAL:
        _check_sizes(layout, keys, 2 * size)
        return [_range(layout, key, size) for key in keys]
    _check_sizes(layout, keys, size)
    head = _head(size, 0)
    return [head + key for key in keys]


def _head(key_bytes: int, rest_bytes: int) -> bytes:
    """What stands before the key of an element whose attributes after it have so many bytes."""
    value = 4 + key_bytes
    nest = 0x8000
    return struct.pack("=HHHHHH", 8 + value + rest_bytes, _ELEMENT | nest, 4 + value, _KEY | nest, value, _VALUE)


def _valued(layout: MapLayout, size: int, width: int, pairs: Sequence[tuple[bytes, Data]]) -> list[bytes]:
    values = [data for _, data in pairs]
    if set(map(type, values)) - {bytes} or set(map(len, values)) - {width}:  # type: ignore[arg-type]
        wrong = next(key for key, data in pairs if not isinstance(data, bytes) or len(data) != width)
        raise RulesRefused.by_kernel(errno.EINVAL, map=layout.name, key=wrong)
    # The life that ends the data of a client is an attribute of its own.
    width, end = (width - 8, struct.pack("=HH", 12, _TIMEOUT)) if layout.kind is MapKind.CLIENT else (width, b"")
    head = _head(size, 8 + width + 3 * len(end))
    middle = struct.pack("=HHHH", 8 + width, _DATA | 0x8000, 4 + width, _VALUE)
    if end:
        return [head + key + middle + data[:width] + end + data[width:] for key, data in pairs]  # type: ignore[index, operator]
    return [head + key + middle + data for key, data in pairs]  # type: ignore[operator]


def _verdicts(layout: MapLayout, size: int, pairs: Sequence[tuple[bytes, Data]], counts: Counts) -> list[bytes]:
    frames: dict[Data, tuple[bytes, bytes]] = {}
    elements = []
    for key, target in pairs:
        frame = frames.get(target)
        if frame is None:
            if not isinstance(target, str):
                raise RulesRefused.by_kernel(errno.EINVAL, map=layout.name, key=key)
            data = nested(_DATA, _verdict(target))
            frame = frames[target] = (_head(size, len(data)), data)
        if key in counts:
            data = frame[1] + _counter(*counts[key])
            elements.append(_head(size, len(data)) + key + data)
        else:
            elements.append(frame[0] + key + frame[1])
    return elements


def _counter(packets: int, octets: int) -> bytes:
    return nested(_EXPRESSION, text(1, "counter"), nested(2, _long(1, octets), _long(2, packets)))


def _long(kind: int, value: int) -> bytes:
    return attribute(kind, value.to_bytes(8, "big"))


def _verdict(target: str) -> bytes:
    if not target:
        return nested(_VERDICT, number(1, _DROP))
    return nested(_VERDICT, number(1, _GOTO), text(2, target))


def _range(layout: MapLayout, key: bytes, size: int) -> bytes:
    """In a tree two elements: the first member, and what follows the last if anything does. Else one with two keys."""
    first, last = key[:size], key[size:]
    if len(layout.key) > 1:
        return nested(_ELEMENT, nested(_KEY, attribute(_VALUE, first)), nested(_KEY_END, attribute(_VALUE, last)))
    begin = nested(_ELEMENT, nested(_KEY, attribute(_VALUE, first)))
    after = int.from_bytes(last, "big") + 1
    if after == 1 << (8 * size):
        return begin
    return begin + nested(_ELEMENT, nested(_KEY, attribute(_VALUE, after.to_bytes(size, "big"))), _INTERVAL_END)


def _check_sizes(layout: MapLayout, keys: Sequence[bytes], size: int) -> None:
    """A key of another size would garble its neighbours' frames."""
    if set(map(len, keys)) - {size}:
        raise RulesRefused.by_kernel(errno.EINVAL, map=layout.name, key=next(key for key in keys if len(key) != size))

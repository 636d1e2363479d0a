# SPDX-License-Identifier: Apache-2.0
"""What the kernel tells of our table, as values. 100 000 elements of one size are cut by one frame, in C.

Source of behaviour: net/netfilter/nf_tables_api.c of the kernel: nf_tables_fill_setelem.
"""

import struct
from collections.abc import Iterable, Mapping

import msgspec

from agent.drivers.netlink.attributes import Answer, attributes
from agent.drivers.nft.elements import data_size, key_size
from agent.model.services.nft_table import CLIENTS, AffineClient, Data, Family, MapKind, MapLayout, layout_of

_Pairs = list[tuple[bytes, Data]]
_LIST_ELEMENTS = 3
_KEY, _DATA, _FLAGS, _EXPIRES, _EXPRESSION, _KEY_END = 1, 2, 3, 5, 7, 10
_INTERVAL_END = 1
HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
_FRAME_BYTES = 12
"""Headers of the element, of its key and of the key's value."""


class ChainFacts(msgspec.Struct, frozen=True):
    """A chain, the comment it carries, and its hook with its policy as nft writes them."""

    table: str
    name: str
    comment: str
    hook: str


class TableFacts(msgspec.Struct, frozen=True):
    """A table, and the netlink port of the process that alone may change it; 0: anybody may."""

    name: str
    owner: int
    is_dormant: bool


def table_facts(answer: Answer) -> TableFacts:
    block, begin, end = answer
    found = {kind: block[at:stop] for kind, at, stop in attributes(block, begin, end)}
    return TableFacts(
        _string(found.get(1, b"")), int.from_bytes(found.get(7, b""), "big"), bool(_number(found.get(2, b"")) & 1)
    )


def chain_facts(answer: Answer) -> ChainFacts:
    block, begin, end = answer
    found = {kind: block[at:stop] for kind, at, stop in attributes(block, begin, end)}
    return ChainFacts(
        _string(found.get(1, b"")), _string(found.get(3, b"")), _comment(found.get(12, b"")), _hook(found)
    )


def _hook(found: Mapping[int, bytes]) -> str:
    if 4 not in found:
        return ""
    parts = {kind: found[4][at:stop] for kind, at, stop in attributes(found[4], 0, len(found[4]))}
    hook = HOOKS[_number(parts.get(1, b"")) % len(HOOKS)]
    priority = int.from_bytes(parts.get(2, b""), "big", signed=True)
    policy = "accept" if _number(found.get(5, b"")) else "drop"
    return f"type {_string(found.get(7, b''))} hook {hook} priority {priority}; policy {policy}"


def rule_chain(answer: Answer) -> str:
    block, begin, end = answer
    return next((_string(block[at:stop]) for kind, at, stop in attributes(block, begin, end) if kind == 2), "")


def rule_expressions(answer: Answer) -> bytes:
    """What it does, as it may be sent again."""
    block, begin, end = answer
    return next((block[at:stop] for kind, at, stop in attributes(block, begin, end) if kind == 4), b"")


def elements(layout: MapLayout, family: Family, answers: Iterable[Answer]) -> dict[bytes, Data] | None:
    """All elements of one map; None if the kernel told some of them twice, and then others not at all. It does so while
    a hash table grows, some time after many elements were added: it goes on from the place where the last message
    ended, and everything has moved. No flag tells, but an element that was left out left its place to another."""
    if layout.kind is MapKind.INTERVAL and len(layout.key) == 1:
        return _tree_ranges(answers, key_size(layout, family))
    content: dict[bytes, Data] = {}
    verdicts: dict[bytes, Data] = {}
    told = 0
    for answer in answers:
        for block, begin, end in _lists(answer):
            match layout.kind:
                case MapKind.VERDICT:
                    pairs = _verdicts(block, begin, end, key_size(layout, family), verdicts)
                case MapKind.INTERVAL:
                    pairs = _ranges(block, begin, end)
                case _:
                    sizes = key_size(layout, family), data_size(layout, family)
                    pairs = _framed(block, begin, end, sizes) or _apart(block, begin, end)
            content.update(pairs)
            told += len(pairs)
    return content if told == len(content) else None


def counted_elements(answers: Iterable[Answer]) -> dict[bytes, tuple[int, int]] | None:
    """Packets and bytes of each element that has a counter; None as with `elements`."""
    counted: dict[bytes, tuple[int, int]] = {}
    told = 0
    for answer in answers:
        for block, begin, end in _lists(answer):
            for _, at, stop in attributes(block, begin, end):
                parts = {kind: (a, b) for kind, a, b in attributes(block, at, stop)}
                if _KEY in parts and _EXPRESSION in parts:
                    counted[_value(block, parts[_KEY])] = _counter(block, parts[_EXPRESSION])
                    told += 1
    return counted if told == len(counted) else None


def clients_in(answer: Answer, family: Family) -> list[AffineClient]:
    """The entries of one message. All have one shape, but for what others may have put there."""
    layout = layout_of(CLIENTS)
    size, width = key_size(layout, family), data_size(layout, family) - 8
    found: list[AffineClient] = []
    for block, begin, end in _lists(answer):
        (length,) = struct.unpack_from("=H", block, begin)
        rest = length - _FRAME_BYTES - size - 8 - width - 8
        if rest >= 0 and (end - begin) % length == 0:
            # Last stands how long it still lives; some kernels tell before that how long in all.
            frame = struct.Struct(f"=H10x{size}s8x{width}s{rest}x8s")
            rows = list(frame.iter_unpack(memoryview(block)[begin:end]))
            if {one for one, *_ in rows} == {length}:
                found += [AffineClient(key, data, int.from_bytes(left, "big")) for _, key, data, left in rows]
                continue
        for _, at, stop in attributes(block, begin, end):
            parts = {kind: (a, b) for kind, a, b in attributes(block, at, stop)}
            if parts.keys() >= {_KEY, _DATA, _EXPIRES}:
                left = block[slice(*parts[_EXPIRES])]
                found.append(
                    AffineClient(_value(block, parts[_KEY]), _value(block, parts[_DATA]), int.from_bytes(left, "big"))
                )
    return found


def object_packets(answer: Answer) -> int:
    data = 4
    block, begin, end = answer
    for kind, at, stop in attributes(block, begin, end):
        if kind == data:
            numbers = {number: block[a:b] for number, a, b in attributes(block, at, stop)}
            return int.from_bytes(numbers.get(2, b""), "big")
    return 0


def _lists(answer: Answer) -> Iterable[tuple[bytes, int, int]]:
    block, begin, end = answer
    return [(block, at, stop) for kind, at, stop in attributes(block, begin, end) if kind == _LIST_ELEMENTS]


def _framed(block: bytes, begin: int, end: int, sizes: tuple[int, int]) -> _Pairs:
    """Elements that all have the same shape as the first one; none if they do not."""
    size, width = sizes
    if begin == end:
        return []
    (length,) = struct.unpack_from("=H", block, begin)
    data_head = 8 if width else 0
    rest = length - _FRAME_BYTES - size - data_head - width
    if rest < 0 or (end - begin) % length or length % 4:
        return []
    frame = struct.Struct(f"={_FRAME_BYTES}s{size}s{data_head}s{width}s{rest}x")
    rows = list(frame.iter_unpack(memoryview(block)[begin:end]))
    heads = {(head, middle) for head, _, middle, _ in rows}
    if len(heads) != 1 or not _is_expected(*heads.pop(), size, width):
        return []
    return [(key, data if width else None) for _, key, _, data in rows]


def _is_expected(head: bytes, middle: bytes, size: int, width: int) -> bool:
    """The frame is what our map has: a key of this size, and data of this width right after it."""
    mask = 0x3FFF
    _, _, key_length, key, value_length, _ = struct.unpack("=HHHHHH", head)
    if (key_length, key & mask, value_length) != (size + 8, _KEY, size + 4):
        return False
    return not width or struct.unpack("=HHH", middle[:6]) in {(width + 8, _DATA | n, width + 4) for n in (0, 0x8000)}


def _apart(block: bytes, begin: int, end: int) -> _Pairs:
    """The same, attribute by attribute."""
    pairs: _Pairs = []
    for _, at, stop in attributes(block, begin, end):
        parts = {kind: (a, b) for kind, a, b in attributes(block, at, stop)}
        data = parts.get(_DATA)
        pairs.append((_value(block, parts[_KEY]), _value(block, data) if data else None))
    return pairs


def _verdicts(block: bytes, begin: int, end: int, size: int, known: dict[bytes, Data]) -> _Pairs:
    """A few hundred different verdicts stand behind all elements: each is decoded once."""
    pairs: _Pairs = []
    length_of = struct.Struct("=H").unpack_from
    at = begin
    while at + _FRAME_BYTES + size + 4 <= end:
        key_at = at + _FRAME_BYTES
        data_at = key_at + size
        data = block[data_at : data_at + length_of(block, data_at)[0]]
        if data not in known:
            known[data] = _verdict(data)
        pairs.append((block[key_at:data_at], known[data]))
        at += (length_of(block, at)[0] + 3) & ~3
    return pairs


def _verdict(data: bytes) -> str:
    """The chain, or "" for anything that has none: our maps hold nothing but goto and drop."""
    for _, at, stop in attributes(data, 4, len(data)):
        parts = {kind: data[a:b] for kind, a, b in attributes(data, at, stop)}
        return _string(parts.get(2, b""))
    return ""


def _ranges(block: bytes, begin: int, end: int) -> _Pairs:
    pairs: _Pairs = []
    for _, at, stop in attributes(block, begin, end):
        parts = {kind: (a, b) for kind, a, b in attributes(block, at, stop)}
        first = _value(block, parts[_KEY])
        pairs.append((first + (_value(block, parts[_KEY_END]) if _KEY_END in parts else first), None))
    return pairs


def _tree_ranges(answers: Iterable[Answer], size: int) -> dict[bytes, Data]:
    """Begins and ends in any order; a range without an end reaches to the last address, an end without a begin
    (nft puts one before the first range) means nothing."""
    begins: list[bytes] = []
    ends: list[bytes] = []
    for answer in answers:
        for block, begin, end in _lists(answer):
            for _, at, stop in attributes(block, begin, end):
                parts = {kind: (a, b) for kind, a, b in attributes(block, at, stop)}
                flags = int.from_bytes(block[slice(*parts[_FLAGS])], "big") if _FLAGS in parts else 0
                (ends if flags & _INTERVAL_END else begins).append(_value(block, parts[_KEY]))
    return dict.fromkeys(_paired(sorted(begins), sorted(ends), size))


def _paired(begins: list[bytes], ends: list[bytes], size: int) -> Iterable[bytes]:
    index = 0
    for first in begins:
        while index < len(ends) and ends[index] <= first:
            index += 1
        last = (int.from_bytes(ends[index], "big") - 1).to_bytes(size, "big") if index < len(ends) else b"\xff" * size
        yield first + last


def _value(block: bytes, where: tuple[int, int]) -> bytes:
    return next((block[at:stop] for _, at, stop in attributes(block, *where)), b"")


def _counter(block: bytes, where: tuple[int, int]) -> tuple[int, int]:
    parts = {kind: (a, b) for kind, a, b in attributes(block, *where)}
    numbers: Mapping[int, bytes] = {kind: block[a:b] for kind, a, b in attributes(block, *parts.get(2, (0, 0)))}
    return int.from_bytes(numbers.get(2, b""), "big"), int.from_bytes(numbers.get(1, b""), "big")


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _string(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _comment(userdata: bytes) -> str:
    """Userdata of nft is a list of type, length, value; a chain's comment has type 0."""
    at = 0
    while at + 2 <= len(userdata):
        kind, length = userdata[at], userdata[at + 1]
        if kind == 0:
            return _string(userdata[at + 2 : at + 2 + length])
        at += 2 + length
    return ""

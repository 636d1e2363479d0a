# SPDX-License-Identifier: Apache-2.0
"""Header blocks of HTTP/2: reading them along, so that paths and status codes are known, and writing plain ones.

One decoder per direction of a connection, for its table is part of the wire. Blocks of others are never written anew,
so both ends keep the tables they would have without us. Source: RFC 7541.
"""

from collections.abc import Iterable, Iterator

from agent.proxy.frames.huffman import HuffmanInvalid, decode_huffman

Header = tuple[bytes, bytes]
Headers = list[Header]

STATIC: tuple[Header, ...] = (
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"), (b":path", b"/index.html"),
    (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"), (b":status", b"204"), (b":status", b"206"),
    (b":status", b"304"), (b":status", b"400"), (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"), (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""),
    (b"access-control-allow-origin", b""), (b"age", b""), (b"allow", b""), (b"authorization", b""),
    (b"cache-control", b""), (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""),
    (b"content-length", b""), (b"content-location", b""), (b"content-range", b""), (b"content-type", b""),
    (b"cookie", b""), (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""), (b"from", b""),
    (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""), (b"if-none-match", b""), (b"if-range", b""),
    (b"if-unmodified-since", b""), (b"last-modified", b""), (b"link", b""), (b"location", b""),
    (b"max-forwards", b""), (b"proxy-authenticate", b""), (b"proxy-authorization", b""), (b"range", b""),
    (b"referer", b""), (b"refresh", b""), (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""),
    (b"strict-transport-security", b""), (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""),
    (b"via", b""), (b"www-authenticate", b""),
)  # fmt: skip
FIRST_TABLE_BYTES = 4096
# What an entry counts beyond its text.
ENTRY_BYTES = 32
# Sixteen times what all gRPC implementations begin with; every new entry moves the others.
LARGEST_TABLE_BYTES = 64 << 10
LONGEST_INTEGER_BITS = 32
LONGEST_KNOWN_BYTES, MOST_KNOWN = 64, 64


class HeadersInvalid(ValueError):
    """A header block that breaks the rules."""


class HeaderDecoder:
    """Most blocks of a busy connection are those of the calls before, which are all in the table by then; what they
    mean is remembered until the table changes."""

    def __init__(self) -> None:
        self._table: list[Header] = []
        self._table_bytes = 0
        self._most_bytes = FIRST_TABLE_BYTES
        self._known: dict[bytes, Headers] = {}
        self._has_changed = False

    def decode(self, block: bytes) -> Headers:
        """The fields of a whole block, in their order; not to be changed. Raises HeadersInvalid."""
        known = self._known.get(block)
        if known is not None:
            return known
        headers: Headers = []
        position, end = 0, len(block)
        self._has_changed = False
        try:
            while position < end:
                first = block[position]
                if first >= 0xC0 or 0x80 < first < 0xBE:
                    # By far most headers of a busy connection: one byte, an index below 62 or shortly above.
                    index = first & 0x7F
                    if index != 0x7F:
                        headers.append(self._entry(index))
                        position += 1
                        continue
                position = self._field(block, position, headers)
        except (IndexError, HuffmanInvalid) as error:
            raise HeadersInvalid(f"header block of {end} bytes: {error}") from error
        if not self._has_changed and end <= LONGEST_KNOWN_BYTES and len(self._known) < MOST_KNOWN:
            self._known[block] = headers
        return headers

    def _change(self) -> None:
        self._has_changed = True
        self._known.clear()

    def _field(self, block: bytes, position: int, headers: Headers) -> int:
        first = block[position]
        if first & 0x80:
            index, position = _integer(block, position, 7)
            headers.append(self._entry(index))
            return position
        if first & 0xE0 == 0x20:
            size, position = _integer(block, position, 5)
            if size > LARGEST_TABLE_BYTES:
                raise HeadersInvalid(f"a header table of {size} bytes")
            self._most_bytes = size
            self._change()
            self._shrink()
            return position
        is_kept = bool(first & 0x40)
        index, position = _integer(block, position, 6 if is_kept else 4)
        if index:
            name = self._entry(index)[0]
        else:
            name, position = _string(block, position)
        value, position = _string(block, position)
        headers.append((name, value))
        if is_kept:
            self._change()
            self._table.insert(0, (name, value))
            self._table_bytes += len(name) + len(value) + ENTRY_BYTES
            self._shrink()
        return position

    def _entry(self, index: int) -> Header:
        if index == 0:
            raise HeadersInvalid("a header with index 0")
        return STATIC[index - 1] if index <= len(STATIC) else self._table[index - len(STATIC) - 1]

    def _shrink(self) -> None:
        while self._table_bytes > self._most_bytes and self._table:
            name, value = self._table.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_BYTES


def _integer(block: bytes, position: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[position] & most
    position += 1
    if value < most:
        return value, position
    shift = 0
    while True:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
        if shift > LONGEST_INTEGER_BITS:
            raise HeadersInvalid("an integer without end")


def _string(block: bytes, position: int) -> tuple[bytes, int]:
    is_huffman = bool(block[position] & 0x80)
    length, position = _integer(block, position, 7)
    end = position + length
    if end > len(block):
        raise HeadersInvalid(f"a string of {length} bytes that is cut off")
    text = block[position:end]
    return decode_huffman(text) if is_huffman else text, end


def field_places(block: bytes) -> Iterator[tuple[int, int | None, int]]:
    """Where each field of a block begins, where its value does, and where it ends; no value where it is an index. The
    block has been decoded before, so it keeps the rules."""
    position, end = 0, len(block)
    while position < end:
        first, start = block[position], position
        if first & 0x80:
            _, position = _integer(block, position, 7)
            yield start, None, position
        elif first & 0xE0 == 0x20:
            _, position = _integer(block, position, 5)
        else:
            index, position = _integer(block, position, 6 if first & 0x40 else 4)
            value_start = position if index else _string_end(block, position)
            position = _string_end(block, value_start)
            yield start, value_start, position


def _string_end(block: bytes, position: int) -> int:
    length, position = _integer(block, position, 7)
    return position + length


def plain_block(headers: Iterable[Header]) -> bytes:
    """A block that leaves the reader's table as it is: literals without indexing."""
    return b"".join(b"\x00" + _plain(name) + _plain(value) for name, value in headers)


def _plain(text: bytes) -> bytes:
    length, most = len(text), 0x7F
    if length < most:
        return bytes([length]) + text
    head, rest = bytearray([most]), length - most
    while rest >= 0x80:
        head.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*head, rest]) + text

# SPDX-License-Identifier: Apache-2.0
"""The Huffman code of HTTP/2 header strings, which is canonical and so follows from its lengths (RFC 7541, appendix B).

Never: encodes; what we write ourselves is plain, which every reader understands.
"""

from functools import lru_cache

LENGTHS = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28,
    28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6,
    12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5,
    6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22,
    22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21,
    20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22,
    23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27,
    28, 27, 27, 27, 27, 27, 26, 30,
)  # fmt: skip
END = 256
LONGEST_PADDING = 7


class HuffmanInvalid(ValueError):
    """Bits that are no text in this code."""


def _symbols() -> dict[tuple[int, int], int]:
    """(length, code) to symbol: counted up within a length, shifted from one length to the next."""
    symbols, code, previous = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(LENGTHS)):
        code <<= length - previous
        symbols[length, code] = symbol
        code, previous = code + 1, length
    return symbols


SYMBOLS = _symbols()
# What a byte does to the bits that are left of the bytes before it, filled as text goes by; real text needs a few
# thousand entries. Bits that are left have a 1 in front, so that leading zeros count.
STEPS: dict[int, tuple[bytes, int]] = {}
MOST_STEPS = 16384
NOTHING_LEFT = 1


def _step(left: int, byte: int) -> tuple[bytes, int]:
    out, key = bytearray(), left << 8 | byte
    for shift in range(7, -1, -1):
        left = left << 1 | byte >> shift & 1
        length = left.bit_length() - 1
        symbol = SYMBOLS.get((length, left ^ 1 << length))
        if symbol is not None:
            if symbol == END:
                raise HuffmanInvalid("the end symbol stands inside a string")
            out.append(symbol)
            left = NOTHING_LEFT
    if len(STEPS) < MOST_STEPS:
        STEPS[key] = bytes(out), left
    return bytes(out), left


@lru_cache(maxsize=1024)
def decode_huffman(data: bytes) -> bytes:
    """The text. What is left at the end must be the beginning of the end symbol, which is all ones."""
    out, left = bytearray(), NOTHING_LEFT
    for byte in data:
        text, left = STEPS.get(left << 8 | byte) or _step(left, byte)
        out += text
    if left.bit_length() - 1 > LONGEST_PADDING or left & left + 1:
        raise HuffmanInvalid("the padding is not all ones")
    return bytes(out)

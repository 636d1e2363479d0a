# SPDX-License-Identifier: Apache-2.0
"""Input from seeds: cut, repeated, mixed, with values at the edges of what lengths and numbers may be."""

import random
from collections.abc import Sequence

EDGES = (
    b"\0", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\n", b"\r\n", b"\r",
    b" ", b"\t", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b":", b",", b"=", b"/", b"@", b"%", b"*", b"&", b"-",
    b"---\n", b"null", b"-1", b"1e999", b"18446744073709551616", b"\xed\xa0\x80", b"\xc2\x85", b"\xe2\x80\xa8",
    b"\\ud800", b"NaN",
)  # fmt: skip
MOST_BYTES = 1 << 16


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 8)):
        at = chance.randint(0, len(data))
        match chance.randint(0, 6):
            case 0:
                data[at:at] = chance.choice(EDGES)
            case 1:
                data[at : at + chance.randint(1, 8)] = b""
            case 2 if data:
                data[at % len(data)] = chance.randrange(256)
            case 3 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 4:
                end = chance.randint(at, len(data))
                data[at:at] = data[at:end] * chance.choice((1, 2, 50))
            case 5:
                data[at:at] = chance.choice(seeds)
            case _:
                data[at:] = chance.randbytes(chance.randint(0, 16)) + data[at:]
        # At each step: repeated in all of them, it would be larger than the machine.
        del data[MOST_BYTES:]
    return bytes(data)

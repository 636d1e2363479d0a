# SPDX-License-Identifier: Apache-2.0
"""Header blocks: what every HTTP/2 implementation has to read alike."""

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.proxy.frames.hpack import STATIC, HeaderDecoder, HeadersInvalid, plain_block
from agent.proxy.frames.huffman import LENGTHS, SYMBOLS, HuffmanInvalid, decode_huffman

# Appendix C of RFC 7541.
STRINGS = [
    ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
    ("a8eb10649cbf", "no-cache"),
    ("25a849e95ba97d7f", "custom-key"),
    ("25a849e95bb8e8b4bf", "custom-value"),
    ("aec3771a4b", "private"),
    ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
    ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
]
REQUESTS = [
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", {":path": "/", ":authority": "www.example.com"}),
    ("828684be5886a8eb10649cbf", {":authority": "www.example.com", "cache-control": "no-cache"}),
    ("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf", {":path": "/index.html", "custom-key": "custom-value"}),
]


def test_the_code_is_complete() -> None:
    """RFC 7541 B: every sequence of bits means something, so the lengths fill the tree exactly."""
    assert sum(2 ** (30 - length) for length in LENGTHS) == 2**30
    assert len(LENGTHS) == 257
    assert len(STATIC) == 61


@pytest.mark.parametrize(("bits", "text"), STRINGS)
def test_strings_are_read_as_the_standard_says(bits: str, text: str) -> None:
    """RFC 7541 C."""
    assert decode_huffman(bytes.fromhex(bits)) == text.encode()


def encoded(text: bytes) -> bytes:
    """By the table itself, bit by bit."""
    codes = {symbol: (length, code) for (length, code), symbol in SYMBOLS.items()}
    bits = "".join(format(codes[one][1], f"0{codes[one][0]}b") for one in text)
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big") if bits else b""


@given(st.binary(max_size=200))
def test_every_text_is_read_back(text: bytes) -> None:
    assert decode_huffman(encoded(text)) == text


def test_blocks_of_one_connection_share_a_table() -> None:
    """RFC 7541 C.4: later blocks point to what earlier ones said."""
    decoder = HeaderDecoder()
    for block, expected in REQUESTS:
        headers = {name.decode(): value.decode() for name, value in decoder.decode(bytes.fromhex(block))}

        assert expected.items() <= headers.items()


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=300)), max_size=20))
def test_what_is_written_plainly_is_read_back_and_changes_no_table(headers: list[tuple[bytes, bytes]]) -> None:
    decoder = HeaderDecoder()

    assert decoder.decode(plain_block(headers)) == headers
    assert decoder.decode(bytes.fromhex(REQUESTS[0][0]))[-1] == (b":authority", b"www.example.com")


FEW = st.sampled_from([b"a", b"b", b":path", b"grpc-status", b"x" * 100])


@given(st.lists(st.tuples(st.sampled_from([0, 64, 200, 4096, None]), st.lists(st.tuples(FEW, FEW), max_size=4))))
def test_blocks_that_come_again_mean_what_the_table_says_by_then(
    blocks: list[tuple[int | None, list[tuple[bytes, bytes]]]],
) -> None:
    """What is remembered of a block counts until the table changes; `hpack` is the other end."""
    encoder, decoder = hpack.Encoder(), HeaderDecoder()
    for size, headers in blocks:
        if size is not None:
            encoder.header_table_size = size
        for _ in range(2):
            assert decoder.decode(encoder.encode(headers)) == headers


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(block: bytes) -> None:
    try:
        HeaderDecoder().decode(block)
    except HeadersInvalid:
        return


@pytest.mark.parametrize("bits", ["ffffffff", "00", "fffffffc"])
def test_bits_that_end_wrongly_are_refused(bits: str) -> None:
    with pytest.raises(HuffmanInvalid):
        decode_huffman(bytes.fromhex(bits))


def test_a_table_that_is_made_small_forgets() -> None:
    decoder = HeaderDecoder()
    decoder.decode(bytes.fromhex(REQUESTS[0][0]))
    decoder.decode(b"\x20")

    with pytest.raises(HeadersInvalid):
        decoder.decode(b"\xbe")

# SPDX-License-Identifier: Apache-2.0
"""A parent in place of another: the runtime reads what is meant, whatever the encoder of the client does."""

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.drivers.clock.driver import SystemClock
from agent.model.span import HEADER, Span, read_parent
from agent.proxy.frames import layout as http2
from agent.proxy.frames.hpack import HeaderDecoder, field_places, plain_block
from agent.proxy.frames.layout import HEAD, HEAD_BYTES
from agent.proxy.frames.parent_header import with_parent
from agent.proxy.run.call import ProxyCall
from agent.proxy.run.call_traces import CallTraces
from tests.collector import tree_of

PATH = b"/runtime.v1.RuntimeService/ListContainers"
FIXED = [(b":method", b"POST"), (b":path", PATH), (b"te", b"trailers"), (b"grpc-timeout", b"2M")]


class Sink:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def samples(self, trace_id: int) -> bool:
        return False

    def take(self, spans: list[Span]) -> None:
        self.spans += spans


def value_of(trace: int, *, is_sampled: bool) -> bytes:
    return b"00-%032x-%016x-%02x" % (trace, trace + 1, is_sampled)


def call_of(stream: int) -> ProxyCall:
    return ProxyCall(None, stream, PATH.decode(), None, 0.0)  # type: ignore[arg-type]


def sent_on(traces: CallTraces, decoder: HeaderDecoder, block: bytes, stream: int) -> tuple[ProxyCall, bytes]:
    """The call, and the block that the runtime gets."""
    call = call_of(stream)
    frame = traces.begin(call, decoder.decode(block), block, http2.END_HEADERS)
    if frame is None:
        return call, block
    high, low, kind, flags, found = HEAD.unpack_from(frame)
    assert (high << 16 | low, kind, flags, found) == (len(frame) - HEAD_BYTES, http2.HEADERS, http2.END_HEADERS, stream)
    return call, frame[HEAD_BYTES:]


CALL = st.tuples(
    st.sampled_from([None, 1, 2, 3]),  # whose trace; few, so that encoders come back to them
    st.booleans(),  # whether it is kept
    st.booleans(),  # whether no table may keep it
    st.booleans(),  # huffman
    st.sampled_from([None, 0, 100, 4096]),  # a new size of the table
)


@given(st.lists(CALL, max_size=12))
@example([(1, True, False, False, None), (1, True, False, False, None), (2, True, False, True, None)])
@example([(1, True, False, False, None), (1, False, False, False, None), (1, True, True, False, None)])
def test_the_runtime_reads_our_parent_of_what_is_kept_and_the_clients_of_all_else(
    calls: list[tuple[int | None, bool, bool, bool, int | None]],
) -> None:
    """TRC-12: `hpack` is the client and the runtime."""
    encoder, runtime, decoder = hpack.Encoder(), hpack.Decoder(), HeaderDecoder()
    traces = CallTraces(Sink(), SystemClock())
    for place, (trace, is_sampled, is_secret, huffman, size) in enumerate(calls):
        if size is not None:
            encoder.header_table_size = size
        parent = value_of(trace, is_sampled=is_sampled) if trace is not None else None
        fields = list(FIXED)
        if parent is not None:
            kind = hpack.NeverIndexedHeaderTuple if is_secret else hpack.HeaderTuple
            fields.insert(2 + place % 3, kind(HEADER, parent))
        block = encoder.encode(fields, huffman=huffman)
        call, passed = sent_on(traces, decoder, block, 2 * place + 1)
        read = [(bytes(name), bytes(value)) for name, value in runtime.decode(passed, raw=True)]

        expected = parent
        if call.trace is not None:
            expected = b"00-%032x-%016x-01" % (trace, call.trace.for_runtime.span_id)
        assert (call.trace is not None) is (trace is not None and is_sampled)
        assert read == [(bytes(name), expected if name == HEADER else bytes(value)) for name, value in fields]


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=8))
def test_bytes_of_what_is_not_kept_pass_unchanged_before_anything_is_kept(calls: list[tuple[int, bool]]) -> None:
    """TRC-12."""
    encoder, decoder, traces = hpack.Encoder(), HeaderDecoder(), CallTraces(Sink(), SystemClock())
    for place, (trace, huffman) in enumerate(calls):
        block = encoder.encode([*FIXED, (HEADER, value_of(trace, is_sampled=False))], huffman=huffman)
        assert sent_on(traces, decoder, block, 2 * place + 1)[1] is block


def test_a_call_without_a_parent_gets_one_if_its_trace_is_kept() -> None:
    """TRC-12: a new trace."""
    sink = Sink()
    sink.samples = lambda _trace: True  # type: ignore[method-assign]
    traces, decoder, runtime = CallTraces(sink, SystemClock()), HeaderDecoder(), hpack.Decoder()
    block = hpack.Encoder().encode(FIXED)
    call, passed = sent_on(traces, decoder, block, 1)
    read = dict(runtime.decode(passed, raw=True))

    assert passed.startswith(block)
    assert call.trace is not None
    assert read_parent(read[HEADER]) == call.trace.for_runtime
    call.code, call.is_over = 0, True
    traces.end(call, call.trace)
    name = PATH.decode()[1:]
    assert tree_of(sink.spans, 0) == {name: {name: {}}}


@pytest.mark.parametrize(
    "fields",
    [
        [(HEADER, b"rubbish")],
        [(HEADER, value_of(1, is_sampled=True)), (HEADER, value_of(2, is_sampled=True))],
        [(HEADER, value_of(1, is_sampled=True) + b"-more")],
    ],
)
def test_what_is_no_parent_is_left_as_it_is(fields: list[tuple[bytes, bytes]]) -> None:
    """TRC-12."""
    sink = Sink()
    sink.samples = lambda _trace: True  # type: ignore[method-assign]
    block = hpack.Encoder().encode([*FIXED, *fields])
    call, passed = sent_on(CallTraces(sink, SystemClock()), HeaderDecoder(), block, 1)
    assert passed is block
    assert call.trace is not None


@pytest.mark.parametrize("flags", [0, http2.PADDED])
def test_headers_in_pieces_or_without_room_pass_as_they_are(flags: int) -> None:
    """TRC-12."""
    large = plain_block([*FIXED, (b"x", b"y" * (http2.FIRST_LARGEST_FRAME - 100))])
    sink = Sink()
    sink.samples = lambda _trace: True  # type: ignore[method-assign]
    traces = CallTraces(sink, SystemClock())
    small = plain_block(FIXED)
    assert traces.begin(call_of(1), HeaderDecoder().decode(small), small, flags) is None
    assert traces.begin(call_of(3), HeaderDecoder().decode(large), large, http2.END_HEADERS) is None


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=300)), max_size=8), st.booleans())
def test_places_of_fields_are_those_that_a_decoder_reads(fields: list[tuple[bytes, bytes]], huffman: bool) -> None:
    block = hpack.Encoder().encode(fields, huffman=huffman)
    places = list(field_places(block))
    assert len(places) == len(fields)
    assert [start for start, _, _ in places] == [0, *(stop for _, _, stop in places[:-1])][: len(places)]
    assert with_parent(plain_block(FIXED), FIXED, b"v").block == plain_block([*FIXED, (HEADER, b"v")])

# SPDX-License-Identifier: Apache-2.0
"""How a connection is given up: every call that was taken is answered, every other one is told to go elsewhere."""

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agent.api.graceful_goaway import Parting

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS = 1, 4
ACK = 1


def frame(kind: int, stream: int = 0, body: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def farewell(last: int) -> bytes:
    return frame(GOAWAY, 0, struct.pack(">II", last, 0)) + frame(PING, 0, bytes(8))


def call(stream: int) -> bytes:
    return frame(HEADERS, stream, b"ask", END_HEADERS) + frame(DATA, stream, b"message", END_STREAM)


def answer(stream: int) -> bytes:
    trailers = frame(HEADERS, stream, b"t", END_STREAM | END_HEADERS)
    return frame(HEADERS, stream, b"head", END_HEADERS) + frame(DATA, stream, b"body") + trailers


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


CUTS = st.lists(st.integers(0, 10_000), max_size=12)


@given(CUTS, CUTS)
def test_until_then_everything_passes_as_it_comes(asked: list[int], answered: list[int]) -> None:
    one = Parting()
    questions = PREFACE + frame(SETTINGS) + call(1) + frame(PING, 0, b"12345678") + call(3)
    answers = frame(SETTINGS) + answer(1) + frame(RST_STREAM, 3, b"\0\0\0\0")

    assert b"".join(map(one.from_client, pieces(questions, asked))) == questions
    assert set(one.open) == {1, 3}
    assert b"".join(map(one.from_server, pieces(answers, answered))) == answers
    assert (one.open, one.is_done) == ({}, False)


@given(CUTS, CUTS, st.integers(0, 200))
def test_the_farewell_stands_between_two_frames_and_names_the_last_call(
    asked: list[int], answered: list[int], when: int
) -> None:
    one = Parting()
    one.from_client(PREFACE + frame(SETTINGS) + call(1) + call(5))
    answers = frame(SETTINGS) + answer(1) + answer(5)
    sent, parts = b"", pieces(answers, [*answered, when])
    for part in parts:
        if len(sent) >= when % len(answers):
            one.begin()
        sent += one.from_server(part)
    one.begin()
    sent += one.farewell()
    unwanted = frame(HEADERS, 9, b"x") + frame(9, 9, b"y")
    later = frame(PING, 0, b"12345678") + call(7) + frame(DATA, 5, b"more") + unwanted

    assert sent.count(farewell(5)) == 1
    assert sent.replace(farewell(5), b"") == answers
    before = sent.partition(farewell(5))[0]
    assert before in {answers[:end] for end in boundaries(answers)[1:]}
    assert b"".join(map(one.from_client, pieces(later, asked))) == frame(PING, 0, b"12345678") + frame(DATA, 5, b"more")
    assert one.is_done
    assert one.farewell() == b""


def boundaries(data: bytes) -> list[int]:
    found, at = [0], 0
    while at < len(data):
        at += 9 + int.from_bytes(data[at : at + 3], "big")
        found.append(at)
    return found


def test_nothing_is_said_before_the_server_has_greeted() -> None:
    one = Parting()
    one.from_client(PREFACE + frame(SETTINGS))
    one.begin()
    assert one.farewell() == b""
    assert one.from_client(call(1)) == b""

    assert one.from_server(frame(SETTINGS)[:5]) == b""
    assert one.from_server(frame(SETTINGS)[5:]) == frame(SETTINGS) + farewell(0)
    assert one.is_done


def test_a_call_is_open_until_its_last_byte_has_gone_out() -> None:
    one = Parting()
    one.from_client(PREFACE + call(1))
    one.begin()
    end = frame(DATA, 1, b"body", END_STREAM)
    one.from_server(frame(SETTINGS) + end[:-1])
    assert not one.is_done
    assert one.from_server(end[-1:]) == end[-1:] + farewell(1)

    assert one.is_done


def test_a_call_that_its_client_gives_up_is_over() -> None:
    one = Parting()
    one.from_client(PREFACE + call(1))
    one.from_server(frame(SETTINGS))
    one.begin()
    assert one.farewell() == farewell(1)
    assert not one.is_done
    one.from_client(frame(RST_STREAM, 1, b"\0\0\0\0"))

    assert one.is_done


@given(CUTS, st.integers(0, 3))
def test_the_farewell_was_heard_once_its_own_ping_is_answered(cuts: list[int], pings: int) -> None:
    """Answers to the server's pings come before that; the server, which asked nothing more, gets none of it."""
    parting = Parting()
    parting.from_client(PREFACE + frame(SETTINGS) + call(1))
    parting.from_server(frame(SETTINGS) + answer(1) + frame(PING, 0, b"of kepd.") * pings)
    reply = frame(PING, 0, b"12345678", ACK)
    parting.begin()
    assert parting.farewell() == farewell(1)
    for piece in pieces(reply * pings, cuts):
        assert parting.from_client(piece) == b""
    assert not parting.was_heard
    parting.from_client(reply)

    assert (parting.was_heard, parting.is_done) == (True, True)


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_what_is_no_http_harms_nobody(chunks: list[bytes]) -> None:
    """Of a frame whose head never becomes whole, the head stays."""
    one, sent = Parting(), b"".join(chunks)
    questions = b"".join(map(one.from_client, chunks))
    answers = b"".join(map(one.from_server, chunks))

    assert sent.startswith(questions)
    assert sent.startswith(answers)
    assert len(sent) - min(len(questions), len(answers)) < 9


def test_the_farewell_waits_for_the_end_of_a_header_block() -> None:
    """FI-4: between HEADERS and CONTINUATION it would end the connection."""
    parting = Parting()
    parting.from_client(b"P" * 24 + call(1) + call(3))
    parting.from_server(frame(4))
    parting.begin()
    first = parting.from_server(frame(1, 1, b"half", flags=0))
    whole = parting.from_server(frame(9, 1, b"rest", flags=END_HEADERS))

    assert first == frame(1, 1, b"half", flags=0)
    assert whole == frame(9, 1, b"rest", flags=END_HEADERS) + farewell(3)

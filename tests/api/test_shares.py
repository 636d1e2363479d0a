# SPDX-License-Identifier: Apache-2.0
"""FX-2: what all connections and calls of a user may hold together."""

import asyncio
import os
import struct

from agent.api.parting import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD,
    HEADERS,
    MOST_HEADER_BYTES,
    PREFACE_BYTES,
    RESETS_A_SECOND,
    RESETS_AT_ONCE,
    RST_STREAM,
    Parting,
)
from agent.api.shares import Shares, Turns

ALICE, BOB = os.geteuid() + 1000, os.geteuid() + 1001


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def test_a_user_has_a_share_and_all_together_another() -> None:
    shares = Shares(10, 15)

    assert [shares.take(ALICE, 8), shares.take(ALICE, 3), shares.take(BOB, 8), shares.take(BOB, 7)] == [
        True, False, False, True,
    ]  # fmt: skip
    shares.take(ALICE, -8)
    assert shares.take(ALICE, 8)
    assert shares.held_bytes == 15
    assert shares.take(0, 1 << 30), "root ends the daemon anyway"


def test_requests_count_from_their_first_byte_to_their_answer() -> None:
    one = Parting()
    one.from_client(bytes(PREFACE_BYTES) + frame(HEADERS, 4, 1) + frame(HEADERS, 4, 3))
    one.from_client(HEAD.pack(500 >> 8, 500 & 255, DATA, 0, 1) + bytes(10))
    announced = one.held_bytes
    one.from_client(bytes(490) + frame(DATA, END_STREAM, 3, bytes(100)))
    whole = one.held_bytes
    one.from_server(frame(HEADERS, 4 | END_STREAM, 3))
    answered = one.held_bytes
    one.from_client(frame(RST_STREAM, 0, 1, bytes(4)) + frame(DATA, 0, 1, bytes(7)))

    assert (announced, whole, answered, one.held_bytes) == (500, 600, 500, 0)


def test_a_block_of_headers_that_does_not_end_is_noticed() -> None:
    one = Parting()
    one.from_client(bytes(PREFACE_BYTES) + frame(HEADERS, 4, 1, bytes(MOST_HEADER_BYTES)))
    one.from_client(frame(HEADERS, 0, 3, bytes(10)) + frame(CONTINUATION, 0, 3, bytes(MOST_HEADER_BYTES - 10)))
    before = one.fault
    one.from_client(frame(CONTINUATION, 0, 3, bytes(1)))

    assert before == ""
    assert "bytes of headers" in one.fault


def test_who_gives_up_calls_faster_than_it_could_follow_anything_is_cut_off() -> None:
    """FX-2: as with HTTP/2's rapid reset, a call that is begun and given up costs us more than its client."""
    now_s = 0.0
    one = Parting(lambda: now_s)
    one.from_client(bytes(PREFACE_BYTES))
    stream = 1

    def give_up(count: int) -> str:
        nonlocal stream
        for _ in range(count):
            one.from_client(frame(HEADERS, 4, stream) + frame(RST_STREAM, 0, stream, bytes(4)))
            stream += 2
        return one.fault

    at_once = give_up(RESETS_AT_ONCE)
    now_s = 1.0
    later = give_up(int(RESETS_A_SECOND))

    assert (at_once, later) == ("", "")
    assert "given up" in give_up(1)


async def test_calls_of_a_user_wait_for_each_other_and_not_for_those_of_others() -> None:
    turns = Turns(2, 3)
    at_work: list[int] = []
    go = asyncio.Event()

    async def call(uid: int) -> None:
        async with turns.turn(uid):
            at_work.append(uid)
            await go.wait()

    calls = [asyncio.create_task(call(uid)) for uid in (ALICE, ALICE, ALICE, ALICE, BOB, BOB, 0)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first = sorted(at_work)
    go.set()
    await asyncio.gather(*calls)

    assert first == [0, ALICE, ALICE, BOB]
    assert len(at_work) == len(calls)
    assert turns._lines == {}

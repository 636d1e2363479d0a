# SPDX-License-Identifier: Apache-2.0
"""FX-2: what all connections and calls of a user may hold together."""

import asyncio
import os
import struct

from agent.api.call_quota import Shares, Turns
from agent.api.graceful_goaway import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEAD,
    HEADERS,
    MOST_HEADER_BYTES,
    PREFACE_BYTES,
    RST_STREAM,
    ClientFrames,
    Parting,
)
from agent.model.allowance import MOST_CALLERS, CallerMeter, Share

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


def test_what_a_client_sends_is_told_apart_and_counted_once() -> None:
    """As with HTTP/2's rapid reset, what serves no call costs us more than its client."""
    one = Parting()
    one.from_client(bytes(PREFACE_BYTES))
    begun = frame(HEADERS, 4, 1) + frame(DATA, 0, 1, bytes(9))
    one.from_client(begun + frame(RST_STREAM, 0, 1, bytes(4)) + frame(DATA, 0, 1, bytes(1024)) + frame(0x77, 0, 0))

    assert one.asked() == ClientFrames(calls=1, resets=1, others=1 + 2 + 1)
    assert one.asked() == ClientFrames()


def test_each_caller_has_a_share_however_often_it_comes() -> None:
    meter = CallerMeter({"calls": Share(3, 1), "bytes": Share(10, 10)})
    first = [meter.take(ALICE, "calls", 0.0) for _ in range(5)]

    assert first == [0, 0, 0, 1, 2]
    assert meter.take(BOB, "calls", 0.0) == 0
    assert [meter.take(BOB, "calls", 0.0, refuses=True) for _ in range(5)] == [0, 0, 1, 1, 1]
    assert meter.take(ALICE, "bytes", 0.0, 30) == 2
    assert meter.take(ALICE, "calls", 100.0) == 0


def test_who_goes_too_far_again_is_barred_for_longer() -> None:
    meter = CallerMeter({})
    barred = []
    now_s = 0.0
    for _ in range(8):
        barred.append(meter.bar(ALICE, "too much", now_s))
        assert meter.bar(ALICE, "too much", now_s) == 0
        now_s += barred[-1]

    assert barred == [1, 2, 4, 8, 16, 32, 60, 60]
    assert meter.barred(BOB, 0.0) == ""
    assert meter.barred(ALICE, now_s - 0.1) == "too much"
    assert meter.barred(ALICE, now_s) == ""
    assert meter.bar(ALICE, "too much", now_s + 1000) == 1


def test_a_meter_remembers_no_more_callers_than_it_may() -> None:
    meter = CallerMeter({"calls": Share(1, 1)})
    for caller in range(MOST_CALLERS * 2):
        meter.take(caller, "calls", 0.0)
        meter.bar(caller, "too much", 0.0)

    assert len(meter._taken) == len(meter._bars) == MOST_CALLERS


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

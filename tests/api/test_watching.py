# SPDX-License-Identifier: Apache-2.0
"""Streams that many read cost as much as one."""

import asyncio
from collections.abc import AsyncIterator

from agent.api.watching import SharedStream
from agent.wire.kepd.v1 import node_pb2 as pb


class Source:
    """Samples when the test says so."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.made = 0
        self.go: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def __call__(self, interval_s: float) -> AsyncIterator[pb.ListStatsResponse]:
        self.begun.append(interval_s)
        while (error := await self.go.get()) is None:
            self.made += 1
            yield pb.ListStatsResponse(node=pb.NodeUsage())
        raise error


async def test_all_readers_of_an_interval_share_one_sample_and_one_message() -> None:
    """256 watches of 270 containers kept all other callers waiting for seconds."""
    source = Source()
    stream = SharedStream(source)
    readers = [stream.follow(1.2 + number / 1000) for number in range(100)]
    waiting = [asyncio.create_task(anext(reader)) for reader in readers]
    await asyncio.sleep(0)
    source.go.put_nowait(None)
    first = await asyncio.gather(*waiting)
    late = stream.follow(2.0)
    again = await anext(late)

    assert source.begun == [2.0]
    assert source.made == 1
    assert all(one is first[0] for one in (*first, again))
    for reader in (*readers, late):
        await reader.aclose()
    assert stream._running == {}


async def test_a_reader_that_is_slow_misses_some_and_holds_up_no_other() -> None:
    source = Source()
    stream = SharedStream(source)
    slow, quick = stream.follow(1.0), stream.follow(1.0)
    first = [asyncio.create_task(anext(slow)), asyncio.create_task(anext(quick))]
    await asyncio.sleep(0)
    source.go.put_nowait(None)
    await asyncio.gather(*first)
    for _ in range(5):
        source.go.put_nowait(None)
        await anext(quick)
    await anext(slow)
    left = asyncio.create_task(anext(slow))
    await asyncio.sleep(0)

    assert not left.done()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    await quick.aclose()
    assert stream._running == {}


async def test_what_fails_fails_for_each_reader_and_begins_anew() -> None:
    source = Source()
    stream = SharedStream(source)
    waiting = [asyncio.create_task(anext(stream.follow(1.0))) for _ in range(3)]
    await asyncio.sleep(0)
    source.go.put_nowait(ValueError("no runtime"))
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    anew = asyncio.create_task(anext(stream.follow(1.0)))
    await asyncio.sleep(0)
    source.go.put_nowait(None)

    assert [str(one) for one in failed] == ["no runtime"] * 3
    assert await anew
    assert source.begun == [1.0, 1.0]

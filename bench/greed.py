# SPDX-License-Identifier: Apache-2.0
"""Greedy callers at each door: what another user and a liveness probe see while one does its worst.

A real containerd, and a kepd with the planes proxy and images. Each greedy caller has sixteen connections, starts anew
whatever is ended, and is of the lowest level that its door takes: a member of the read group, or root at the socket of
the CRI proxy. The other user calls GetNode a hundred times a second at most. Ratios are to the same without greed.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpc

from agent.wire.kepd.v1 import image_pb2
from bench.daemon import free_port
from tests.greed.greedy import DOORS
from tests.greed.witness import WATCHDOG_S, Doors, Seen, open_doors
from tests.lab import Lab

Row = tuple[str, float, str, str]
IDLE_S, GREED_S = 5.0, 20.0
STREAMS = 500
SEVEN = ("window", "ping", "calls", "lists", "watches", "connects", "calls given up")
MIB = 1 << 20


def rows(kind: str, seen: Seen, idle: Seen, most_ms: float) -> list[Row]:
    return [
        (f"{kind}: another user's GetNode", seen.p99_s * 1000, "ms p99", f"≤ {most_ms:g}"),
        (f"{kind}: the same against idle", seen.p99_s / idle.p99_s, "×", "≤ 5"),
        (f"{kind}: /livez", seen.page_s * 1000, "ms most", "≤ 100"),
        (f"{kind}: the loop late, at a look each second", seen.late_s * 1000, "ms most", "≤ 50"),
        (f"{kind}: between two signs of life", seen.silent_s, "s most", f"≤ {WATCHDOG_S / 2 + 1:g}"),
        (f"{kind}: memory", seen.grown_bytes / MIB, "MiB more", "≤ 64"),
        (f"{kind}: processor time of kepd", seen.cpu_s / GREED_S * 100, "% of a core", ""),
        (f"{kind}: calls of the other user that failed", len(seen.failed), "calls", "0"),
    ]


async def pulls(doors: Doors, registry: str) -> list[Row]:
    """Images that the registry does not have, so that kepd's own part is all there is."""

    def stream(number: int, images: Sequence[str]) -> "grpc.aio.UnaryStreamCall[bytes, image_pb2.PullImageResponse]":
        call = channels[number % len(channels)].unary_stream(
            "/kepd.v1.ImageService/PullImage", response_deserializer=image_pb2.PullImageResponse.FromString
        )
        return call(image_pb2.PullImageRequest(images=images).SerializeToString(), timeout=300)

    async def messages(number: int, images: Sequence[str]) -> int:
        return len([one async for one in stream(number, images)])

    options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.aio.insecure_channel(f"unix:{doors.of['api']}", options=[*options, ("n", number)]) for number in range(12)
    ]
    counts = [await messages(0, [f"{registry}/call{size}/{n}:1" for n in range(size)]) for size in (20, 200)]
    watching = asyncio.create_task(asyncio.to_thread(doors.watch, GREED_S))
    await asyncio.sleep(1.0)
    before_s = doors.cpu_s()
    await asyncio.gather(*(messages(number, [f"{registry}/stream/{number}:1"]) for number in range(STREAMS)))
    took_s = doors.cpu_s() - before_s
    seen = await watching
    for channel in channels:
        await channel.close()
    return [
        (f"{STREAMS} pull streams: processor time of kepd", took_s, "s", "≤ 3"),
        (f"{STREAMS} pull streams: another user's GetNode", seen.p99_s * 1000, "ms p99", "≤ 50"),
        ("200 images in one call: messages an image", counts[1] / 200, "messages", ""),
        ("the same against 20 images in one call", counts[1] / 200 / (counts[0] / 20), "×", "about 1"),
    ]


def measured(doors: Doors, registry: str) -> list[Row]:
    idle = doors.watch(IDLE_S)
    found: list[Row] = [("nobody is greedy: GetNode", idle.p99_s * 1000, "ms p99", "")]
    for door, kinds in DOORS.items():
        for kind in kinds:
            found += rows(f"{door}/{kind}", doors.watch(GREED_S, [f"{door}/{kind}"]), idle, 50)
    found += asyncio.run(pulls(doors, registry))
    return found + rows("seven at once", doors.watch(GREED_S, [f"api/{kind}" for kind in SEVEN]), idle, 250)


def measure() -> list[Row]:
    """All rows."""
    with (
        Lab.start() as lab,
        tempfile.TemporaryDirectory(prefix="kg") as name,
        open_doors(Path(name), free_port(), lab.endpoint, "proxy", "images") as doors,
    ):
        return measured(doors, lab.registry.address)

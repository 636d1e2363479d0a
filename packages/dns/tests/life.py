# SPDX-License-Identifier: Apache-2.0
"""kepd-dns answers, keeps, forgets, is flooded, lied to and killed, and a plane looks on (DNS-102, DNS-103)."""

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent.drivers.clock.driver import SystemClock
from agent.model.component import Board, State
from agent.model.services.nft_error import NftFailed
from kepd_dns.rules.guards import Asking
from kepd_dns.run.metrics import dns_metrics, figures
from kepd_dns.run.metrics_compat import coredns_metrics
from kepd_dns.run.plane import DnsPlane
from kepd_dns.run.probe import probe
from packages.dns.tests.messages import ask as question
from packages.dns.tests.test_process import HERE, Running, running, server
from tests.lives.figures import Watched


class _Kernel:
    """Takes what it is given, at the second time; two strangers came."""

    is_new = True

    async def put(self, asking: Asking, live: Collection[str]) -> None:
        del asking, live
        if self.is_new:
            self.is_new = False
            raise NftFailed("not yet")

    async def refresh(self, address: str) -> None:
        del address

    withdraw = refresh

    async def is_there(self) -> bool:
        return True

    is_intact = is_there

    async def remove(self) -> None:
        """Nothing is there."""

    async def input_drops(self) -> Sequence[str]:
        return ("chain input of table firewall",)

    async def strangers(self) -> int:
        return 2

    async def changes(self) -> AsyncGenerator[str, None]:
        await asyncio.Event().wait()
        yield ""


class _Links:
    def add(self, address: str) -> None:
        del address

    remove = add

    def present(self, addresses: Any) -> set[str]:
        return set(addresses)

    async def changes(self) -> AsyncGenerator[None, None]:
        await asyncio.Event().wait()
        yield


async def dns_life(folder: Path) -> set[str]:
    """What moved."""
    async with running(folder, per_source_qps=2000, cache_bytes=8192, has_cluster=True) as process:
        plane = _plane(process)
        watched = Watched(lambda: (*dns_metrics(figures(plane)), *coredns_metrics(figures(plane))))
        task = asyncio.create_task(plane.run(Board(lambda: 0.0).add("dns", State.STARTING)))
        try:
            async with asyncio.timeout(30):
                while not plane.live.get(HERE) or not plane.live[HERE].is_live:
                    await asyncio.sleep(0.02)
            watched.look()
            await _trouble(process)
            await plane.look()
            watched.look()
            process.end()
            async with asyncio.timeout(30):
                while not plane.fallbacks:
                    await asyncio.sleep(0.02)
        finally:
            task.cancel()
            await asyncio.wait([task])
        watched.look()
        return watched.moved


def _plane(process: Running) -> DnsPlane:
    asking = Asking(family="IPv4", addresses=(HERE,), falls_back=True)
    return DnsPlane(
        {"IPv4": _Kernel()}, _Links(), process.writer, process.client, SystemClock(), lambda _event: None,
        asking=lambda _family: asking, settings=lambda: process.settings,
        ask=partial(_unmarked, port=process.port),
    )  # fmt: skip


async def _unmarked(address: str, kind: socket.SocketKind, port: int) -> Any:
    return await probe(address, kind, port, opens=_Unmarked)


class _Unmarked(socket.socket):
    """Without the mark, which takes a right."""

    def setsockopt(self, *_: Any) -> None:
        """Nothing."""


async def _trouble(process: Running) -> None:
    silent = lambda *_: ()  # noqa: E731
    spoof = lambda _server, data, _way: tuple(bytes((data[0] ^ n, 1)) + data[2:] for n in range(1, 20))  # noqa: E731
    async with server(delay_s=0.05) as good, server(silent) as mute, server(spoof) as liar, server(silent) as mute_too:
        await process.use(good)
        same = [question("same.example", id_=number) for number in range(300)]
        await asyncio.to_thread(process.raw, *same, within_s=1.0)
        many = [question(f"n{number}.example", id_=number) for number in range(100)]
        await asyncio.to_thread(process.raw, *many, within_s=1.0)
        await process.use_for_cluster(good)
        for number in range(40):
            await process.ask(f"x{number}.cluster.local", "TXT")
        await process.set(ttl_min_s=2, ttl_max_s=2)
        for _ in range(12):
            await process.ask("often.example")
            await asyncio.sleep(0.15)
        await process.use(liar)
        await process.ask("spoofed.example", within_s=1.0)
        await process.use(mute, good)
        await process.ask("slow.example", within_s=3.0)
        await process.use(mute, mute_too)
        out = [question(f"out{number}.example", id_=number) for number in range(8)]
        await asyncio.to_thread(process.raw, *out, within_s=2.3)
        await process.ask("often.example", within_s=2.3)
        await asyncio.to_thread(process.raw, b"short", b"\0" * 40, within_s=0.1)
        flood = [question("localhost", id_=number) for number in range(6000)]
        await asyncio.to_thread(process.raw, *flood, within_s=0.2, count=10_000)
        assert process.child is not None
        process.child.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(process.raw, *flood, *flood, *flood, *flood, within_s=0.1, count=1)
        process.child.send_signal(signal.SIGCONT)
        await process.use(mute)
        await process.ask("waiting.example", tcp=True, within_s=2.5)

# SPDX-License-Identifier: Apache-2.0
"""A real kube-proxy and kepd in turn: the same API server, the same objects, each in a network namespace of its own.

Measures what both do from outside: connects show when something is programmed. `KEPD_KUBE_PROXY=PATH python -m bench
kube_proxy` renews the section; without the program there is nothing to measure. With KUBECONFIG the objects are written
to that server (namespace kepd-bench, addresses from 10.96.0.0/16), else to the test server. Nobody's rules but those of
the namespaces are touched.
"""

import asyncio
import random
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.daemon import resident_mib
from bench.kube_proxy_place import (
    FIRST,
    Cluster,
    Contender,
    cluster,
    kepd_in,
    kube_proxy_in,
    program_path,
    reachable,
    version,
    watched,
)
from bench.services_inside import HERE, Answering, endpoints, vip
from tests.lab.callers import Caller
from tests.lab.namespace import Namespace

Row = tuple[str, float, str, str]
SIZES = {"nftables": (1000, 10_000), "iptables": (1000,)}
ROUNDS = {1000: 2, 10_000: 1}
CHANGES, REST_S = 10, 1.5
IDLE_S, CHURN_S, CHURN_PER_S = 10.0, 15.0, 20
WITHIN_S = 300.0
PATIENCE_S = 0.04
FIGURES = {
    "start": ("process start to all programmed", "s"),
    "change": ("API write of one endpoint to traffic", "ms p50"),
    "memory": ("resident memory", "MiB"),
    "idle": ("idle", "% of a core"),
    "churn": (f"{CHURN_PER_S} endpoint changes a second", "% of a core"),
    "behind": ("the same, the last of them to traffic", "ms"),
    "lines": ("lines of `nft list ruleset`", ""),
    "restart": ("process start to a missed change, rules there", "s"),
}


class Trial:
    """One contender on one size."""

    def __init__(self, cluster_: Cluster, contender: Contender, space: Namespace, caller: Caller, size: int) -> None:
        self._cluster, self._contender, self._space, self._caller = cluster_, contender, space, caller
        self._size = size
        self._turn = 0

    async def run(self) -> dict[str, float]:
        began_s = self._contender.start()
        found = {"start": await self._until_all() - began_s}
        await asyncio.sleep(3.0)
        found["memory"] = resident_mib(self._contender.pid)
        found["idle"] = await self._share(IDLE_S)
        times = []
        for _ in range(CHANGES):
            times.append(await self._change())
            await asyncio.sleep(REST_S)
        found["change"] = statistics.median(times)
        found["churn"], found["behind"] = await self._churn()
        found["lines"] = await asyncio.to_thread(self._lines)
        await asyncio.sleep(REST_S)
        self._contender.end()
        await self._point()
        began_s = self._contender.start()
        found["restart"] = await self._until_there() - began_s
        self._contender.end()
        return found

    def _lines(self) -> int:
        return self._space.run("nft", "list", "ruleset", within_s=WITHIN_S).count("\n")

    async def _until_all(self) -> float:
        """One after the other: while one is not there yet, each look at it costs its whole patience."""
        until_s = time.perf_counter() + WITHIN_S
        for number in watched(self._size):
            while not await asyncio.to_thread(self._answer, vip(number)):
                if self._contender.pid and time.perf_counter() > until_s:
                    raise RuntimeError(f"{self._contender.name} has not programmed everything within {WITHIN_S} s")
        return time.perf_counter()

    def _answer(self, address: str) -> bytes:
        def ask() -> bytes:
            with suppress(OSError), socket.create_connection((address, 80), PATIENCE_S) as client:
                return client.recv(1)
            return b""

        return self._caller.run(ask)

    async def _point(self) -> None:
        self._turn += 1
        await self._cluster.point(FIRST, [HERE[self._turn % 2]])

    async def _until_there(self) -> float:
        wanted, until_s = HERE[self._turn % 2][-1].encode(), time.perf_counter() + WITHIN_S
        while await asyncio.to_thread(self._answer, vip(FIRST)) != wanted:
            if time.perf_counter() > until_s:
                raise RuntimeError(f"{self._contender.name} did not follow within {WITHIN_S} s")
        return time.perf_counter()

    async def _change(self) -> float:
        began_s = time.perf_counter()
        await self._point()
        return (await self._until_there() - began_s) * 1000

    async def _share(self, during_s: float) -> float:
        before = self._contender.cpu_s()
        await asyncio.sleep(during_s)
        return (self._contender.cpu_s() - before) / during_s * 100

    async def _churn(self) -> tuple[float, float]:
        """Share of a core, and how late the last change is. No two trials make the same changes: they would be none."""
        chance = random.Random()
        before, began_s = self._contender.cpu_s(), time.perf_counter()
        for count in range(int(CHURN_S * CHURN_PER_S)):
            number = chance.randrange(FIRST, FIRST + self._size)
            if number not in watched(self._size):
                fresh = f"10.{chance.randrange(200, 250)}.{count % 250}.{chance.randrange(1, 250)}"
                await self._cluster.point(number, [*endpoints(number)[1:], fresh])
            await asyncio.sleep(max(0.0, began_s + (count + 1) / CHURN_PER_S - time.perf_counter()))
        behind_ms = await self._change()
        took_s = time.perf_counter() - began_s
        return (self._contender.cpu_s() - before) / took_s * 100, behind_ms


async def trial(cluster_: Cluster, make: Callable[..., Contender], backend: str, size: int) -> dict[str, float]:
    """In a namespace of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        space = stack.enter_context(Namespace())
        for address in HERE:
            space.run("ip", "addr", "add", f"{address}/32", "dev", "lo")
        space.run("ip", "route", "add", "10.96.0.0/11", "dev", "lo")
        space.call(Answering)
        caller = stack.enter_context(Caller(space, "", ""))
        inside = stack.enter_context(reachable(cluster_.path, space, folder))
        contender = make(space, folder, backend, inside)
        stack.callback(contender.end)
        await cluster_.point(FIRST, [HERE[0]])
        return await Trial(cluster_, contender, space, caller, size).run()


async def compare(backend: str, size: int) -> list[Row]:
    """Both in turn, several times; the medians."""
    makers = (kepd_in, kube_proxy_in)
    found: dict[str, list[dict[str, float]]] = {make.__name__: [] for make in makers}
    async with cluster() as made:
        await made.fill(size)
        try:
            for round_ in range(ROUNDS[size]):
                for make in makers if round_ % 2 == 0 else makers[::-1]:
                    found[make.__name__].append(await trial(made, make, backend, size))
                    print(f"{backend} {size} {make.__name__}: {found[make.__name__][-1]}", file=sys.stderr, flush=True)
        finally:
            await made.empty(size)
    ours, theirs = (
        {key: statistics.median(one[key] for one in found[make.__name__]) for key in FIGURES} for make in makers
    )
    return [
        row(f"{backend}, {size} Services x 10: {FIGURES[key][0]}", FIGURES[key][1], ours[key], theirs[key])
        for key in FIGURES
    ]


def row(what: str, unit: str, ours: float, theirs: float) -> Row:
    ratio = f", {figure(theirs / ours)} × ours" if ours and theirs else ""
    return what, ours, unit, f"{version()}: {figure(theirs)} {unit}".rstrip() + ratio


def figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def measure() -> Iterator[Row]:
    if not program_path():
        raise SystemExit("set KEPD_KUBE_PROXY to the program to measure beside; nothing was measured")
    for backend, sizes in SIZES.items():
        for size in sizes:
            yield from asyncio.run(compare(backend, size))

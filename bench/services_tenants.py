# SPDX-License-Identifier: Apache-2.0
"""What single objects of tenants cost: a hot Service, UDP flows, a crowd of claims, a slice with many ports.

Runs inside a network namespace of its own, as bench/services_inside.py does, which prints the rows.
"""

import asyncio
import resource
import socket
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.conntrack.driver import Conntrack
from agent.drivers.host_sockets.driver import HostSockets
from agent.drivers.nft.driver import NftTable
from agent.model.component import Board, State
from agent.services.objects.node_state import NodeSettings
from agent.services.objects.reading_service import ReadService
from agent.services.ruleset import SyncReport
from agent.services.run.connection_ender import ConnectionEnder, EndingSettings
from agent.services.run.flow_cleaner import FlowCleaner
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.services.making import make_service, make_slice

Row = tuple[str, float, str, str]
CHANGES, STEP_S = 30, 0.01
PORTS = [{"name": f"p{one}", "protocol": "TCP", "port": 80 + one, "nodePort": 30080 + one} for one in range(5)]
TARGETS = [{"name": one["name"], "protocol": "TCP", "port": 8080 + at} for at, one in enumerate(PORTS)]
UDP = ({"name": "dns", "protocol": "UDP", "port": 53},)


class Running:
    """A plane with the kernel, its flow cleaner, and how late the loop was at most."""

    def __init__(self) -> None:
        settings = NodeSettings(node="n0", addresses=("192.168.0.10",))
        self.intake = ServiceInputs(settings, tell=print, started_s=0.0)
        self.table = NftTable("IPv4")
        self.plane = ServicesPlane(
            self.intake, {"IPv4": NftRuleset(self.table)}, clock=SystemClock(), tell=lambda _: None
        )
        self.conntrack = Conntrack()
        self.cleaner = FlowCleaner(self.plane, self.conntrack)
        self.reports: list[SyncReport] = []
        self.plane.followers.append(self.cleaner.follow)
        self.plane.followers.append(lambda _family, report: self.reports.append(report))
        self.late_s = 0.0
        self.watch_s = STEP_S

    async def watch(self) -> None:
        """How long others keep the loop from this."""
        while True:
            began_s, step_s = time.perf_counter(), self.watch_s
            await asyncio.sleep(step_s)
            self.late_s = max(self.late_s, time.perf_counter() - began_s - step_s)

    async def change(self, deed: Callable[[], None]) -> tuple[float, int]:
        """Milliseconds of the loop until the kernel has it, and elements written."""
        await asyncio.sleep(0.06)
        seen, cpu_s = len(self.reports), time.thread_time()
        deed()
        while len(self.reports) == seen:
            await asyncio.sleep(STEP_S)
        return (time.thread_time() - cpu_s) * 1000, self.reports[-1].elements


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    made = Running()
    report = Board(time.time).add("services", State.STARTING)
    tasks = [asyncio.ensure_future(one) for one in (made.plane.run(report), made.cleaner.run(), made.watch())]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await made.table.close()
        await made.conntrack.close()


async def synced(made: Running) -> None:
    made.intake.replace_services([])
    made.intake.replace_slices([])
    while not made.plane.families["IPv4"].is_synced:
        await asyncio.sleep(0.01)


def thousands(first: int) -> list[str]:
    return [f"10.{128 + (one >> 16)}.{one >> 8 & 255}.{one & 255}" for one in range(first, first + 1000)]


async def hot_service() -> list[Row]:
    """5 000 endpoints in five slices, five ports, four ways in each."""
    async with running() as made:
        await synced(made)
        spec: dict[str, Any] = {"externalIPs": ["198.51.100.1"], "ports": PORTS, "type": "LoadBalancer"}
        status = {"loadBalancer": {"ingress": [{"ip": "198.51.100.2"}]}}
        made.intake.put_service(make_service("hot", ip="10.96.0.10", status=status, **spec))
        for part in range(5):
            made.intake.put_slice(make_slice(thousands(part * 1000), service="hot", name=f"hot-{part}", ports=TARGETS))
        while made.plane.families["IPv4"].pending_since_s is not None or not made.reports[-1].elements:
            await asyncio.sleep(0.05)
        found = []
        for change in range(CHANGES):
            one = make_slice([*thousands(0)[1:], f"10.250.{change}.1"], service="hot", name="hot-0", ports=TARGETS)
            found.append(await made.change(partial(made.intake.put_slice, one)))
    what = "5 000 endpoints, 5 ports, 4 ways in: one endpoint replaced"
    return [
        (f"{what}, of the loop", statistics.median(one for one, _ in found), "ms p50", "≤ 10"),
        (f"{what}, elements", statistics.median(two for _, two in found), "", "as many as changed"),
    ]


async def udp_flows() -> list[Row]:
    """A Service's endpoint changes once a second for a while, beside 100 000 flows of no concern."""
    async with running() as made:
        await synced(made)
        made.intake.put_service(make_service("dns", ip="10.96.0.53", ports=UDP))
        made.intake.put_slice(make_slice(["10.1.0.1"], service="dns", ports=UDP))
        await asyncio.to_thread(begin_flows, 100)
        await asyncio.sleep(3.0)
        made.late_s = 0.0
        await change_each_second(made, range(10))
        late_ms = made.late_s * 1000
        # Watching costs more than what is watched.
        made.watch_s = 1000.0
        await asyncio.sleep(STEP_S)
        cpu_s, began_s = used_s(), time.perf_counter()
        await change_each_second(made, range(10, 30))
        share = 100 * (used_s() - cpu_s) / (time.perf_counter() - began_s)
    what = "100 000 UDP flows, one change a second"
    return [
        (f"{what}: the loop was late by", late_ms, "ms max", "≤ 50"),
        (f"{what}: of a core", share, "%", "≤ 3"),
    ]


async def change_each_second(made: Running, numbers: range) -> None:
    for number in numbers:
        made.intake.put_slice(make_slice([f"10.1.{number}.2"], service="dns", ports=UDP))
        await asyncio.sleep(1.0)


def begin_flows(sources: int) -> None:
    """A thousand from each, to ports of loopback where nothing listens."""
    Path("/proc/sys/net/netfilter/nf_conntrack_udp_timeout").write_text("600")
    for number in range(sources):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.bind(("127.0.0.1", 20000 + number))
            for port in range(30000, 31000):
                out.sendto(b"x", ("127.0.0.1", port))


def used_s() -> float:
    """CPU of the process, all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def claims() -> list[Row]:
    """2 000 Services want one external IP and port; another comes."""
    async with running() as made:
        await synced(made)
        made.intake.replace_services(claimant(number) for number in range(2000))
        made.intake.replace_slices(make_slice(["10.1.0.1"], service=f"c{number}") for number in range(2001))
        while made.plane.families["IPv4"].pending_since_s is not None or len(made.reports) < 2:
            await asyncio.sleep(0.05)
        found = [await made.change(lambda: made.intake.put_service(claimant(2000)))]
        for _ in range(CHANGES):
            await made.change(lambda: made.intake.drop_service("shop", "c2000"))
            found.append(await made.change(lambda: made.intake.put_service(claimant(2000))))
    return [("a newcomer among 2 000 claimants", statistics.median(one for one, _ in found), "ms p50", "≤ 5")]


async def endings() -> list[Row]:
    """What an endpoint's change costs where connections to those that are gone end, and where they do not."""
    found: dict[str, float] = {}
    for word in ("never", "on-endpoint-removal"):
        async with running() as made:
            await synced(made)
            ender = ConnectionEnder(
                made.plane, made.conntrack, HostSockets(), SystemClock(), settings=EndingSettings,
                addresses=lambda: asyncio.sleep(0, ()),
            )  # fmt: skip
            made.plane.followers.append(ender.follow)
            ending = asyncio.ensure_future(ender.run())
            meta = {"annotations": {"kepd.dev/terminate-established": word}}
            made.intake.put_service(make_service("ends", ip="10.96.0.20", meta=meta))
            times = []
            for number in range(2 * CHANGES):
                one = make_slice([*thousands(0)[:9], f"10.250.{number}.1"], service="ends", name="ends-0")
                times.append((await made.change(partial(made.intake.put_slice, one)))[0])
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            found[word] = statistics.median(times)
    what = "one endpoint of 10 replaced, of the loop"
    return [
        (f"{what}, connections left alone", found["never"], "ms p50", ""),
        (f"{what}, connections ended", found["on-endpoint-removal"], "ms p50", ""),
    ]


def claimant(number: int) -> ReadService:
    return make_service(f"c{number}", ip=f"10.97.{number >> 8}.{number & 255}", externalIPs=["198.51.100.1"])


def wide_slice() -> list[Row]:
    """3 000 ports, 1 000 endpoints: reading it, with a Service that has one of the ports."""
    addresses, ports = thousands(0), [{"name": f"p{one}", "protocol": "TCP", "port": 1 + one} for one in range(3000)]
    began_s = time.perf_counter()
    made = make_slice(addresses, service="wide", ports=ports)
    took_ms = (time.perf_counter() - began_s) * 1000
    del made
    tracemalloc.start()
    kept = make_slice(addresses, service="wide", ports=ports)
    held = tracemalloc.get_traced_memory()[0] / (1 << 20)
    tracemalloc.stop()
    assert kept.facts is not None
    what = "a slice of 3 000 ports and 1 000 endpoints"
    return [(f"{what}: read in", took_ms, "ms", "≤ 100"), (f"{what}: keeps", held, "MiB", "≤ 20")]


async def tenant_rows(_size: int) -> list[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    return [*wide_slice(), *await hot_service(), *await claims(), *await endings(), *await udp_flows()]

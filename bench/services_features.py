# SPDX-License-Identifier: Apache-2.0
"""What features of Services cost that are off unless asked for: an endpoint's change, and a connection.

Measures: one Service among many that uses a feature, changes of its endpoints in turns over all features, so that
whatever else the machine does meets all alike; and connects per second, likewise. `python -m bench.services_features
KIND SIZE` is the half that runs inside a network namespace.
"""

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.nft.driver import NftTable
from agent.model.component import Board, State
from agent.model.event import Event
from agent.services.objects.node_state import NodeSettings
from agent.services.run.cluster.event_writer import EventWriter
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel.flow_offload import FlowOffload
from agent.services.run.localhost_relay import LocalhostRelay
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from bench.services import inside_of
from bench.services_connects import Half, answered_by_fork, connects_per_s
from bench.services_inside import HERE, Row, endpoints, prepare, vip
from tests.services.making import make_service, make_slice

SIZE = 1000
CHANGES = 60
REST_S = 0.06
TURNS = 20
EXTERNAL = "10.96.255.1"
NODE_PORT = 30_080
RANGES = ["0.0.0.0/1", "128.0.0.0/1"]
NOTES: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "source ranges": {"kepd.dev/source-ranges-everywhere": "true"},
    "hashing": {"kepd.dev/balance": "maglev"},
}
"""Services beside each other in one plane."""
SHAPES = ("plain", "hashing", "external IP", "source ranges", "answered", "localhost")
READING = ("answered", "localhost")


def measure() -> list[Row]:
    return [*inside_of("bench.services_features", "changes", str(SIZE)), *connects()]


def service(name: str, ip: str, **spec: Any) -> Any:
    meta = {"annotations": NOTES.get(name, {})}
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT if name == "localhost" else 0}]
    kind = {"type": "NodePort"} if name == "localhost" else {}
    if name in ("source ranges", "external IP"):
        spec |= {"type": "LoadBalancer", "externalIPs": [EXTERNAL]}
    if name == "source ranges":
        spec |= {"loadBalancerSourceRanges": RANGES}
    return make_service(name.replace(" ", "-").lower(), ip=ip, meta=meta, ports=ports, **kind, **spec)


def pieces(name: str, addresses: list[str]) -> Any:
    own = name.replace(" ", "-").lower()
    return make_slice(addresses, service=own, name=f"{own}-x")


async def changes(size: int) -> list[Row]:
    """From the event to the kernel, the median for each feature."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    clock, events = SystemClock(), list[Event]()
    writer = EventWriter(lambda: None, "n0", clock, events.append)
    found: list[Row] = []
    for told, tell in (("events off", events.append), ("events on", writer.tell)):
        times = await _changes(size, clock, tell, writer.run if told == "events on" else None)
        what = f"{size} Services x 10, {told}: one endpoint replaced, event to kernel"
        found += [(f"{what}, {name}", statistics.median(one), "ms p50", "") for name, one in times.items()]
    return found


async def _changes(
    size: int, clock: SystemClock, tell: Callable[[Event], None], writing: Any
) -> dict[str, list[float]]:
    settings = NodeSettings(node="n0", addresses=("192.168.0.10",), node_port_addresses=("primary", "localhost"))
    intake = ServiceInputs(settings, tell=tell, started_s=0.0)
    table = NftTable("IPv4")
    plane = ServicesPlane(intake, {"IPv4": NftRuleset(table)}, clock=clock, tell=tell)
    relay = LocalhostRelay(plane, clock, tell)
    offload = FlowOffload(plane, {"IPv4": table}, (), clock, tell)
    plane.followers += [relay.follow, offload.follow]
    names = ("plain", "source ranges", "hashing", "localhost")
    own = {name: vip(size + number) for number, name in enumerate(names, 1)}
    intake.replace_services(
        [
            *(make_service(f"s{number}", ip=vip(number)) for number in range(1, size + 1)),
            *(service(name, ip) for name, ip in own.items()),
        ]
    )
    intake.replace_slices(
        [
            *(make_slice(endpoints(number), service=f"s{number}", name=f"s{number}-x") for number in range(1, size)),
            *(pieces(name, endpoints(0)) for name in names),
        ]
    )
    times: dict[str, list[float]] = {name: [] for name in names}
    done = plane.measures.transactions
    async with asyncio.TaskGroup() as group:
        works = [plane.run(Board(time.time).add("services", State.STARTING)), relay.run(), offload.run()]
        running = [group.create_task(one) for one in (*works, *([writing()] if writing is not None else []))]
        while not plane.families["IPv4"].is_synced:
            await asyncio.sleep(0.01)
        for change in range(CHANGES):
            for name in names:
                await asyncio.sleep(REST_S)
                before, began_s = done["IPv4", "ok"], time.perf_counter()
                intake.put_slice(pieces(name, [*endpoints(0)[1:], f"10.250.{change}.1"]))
                while done["IPv4", "ok"] == before:
                    await asyncio.sleep(0)
                times[name].append((time.perf_counter() - began_s) * 1000)
        for one in running:
            one.cancel()
    await table.close()
    return times


def connects() -> list[Row]:
    """Ratios are those of turns right after each other, the median of all."""
    with ExitStack() as stack:
        halves = {
            shape: stack.enter_context(Half(shape, SIZE, "bench.services_features", "connects")) for shape in SHAPES
        }
        turns = [{shape: half.turn() for shape, half in halves.items()} for _ in range(TURNS)]
    rates = {shape: statistics.median(turn[shape] for turn in turns) for shape in SHAPES}

    def against(one: str, other: str) -> float:
        return statistics.median(turn[one] / turn[other] for turn in turns)

    what = f"{SIZE} Services: connects"
    return [
        (f"{what} to a cluster IP, drawn", rates["plain"], "1/s", ""),
        (f"{what}, hashed against drawn", against("hashing", "plain"), "×", ""),
        (
            f"{what} to an external IP, with source ranges against without",
            against("source ranges", "external IP"),
            "×",
            "",
        ),
        (f"{what} to a node port on localhost, relayed and answered", rates["localhost"], "1/s", ""),
        (f"{what} to a cluster IP, answered", rates["answered"], "1/s", ""),
    ]


def inside(shape: str, size: int) -> None:
    """Rules, who answers, and connections when asked for."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    prepare()
    outside = shape in ("external IP", "source ranges")
    to = ("127.0.0.1", NODE_PORT) if shape == "localhost" else (EXTERNAL if outside else vip(1), 80)
    with answered_by_fork():
        ready, told = os.pipe()
        serving = os.fork()
        if not serving:
            asyncio.run(_serve(shape, size, told))
            os._exit(0)
        try:
            os.read(ready, 1)
            print("ready", flush=True)
            for _ in sys.stdin:
                print(connects_per_s(*to, reads=shape in READING), flush=True)
        finally:
            os.kill(serving, signal.SIGKILL)
            os.waitpid(serving, 0)


async def _serve(shape: str, size: int, told: int) -> None:
    clock = SystemClock()
    words = ("localhost",) if shape == "localhost" else ("primary",)
    settings = NodeSettings(node="n0", addresses=("192.168.0.10",), node_port_addresses=words)
    intake = ServiceInputs(settings, tell=print, started_s=0.0)
    plane = ServicesPlane(intake, {"IPv4": NftRuleset(NftTable("IPv4"))}, clock=clock, tell=print)
    relay = LocalhostRelay(plane, clock, print)
    plane.followers.append(relay.follow)
    for number in range(2, size + 1):
        intake.put_service(make_service(f"s{number}", ip=vip(number)))
        intake.put_slice(make_slice(endpoints(number), service=f"s{number}", name=f"s{number}-x"))
    intake.put_service(service(shape, vip(1)))
    intake.put_slice(pieces(shape, list(HERE)))
    await plane.families["IPv4"].sync()
    relaying = asyncio.create_task(relay.run())
    while shape == "localhost" and not list(relay.rows(is_standing=True)):
        await asyncio.sleep(0.01)
    os.write(told, b"!")
    await relaying


def main() -> None:
    kind, *rest = sys.argv[1:]
    if kind == "connects":
        inside(rest[0], int(rest[1]))
    else:
        prepare()
        print(json.dumps(asyncio.run(changes(int(rest[0])))))


if __name__ == "__main__":
    main()

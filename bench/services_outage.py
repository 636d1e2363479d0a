# SPDX-License-Identifier: Apache-2.0
"""Services while no API server answers: what it costs to be alone with 10 000 Services and 50 000 endpoints.

The plane without its API, in a network namespace where another process answers for every endpoint. The kernel's half of
a connection to the same host falls to whoever begins it, so a real node pays less. `python -m bench.services_outage in`
is the half that runs in there.
"""

import asyncio
import json
import multiprocessing
import socket
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.endpoint_checks.driver import EndpointChecks
from agent.model.services.check import Asked
from agent.services.objects.node_state import NodeSettings
from agent.services.outage.silence import KINDS
from agent.services.run.cluster.outage import OutageKeeper, OutageSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from bench.services import inside_of
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

Row = tuple[str, float, str, str]
SERVICES, EACH, NODES = 10_000, 5, 500
MEASURED_S = 60.0
PORT = 8080


class Counting(EndpointChecks):
    """When each was begun."""

    def __init__(self, seconds: Counter[int]) -> None:
        super().__init__()
        self._seconds = seconds

    def begin(self, asked: Asked, now_s: float) -> None:
        self._seconds[int(now_s)] += 1
        super().begin(asked, now_s)


def measure() -> list[Row]:
    return inside_of("bench.services_outage", "in")


async def rows(per_s: int) -> list[Row]:
    clock, seconds = SystemClock(), Counter[int]()
    intake = ServiceInputs(NodeSettings(node="n0", addresses=("192.168.0.10",)), tell=print, started_s=0.0)
    table = NftRuleset(FakeNft("IPv4", FakeKernel()))
    plane = ServicesPlane(intake, {"IPv4": table}, clock=clock, tell=lambda _: None)
    fill(intake)
    await plane.families["IPv4"].sync()
    settings = OutageSettings("judge", 1.0, float(per_s))
    keeper = OutageKeeper(plane, clock, lambda _: None, lambda: settings, lambda: Counting(seconds))
    for kind in KINDS:
        keeper.heard(kind)
    running = asyncio.create_task(keeper.run())
    await asyncio.sleep(0.1)
    idle_s = time.process_time()
    await asyncio.sleep(5.0)
    idle_s = (time.process_time() - idle_s) / 5.0
    for kind in KINDS:
        keeper.lost(kind, "x")
    begun_s = time.process_time()
    while not seconds:
        await asyncio.sleep(0.05)
    gathered_s = time.process_time() - begun_s
    await asyncio.sleep(2.0)
    used_s = time.process_time()
    await asyncio.sleep(MEASURED_S)
    used_s = time.process_time() - used_s
    running.cancel()
    most = max(list(seconds.values())[1:-1])
    what = f"alone with {SERVICES} Services of {EACH} endpoints, {per_s} checks a second"
    return [
        (f"{what}: of a core", 100 * used_s / MEASURED_S, "%", "≤ 1" if per_s == DEFAULT else ""),
        (f"{what}: most checks in a second", most, "", f"≤ {per_s}"),
        (f"{what}: dead by mistake", len(keeper.dead), "", "0"),
        (f"{what}: gathering them, once", gathered_s, "s", ""),
        (f"beside a server that speaks, {SERVICES} Services: of a core", 100 * idle_s, "%", "0"),
    ]


DEFAULT = 100


def fill(intake: ServiceInputs) -> None:
    for number in range(SERVICES):
        name, ip = f"s{number}", f"10.96.{number >> 8}.{number & 255}"
        intake.put_service(make_service(name, ip=ip))
        ends: list[dict[str, Any]] = []
        for one in range(EACH):
            at = number * EACH + one
            ends.append({"ip": f"10.{128 + (at >> 16)}.{at >> 8 & 255}.{at & 255}", "nodeName": f"n{at % NODES + 1}"})
        intake.put_slice(make_slice(ends, service=name))


def answer() -> None:
    listener = socket.create_server(("0.0.0.0", PORT), backlog=1024)
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            continue


def main() -> None:
    structlog.configure(processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory())
    for argv in (("link", "set", "lo", "up"), ("route", "add", "local", "10.128.0.0/9", "dev", "lo")):
        subprocess.run(["ip", *argv], check=True)
    answering = multiprocessing.Process(target=answer, daemon=True)
    answering.start()
    found = [row for per_s in (DEFAULT, 200) for row in asyncio.run(rows(per_s))]
    answering.terminate()
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1:] == ["in"]:
        main()

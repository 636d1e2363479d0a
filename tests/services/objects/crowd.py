# SPDX-License-Identifier: Apache-2.0
"""A services plane of its own process with objects of unusual size: `python -m tests.services.objects.crowd CASE`.

Owns: the objects, and what is told at the end as JSON: the most memory the process ever had, who is programmed, and
what was said. The table takes batches as the real one does, encoded, and keeps nothing.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec

from agent.drivers.clock.driver import SystemClock
from agent.drivers.nft.transaction import transaction
from agent.model.component import Board, State
from agent.model.event import Event
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.services.nft_table import Batch
from agent.services.objects.node_state import NodeSettings
from agent.services.objects.reading_service import read_service
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.fakes.nft import FakeNft

HONEST = 50
WITHIN_S = 120.0


class Sink(FakeNft):
    """Takes everything."""

    async def apply(self, batch: Batch) -> None:
        await asyncio.to_thread(transaction, batch, "IPv4", 1)

    async def changes(self) -> AsyncGenerator[str, None]:
        await asyncio.Event().wait()
        yield ""


def service(name: str, address: str, ports: list[int], namespace: str = "shop", **spec: Any) -> bytes:
    """Its name says how old it is, but for those of the namespace `shop`, which are older."""
    created = "2026-01-01T00:00:00Z" if namespace == "shop" else "2026-02-01T00:00:00Z"
    return json.dumps(
        {
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
            "spec": {"clusterIP": address, "ports": [{"name": f"p{port}", "port": port} for port in ports], **spec},
        }
    ).encode()


def slice_of(
    name: str, first: int, ports: list[int], endpoints: int, namespace: str = "shop", number: int = 1
) -> bytes:
    return json.dumps(
        {
            "metadata": {
                "name": f"{name}-{number}",
                "namespace": namespace,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": f"p{port}", "port": port} for port in ports],
            "endpoints": [{"addresses": [f"10.{first}.{one >> 8}.{one & 255}"]} for one in range(1, endpoints + 1)],
        }
    ).encode()


def crowd(case: str) -> tuple[list[bytes], list[bytes]]:
    """Services and slices."""
    many = list(range(1, 3001))
    match case:
        case "slice":
            return [service("large", "10.97.0.1", [7])], [slice_of("large", 200, many, 1000)]
        case "slice without service":
            return [], [slice_of("large", 200, many, 1000)]
        case "service":
            return [service("large", "10.97.0.1", many)], [slice_of("large", 200, many, 1000)]
        case "external IPs":
            every = [f"{first}.{one >> 16}.{one >> 8 & 255}.{one & 255}" for first in (21,) for one in range(1, 12_001)]
            moved = [[f"{first}{text[2:]}" for text in every] for first in range(30, 54)]
            return (
                [
                    service(f"t{at}", f"10.97.0.{at}", [80], "tenant", externalIPs=some)
                    for at, some in enumerate(moved, 1)
                ],
                [slice_of(f"t{at}", 200, [80], 10, "tenant") for at in range(1, 25)],
            )
        case "ports and addresses":
            names = {f"t{at}": [f"{30 + at}.0.{one >> 8}.{one & 255}" for one in range(1, 1001)] for at in range(1, 61)}
            return (
                [
                    service(name, f"10.97.0.{at}", many, "tenant", externalIPs=some)
                    for at, (name, some) in enumerate(names.items(), 1)
                ],
                [slice_of(name, 200, [1], 1, "tenant") for name in names],
            )
        case "slices of no service":
            return [], [slice_of("none", 200, [80], 1000, "tenant", at) for at in range(3000)]
        case "small services":
            return (
                [service(f"t{at}", f"10.98.{at >> 8}.{at & 255}", [80], "tenant") for at in range(1, 50_001)],
                [slice_of(f"t{at}", 200, [80], 2, "tenant") for at in range(1, 50_001)],
            )
        case _:
            names = [f"large{number}" for number in range(7)]
            return (
                [service(name, f"10.97.0.{at}", many[:1000]) for at, name in enumerate(names, 1)],
                [slice_of(name, 200 + at, many[:1000], 100) for at, name in enumerate(names, 1)],
            )


def peak_mib() -> float:
    """Not by getrusage(2), which counts the process that started this one as well."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


async def look(case: str) -> dict[str, Any]:
    events: list[Event] = []
    intake = ServiceInputs(
        NodeSettings(node="a", addresses=("192.168.0.10",)), tell=events.append, started_s=time.time()
    )
    rules = NftRuleset(Sink("IPv4"))
    plane = ServicesPlane(intake, {"IPv4": rules}, clock=SystemClock(), tell=events.append)
    running = asyncio.ensure_future(plane.run(Board(time.time).add("services", State.STARTING)))
    services, slices = crowd(case)
    for number in range(1, HONEST + 1):
        services.append(service(f"honest{number}", f"10.96.0.{number}", [80]))
        slices.append(slice_of(f"honest{number}", number, [80], 10))
    for text in services:
        intake.put_service(intake.taken_service(msgspec.json.decode(text, type=Service), read_service))
    for text in slices:
        intake.put_slice(intake.taken_slice(msgspec.json.decode(text, type=EndpointSlice)))
    intake.complete("services")
    intake.complete("slices")
    async with asyncio.timeout(WITHIN_S):
        while not plane.is_answering:
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return {
        "peak_mib": peak_mib(),
        "programmed": sorted(key.name for key in [*rules.mirror.keys()]),
        "told": {one.object_name: [one.reason, one.message] for one in events if one.is_warning},
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(look(sys.argv[1]))))

# SPDX-License-Identifier: Apache-2.0
"""Random changes of Services and slices in a process of its own: `python -m tests.services.objects.churn 50000`.

Owns: the changes, and what is told at the end as JSON: what Python holds more than before, once all is gone, and where
the table differs from that of a process which starts at the end.
"""

import asyncio
import gc
import json
import logging
import random
import sys
import time
import tracemalloc
from typing import Any

import structlog

from agent.model.services.nft_table import Batch
from agent.services.objects.node_state import NodeSettings
from agent.services.objects.reading_service import ReadService
from agent.services.objects.reading_slice import ReadSlice
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

AT_ONCE, SERVICES = 250, 200
SETTINGS = NodeSettings(node="n1", addresses=("192.168.0.10",), cluster_ranges=("10.1.0.0/16",))
TYPES = ("ClusterIP", "NodePort", "LoadBalancer")


class Forgetful(FakeNft):
    """Keeps the table alone, and not what led to it."""

    async def apply(self, batch: Batch) -> None:
        await super().apply(batch)
        self.batches.clear()


class Node:
    def __init__(self) -> None:
        self.kernel, self.clock = FakeKernel(), FakeClock()
        self.rules = NftRuleset(Forgetful("IPv4", self.kernel))
        self.intake = ServiceInputs(SETTINGS, tell=lambda _: None, started_s=time.time())
        self.plane = ServicesPlane(self.intake, {"IPv4": self.rules}, clock=self.clock, tell=lambda _: None)
        self.intake.complete("services")
        self.intake.complete("slices")

    async def sync(self) -> None:
        await self.plane.families["IPv4"].sync()
        # As the task does that forgets clients.
        self.rules.left.clear()

    async def settle(self) -> None:
        """With a turn for each large one."""
        await self.sync()
        while self.plane.families["IPv4"].desired.large:
            await self.clock.advance(2.0)
            await self.sync()

    def content(self) -> dict[str, dict[bytes, object]]:
        """But for which endpoint has which slot, which hangs on what was there before."""
        found: dict[str, dict[bytes, object]] = {}
        for name, items in self.kernel.tables["IPv4"].content.items():
            is_slot = name in ("eps", "eps_local", "np_eps", "np_eps_local")
            found[name] = {key: "" if is_slot else data for key, data in items.items()}
        return found


def random_service(draw: random.Random, number: int) -> Any:
    kind, first = draw.choice(TYPES), 30_000 + 3 * number
    ports = [
        {
            "name": f"p{one}",
            "port": 80 + one,
            "protocol": draw.choice(["TCP", "UDP"]),
            "nodePort": first + one,
        }
        for one in range(draw.randint(1, 3))
    ]
    notes = {}
    if draw.random() < 0.1:
        notes["kepd.dev/balance"] = "maglev"
    if draw.random() < 0.1:
        notes["kepd.dev/affinity-clients"] = str(draw.choice([64, 1024, 4096]))
    spec: dict[str, Any] = {"type": kind, "ports": ports}
    if draw.random() < 0.4:
        spec |= {
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": draw.randint(1, 86400)}},
        }
    if kind != "ClusterIP" and draw.random() < 0.3:
        spec["externalTrafficPolicy"] = "Local"
    if draw.random() < 0.2:
        spec["externalIPs"] = [f"203.0.113.{draw.randint(1, 250)}"]
    if kind == "LoadBalancer":
        spec["status"] = {"loadBalancer": {"ingress": [{"ip": f"198.51.100.{draw.randint(1, 250)}"}]}}
        spec["loadBalancerSourceRanges"] = [f"10.{draw.randint(0, 255)}.0.0/16"]
    meta = {"annotations": notes, "creationTimestamp": f"2026-01-01T00:00:{number % 60:02}Z"}
    return make_service(f"s{number}", ip=f"10.96.{number >> 8}.{number & 255}", meta=meta, **spec)


def random_slice(draw: random.Random, number: int) -> Any:
    addresses = {
        f"10.1.{draw.randint(0, 250)}.{draw.randint(1, 250)}" for _ in range(draw.choice([0, 1, 2, 5, 20, 40]))
    }
    ends = [
        {
            "ip": one,
            "nodeName": draw.choice(["n1", "n2"]),
            "conditions": {"ready": draw.random() < 0.8, "terminating": draw.random() < 0.2},
        }
        for one in sorted(addresses)
    ]
    ports = [{"name": f"p{one}", "port": 8080 + one, "protocol": kind} for one in range(3) for kind in ("TCP", "UDP")]
    return make_slice(ends, service=f"s{number}", family="IPv4", ports=ports)


def change(node: Node, draw: random.Random) -> None:
    number, chance = draw.randrange(SERVICES), draw.random()
    if chance < 0.25:
        node.intake.put_service(random_service(draw, number))
    elif chance < 0.85:
        node.intake.put_slice(random_slice(draw, number))
    elif chance < 0.93:
        node.intake.drop_service("shop", f"s{number}")
    else:
        node.intake.drop_slice("shop", f"s{number}-1")


async def look(changes: int) -> dict[str, Any]:
    draw, node = random.Random(5), Node()
    for _ in range(changes // 10):
        change(node, draw)
    node.intake.replace_services(())
    node.intake.replace_slices(())
    await node.settle()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for done in range(changes):
        change(node, draw)
        if done % AT_ONCE == AT_ONCE - 1:
            await node.sync()
    await node.settle()
    fresh = Node()
    for service in node.intake.fold.services.values():
        fresh.intake.fold.put_service(ReadService(service.key, service, ()))
    for one in node.intake.fold.all_slices:
        fresh.intake.fold.put_slice(ReadSlice(one.service.namespace, one.name, one, ()))
    await fresh.settle()
    ours, theirs = node.content(), fresh.content()
    differs = {
        name: [sorted(map(repr, set(items.items()) ^ set(theirs[name].items())))[:6]]
        for name, items in ours.items()
        if items != theirs[name]
    }
    del fresh, ours, theirs
    node.intake.replace_services(())
    node.intake.replace_slices(())
    await node.settle()
    gc.collect()
    left = sum(len(items) for items in node.kernel.tables["IPv4"].content.values())
    top = [str(one) for one in tracemalloc.take_snapshot().statistics("lineno")[:12]]
    return {
        "grown_mib": (tracemalloc.get_traced_memory()[0] - before) / 2**20,
        "differs": differs,
        "left": left,
        "top": top,
    }


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(json.dumps(asyncio.run(look(int(sys.argv[1])))))

# SPDX-License-Identifier: Apache-2.0
"""Random Services by real connections, in both families: who answers is who should, by the rules of Kubernetes.

The oracle is that of tests/services/run/test_random_routes.py, which judges plans and traces of many more sets.
"""

import asyncio
import random
from typing import Any

import pytest

from agent.model.services.nft_table import Family
from tests.lab.network import POD_RANGES, PORT, Network
from tests.node.test_services import BALANCER, EXTERNAL, HERE, NODE_PORT, SHORT_S, Cluster, off_loop
from tests.services.routes.oracle import Sent, Where, sent

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]

SETS, TRIES = 100, 3
PODS = ("pod1", "pod2", "pod3", "far1", "far2")
ENDS = {"dnat": "answered", "reject": "refused", "drop": "timeout"}


def drawn(draw: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a Service is asked for, and its endpoints by names of pods."""
    kind = draw.choice(["ClusterIP", "NodePort", "LoadBalancer"])
    spec: dict[str, Any] = {"type": kind, "internalTrafficPolicy": draw.choice(["Cluster", "Cluster", "Local"])}
    if kind != "ClusterIP":
        spec["externalTrafficPolicy"] = draw.choice(["Cluster", "Local"])
    if draw.random() < 0.2:
        spec["sessionAffinity"] = "ClientIP"
    ends = []
    for name in draw.sample(PODS, draw.randint(0, 4)):
        end: dict[str, Any] = {"ip": name, "nodeName": HERE[name]}
        if draw.random() < 0.7:
            end["conditions"] = {
                "ready": draw.random() < 0.6, "serving": draw.random() < 0.8, "terminating": draw.random() < 0.4
            }  # fmt: skip
        if draw.random() < 0.6:
            end["hints"] = {"forZones": [{"name": draw.choice(["z1", "z2"])}]}
        ends.append(end)
    return spec, ends


async def check(cluster: Cluster, seed: int) -> None:
    family, draw = cluster.family, random.Random(seed)
    spec, ends = drawn(draw)
    node_port = NODE_PORT if spec["type"] != "ClusterIP" else 0
    status = {"loadBalancer": {"ingress": [{"ip": BALANCER[family]}]}} if spec["type"] == "LoadBalancer" else {}
    ports = [{"name": "http", "port": 80, "nodePort": node_port}]
    await cluster.put(*ends, ports=ports, externalIPs=[EXTERNAL[family]], status=status, **spec)
    service = {
        "internal": spec["internalTrafficPolicy"], "external": spec.get("externalTrafficPolicy", "Cluster"),
        "notes": {}, "weights": {}, "ranges": [],
    }  # fmt: skip
    names = {cluster.address(name): name for name in PODS}
    slices = [
        {
            "ports": [{"name": "http", "port": PORT}],
            "endpoints": [{**one, "ip": cluster.address(one["ip"])} for one in ends],
        }
    ]
    here = Where("node", "z1", [POD_RANGES[family]])
    ways = [("clusterIP", cluster.vip, 80), ("externalIP", EXTERNAL[family], 80)]
    ways += [("loadBalancer", BALANCER[family], 80)] if status else []
    ways += [("nodePort", cluster.address("node"), NODE_PORT)] if node_port else []
    for way, address, port in ways:
        for source in ("pod3", "client", "node"):
            is_from_host = source == "node"
            want = sent(service, slices, "http", way, cluster.address(source), here, is_from_host=is_from_host)
            await ask(cluster, want, names, (seed, way, source, spec, ends), source, address, port)


async def ask(
    cluster: Cluster, want: Sent, names: dict[str, str], told: object, source: str, address: str, port: int
) -> None:
    wait_s = SHORT_S if want.verdict == "drop" else 5.0
    for _ in range(TRIES if want.verdict == "dnat" else 1):
        reply = await off_loop(lambda: cluster.connect(source, address, port, wait_s=wait_s))
        outcome = "refused" if reply.outcome == "unreachable" else reply.outcome
        assert outcome == ENDS[want.verdict], (told, want, reply)
        assert not reply.server or reply.server in {names[ip] for ip, _ in want.targets}, (told, want, reply)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
async def test_a_hundred_random_services_answer_as_they_should(network: Network, family: Family) -> None:
    """SEL-1 to SEL-9, TY-1 to TY-21."""
    cluster = Cluster(family, network, labels={"topology.kubernetes.io/zone": "z1"})
    running = asyncio.ensure_future(cluster.run())  # noqa: RUF100
    try:
        for seed in range(SETS):
            await check(cluster, seed)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await cluster.table.close()
        await cluster.conntrack.close()

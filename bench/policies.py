# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies: a change among 200 policies and 100 pods, and what a new connection costs with 100 policies.

Measures: the change from the pod or policy to the kernel's answer; connects per second between two namespaces that a
third forwards, with and without the table, in turns right after each other.
"""

import asyncio
import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent.drivers.netlink.connection import open_socket
from agent.drivers.nft.named_table import NamedTable
from agent.objects.admitting import objects_in
from agent.policies.manifest.objects import PolicedPod, Policy
from agent.policies.manifest.reading import POLICY_READING, policies_in
from agent.policies.rules.building import Builder
from agent.policies.rules.changing import change
from agent.policies.rules.nft_text import REMOVAL, whole_text
from agent.policies.rules.table import TABLE
from tests.lab.namespace import Namespace

Row = tuple[str, float, str, str]
POLICIES, PODS, CHANGES = 200, 100, 50
TURNS, TURN_S = 40, 0.25
# The kernel frees what went in the background, and the next transaction would wait for that.
REST_S = 0.05
CLIENT, SERVER, PORT = "10.9.1.2", "10.9.2.2", 8080
RESET = struct.pack("ii", 1, 0)


def measure() -> list[Row]:
    return [*asyncio.run(changes()), *connects()]


def pod(number: int, **more: str) -> PolicedPod:
    labels = {"app": f"app-{number % 50}", "tier": f"tier-{number % 5}", **more}
    addresses = (f"10.8.{number // 250}.{number % 250 + 1}", f"fd00:8::{number + 1:x}")
    return PolicedPod(
        f"u{number}", "default", f"p{number}", tuple(labels.items()), addresses, ports=(("w", "TCP", 80),)
    )


def policies(count: int, **changed: Any) -> Mapping[str, Policy]:
    listed = [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"n{number}"},
            "spec": {
                "podSelector": {"matchLabels": {"app": f"app-{number % 50}"}},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [
                    {
                        "from": [
                            {"podSelector": {"matchLabels": {"tier": f"tier-{number % 5}"}}},
                            {"ipBlock": {"cidr": f"192.0.{number}.0/24"}},
                        ],
                        "ports": [{"port": PORT}, {"port": "w"}],
                    }
                ],
                "egress": [{"to": [{"podSelector": {"matchLabels": {"tier": f"tier-{(number + 1) % 5}"}}}]}],
                **changed.get(f"n{number}", {}),
            },
        }
        for number in range(count)
    ]
    content = json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}).encode()
    return policies_in(objects_in({"bench.yaml": content}, POLICY_READING)).policies


async def changes() -> list[Row]:
    """By turns a pod that comes, one that goes, labels of one, and a rule of a policy, with a rest between them."""
    with Namespace() as node:
        table, builder = (
            NamedTable("inet", TABLE, command=node.command("nft"), opens=lambda: node.call(open_socket)),
            Builder(),
        )
        known, pods = policies(POLICIES), [pod(number) for number in range(PODS)]
        standing = builder.table(known, pods)
        began = time.perf_counter()
        await table.load(whole_text(standing))
        whole_s = time.perf_counter() - began
        took = []
        for turn in range(CHANGES):
            match turn % 4:
                case 0:
                    pods = [*pods, pod(PODS + turn)]
                case 1:
                    pods = pods[1:]
                case 2:
                    pods = [*pods[1:], pod(int(pods[0].uid[1:]), tier=f"tier-{turn % 5}")]
                case _:
                    known = {**known, **policies(1, n0={"egress": [{"ports": [{"port": 2000 + turn}]}]})}
            await asyncio.sleep(REST_S)
            began = time.perf_counter()
            wanted = builder.table(known, pods)
            made = change(standing, wanted)
            if made.text:
                await table.add_chains(made.new_chains)
            await table.load(made.text)
            await table.change(made.elements, made.gone_chains, made.gone_sets)
            took.append((time.perf_counter() - began) * 1000)
            standing = wanted
        table.close()
    what = f"{POLICIES} policies, {PODS} pods"
    return [
        (f"{what}: all of the table at once", whole_s * 1000, "ms", ""),
        (f"{what}: one change, median of {CHANGES}", statistics.median(took), "ms", "≤ 20 ms"),
        (f"{what}: one change, worst of {CHANGES}", max(took), "ms", "≤ 20 ms"),
    ]


def connects() -> list[Row]:
    alone = whole_text(Builder().table(policies(100), [*_ends("tier-0", "tier-1"), *map(pod, range(100))]))
    same: dict[str, Any] = {f"n{number}": {"podSelector": {}} for number in range(100)}
    # The last by its name, and no other, lets them.
    same["n99"] |= {"ingress": [{"ports": [{"port": "w"}]}], "egress": [{}]}
    every = whole_text(Builder().table(policies(100, **same), _ends("one", "other")))
    rows: list[Row] = []
    with forwarded() as (node, turn):
        for what, text, stated in (
            ("100 policies, two on the way", alone, "≥ 0.97"),
            ("all 100 on both pods, the last allows it", every, ""),
        ):
            ratios, rates = [], []
            for _ in range(TURNS):
                node.run("nft", "-f", "-", text=REMOVAL)
                without = turn()
                node.run("nft", "-f", "-", text=text)
                rates.append(turn())
                ratios.append(rates[-1] / without)
            rows.append((f"connects, {what}", statistics.median(rates), "1/s", ""))
            rows.append((f"connects, {what}: against none", statistics.median(ratios), "×", stated))
    return rows


def _ends(*tiers: str) -> list[PolicedPod]:
    """Client and server, which policies let talk to each other."""
    return [
        PolicedPod(f"u-{address}", "default", address, (("app", "app-0"), ("tier", tier)), (address,),
                   ports=(("w", "TCP", PORT),))
        for address, tier in zip((CLIENT, SERVER), tiers, strict=True)
    ]  # fmt: skip


@contextmanager
def forwarded() -> Iterator[tuple[Namespace, Any]]:
    """A node between client and server, and what makes connections for a turn and tells how many a second."""
    with Namespace() as node, Namespace() as client, Namespace() as server:
        node.set("net.ipv4.ip_forward", 1)
        for name, end, address in (("c", client, CLIENT), ("s", server, SERVER)):
            gateway = address.rpartition(".")[0] + ".1"
            node.run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", end.path)
            node.run("ip", "address", "add", f"{gateway}/24", "dev", name)
            node.run("ip", "link", "set", name, "up")
            end.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
            end.run("ip", "link", "set", "eth0", "up")
            end.run("ip", "route", "add", "default", "via", gateway)
        # Tracking is on either way: what is measured is our table.
        node.run("nft", "-f", "-", text="table inet tracked { chain c { type filter hook forward priority 9; "
                 "ct state established counter; }; }\n")  # fmt: skip
        argv = [(client, "client"), (server, "server")]
        halves = [
            subprocess.Popen(
                end.command(sys.executable, "-m", "bench.policies", word),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for end, word in reversed(argv)
        ]  # fmt: skip
        try:
            for one in halves:
                assert one.stdout is not None
                one.stdout.readline()
            yield node, lambda: _turn(halves[1])
        finally:
            for one in halves:
                one.kill()
                one.wait()


def _turn(client: subprocess.Popen[str]) -> float:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write("\n")
    client.stdin.flush()
    return float(client.stdout.readline())


def _serve() -> None:
    with socket.create_server((SERVER, PORT), backlog=4096) as ear:
        print("ready", flush=True)
        while True:
            ear.accept()[0].close()


def _connect() -> None:
    print("ready", flush=True)
    for _ in sys.stdin:
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < TURN_S:
            with socket.socket() as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.connect((SERVER, PORT))
            count += 1
        print(count / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    _serve() if sys.argv[1] == "server" else _connect()

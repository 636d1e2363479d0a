# SPDX-License-Identifier: Apache-2.0
"""Flows that skip the rules, on a kernel that has flowtables: they arrive whole, outlast changes, and end when asked.

A guest beside the node, in a namespace of the machine, reads a large file from a pod through a Service, slowly, so that
there is time to look. Nothing is said of what it gains: the machine is emulated.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from tests.vm.machine import Machine
from tests.vm.pods import BUSYBOX, MANIFESTS, put, remove, shown, until_ready

pytestmark = [pytest.mark.vm, pytest.mark.timeout(3600)]

VIP, PORT = "10.96.0.77", 8080
MIB, PIECES = 8, 8
SKIPS = "flows skip all rules after 20 packets, between cni0, guest0"
EXPECTED = sha256(bytes(MIB * 2**20)).hexdigest()
CHANGES = 5
GUEST = """
ip netns add guest
ip link add guest0 type veth peer name eth0 netns guest
ip addr add 192.0.2.1/24 dev guest0
ip link set guest0 up
ip -n guest addr add 192.0.2.2/24 dev eth0
ip -n guest link set eth0 up
ip -n guest route add default via 192.0.2.1
"""
# Reads a piece for each line that it gets, then says how much and what there was, or how it ended.
READER = f"""
import hashlib, os, socket, time
got = b""
try:
    one = socket.create_connection(("{VIP}", 80), 120)
    # Who only reads would never learn that the other end is gone.
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    one.sendall(b"GET /big HTTP/1.0\\r\\n\\r\\n")
    while b"\\r\\n\\r\\n" not in got:
        got += one.recv(65536)
    digest, count = hashlib.sha256(), 0
    piece = got.split(b"\\r\\n\\r\\n", 1)[1]
    while True:
        digest.update(piece)
        count += len(piece)
        while count >= {MIB} * 2**20 // {PIECES} * (1 + sum(1 for _ in open("/tmp/steps"))):
            time.sleep(1)
        piece = one.recv(65536)
        open("/tmp/count", "w").write(str(count))
        if not piece:
            break
    end = digest.hexdigest()
except OSError as error:
    end = type(error).__name__
open("/tmp/.end", "w").write(end)
os.rename("/tmp/.end", "/tmp/end")
"""


@pytest.fixture(scope="module")
def fast(tuned: Machine) -> Iterator[Machine]:
    """The node with the setting, a pod with a large file, and the guest, whose device comes while kepd runs."""
    tuned.run(GUEST)
    script = (
        f"mkdir /tmp/w && dd if=/dev/zero of=/tmp/w/big bs=1M count={MIB} && touch /tmp/w/ready"
        f" && exec httpd -f -p {PORT} -h /tmp/w"
    )
    probe = {"httpGet": {"path": "/ready", "port": PORT}, "periodSeconds": 1}
    container = {"name": "a", "image": BUSYBOX, "command": ["sh", "-c", script], "readinessProbe": probe}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    put(tuned, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "big"}, "spec": spec})
    until_ready(tuned, "big")
    serve(tuned, address(tuned))
    tuned.write("/tmp/reader.py", READER)
    yield tuned
    tuned.run(f"rm {MANIFESTS}/fast.json; ip netns del guest")
    remove(tuned, "big")


def explained(machine: Machine) -> str:
    return machine.kepctl("explain", "route", "fast").stdout


def address(machine: Machine) -> str:
    found: str = shown(machine)["big"]["ip"]
    return found


def serve(machine: Machine, *addresses: str) -> None:
    """One file that is there whole."""
    note = {"kepd.dev/terminate-established": "on-endpoint-removal"}
    port = {"name": "http", "port": 80}
    service: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "fast", "annotations": note},
        "spec": {"clusterIP": VIP, "ports": [port]},
    }  # fmt: skip
    pieces: dict[str, Any] = {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "fast-1", "labels": {"kubernetes.io/service-name": "fast"}},
        "ports": [{"name": "http", "port": PORT}],
        "endpoints": [{"addresses": [one]} for one in addresses],
    }  # fmt: skip
    items = {"apiVersion": "v1", "kind": "List", "items": [service, pieces]}
    machine.write(f"{MANIFESTS}/fast.json", json.dumps(items))
    machine.until(
        f"{len(addresses)} endpoints in use",
        lambda: " ".join(explained(machine).split()).count(" ready used ") == len(addresses),
    )


def begin(machine: Machine) -> None:
    machine.run("rm -f /tmp/end /tmp/count; : >/tmp/steps")
    reader = "ip netns exec guest setsid python3 /tmp/reader.py"
    machine.run(f"{reader} </dev/null >/dev/null 2>/tmp/reader.log &")


def go_on(machine: Machine, steps: int = 1) -> None:
    machine.run(f"for _ in $(seq {steps}); do echo >>/tmp/steps; done")


def ended(machine: Machine) -> str:
    machine.until("the reader has ended", lambda: machine.attempt("test -e /tmp/end").returncode == 0)
    return machine.run("cat /tmp/end")


def offloaded(machine: Machine) -> bool:
    return "[OFFLOAD]" in machine.run("cat /proc/net/nf_conntrack")


def test_a_flow_skips_the_rules_arrives_whole_and_outlasts_changes(fast: Machine) -> None:
    """SVN-80, SVN-82: while other endpoints come and go. Which flows are meant is in node/test_flowtable.py."""
    assert "FlowtableRefused" not in fast.kepctl("get", "events").stdout
    fast.until("both devices are in it", lambda: SKIPS in explained(fast))
    assert "kepd_fast" in fast.run("nft list tables")
    begin(fast)
    fast.until("the flow skips the rules", lambda: offloaded(fast))
    for number in range(CHANGES):
        serve(fast, address(fast), *(["10.250.0.9"] if number % 2 == 0 else []))
        go_on(fast)
    go_on(fast, PIECES)

    assert ended(fast) == EXPECTED


def test_a_connection_to_an_endpoint_that_is_gone_ends_all_the_same(fast: Machine) -> None:
    """SVN-2, SVN-82: the kernel lets go of the flow in its next round over them."""
    serve(fast, address(fast))
    begin(fast)
    fast.until("the flow skips the rules", lambda: offloaded(fast))
    serve(fast)
    fast.until("the flow is gone", lambda: not offloaded(fast))
    go_on(fast, PIECES)

    assert ended(fast) == "ConnectionResetError"

# SPDX-License-Identifier: Apache-2.0
"""A node changes hands: kepd takes the place of a kube-proxy with 12 000 Services while clients connect.

`python -m bench takeover` takes ten minutes, so it is not a part of `make bench`. Rules as kube-proxy writes them with
nftables; 2 000 connects a second to Services by chance, from before kepd starts until kube-proxy's table is gone. A
connect fails if it is refused, or has no answer within three seconds; a packet that is dropped costs one second.
`python -m bench.takeover` is one run, within a network namespace of its own.
"""

import asyncio
import json
import random
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.services_inside import HERE, Daemon, kubeconfig, service_object, slice_object, vip
from tests.drivers.kube.api_server import ApiServer
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.fake_objects import FakeObjects
from tests.lab.namespace import Namespace

Row = tuple[str, float, str, str]
SIZE, RUNS = 12_000, 20
CONNECTS_PER_S = 2000
WITHIN_S, TICK_S = 3.0, 0.005
PORTION = 500
READY_S = 120.0

FRAME = """table ip kube-proxy {
  map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
  map service-nodeports { type inet_proto . inet_service : verdict; }
  map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict; }
  set cluster-ips { type ipv4_addr; }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap @service-nodeports
  }
  chain mark-for-masquerade { meta mark set meta mark or 0x4000; }
  chain masquerading {
    meta mark and 0x4000 == 0 return
    meta mark set meta mark xor 0x4000 masquerade fully-random
  }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain cluster-ips-check { ip daddr @cluster-ips reject; }
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority srcnat; jump masquerading; }
  chain filter-output {
    type filter hook output priority filter;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
}
"""


def rules(size: int) -> Iterator[str]:
    """In portions, or the kernel takes minutes."""
    yield FRAME
    for numbers in (range(at, min(at + PORTION, size + 1)) for at in range(1, size + 1, PORTION)):
        chains = "".join(map(chains_of, numbers))
        items = ", ".join(f"{vip(number)} . tcp . 80 : goto service-{number}" for number in numbers)
        addresses = ", ".join(map(vip, numbers))
        yield f"table ip kube-proxy {{\n{chains}}}\nadd element ip kube-proxy cluster-ips {{ {addresses} }}\n"
        yield f"add element ip kube-proxy service-ips {{ {items} }}\n"


def chains_of(number: int) -> str:
    ends = "".join(
        f"  chain endpoint-{number}-{place} {{\n    ip saddr {address} jump mark-for-masquerade\n"
        f"    meta l4proto tcp dnat to {address}:8080\n  }}\n"
        for place, address in enumerate(HERE)
    )
    choices = ", ".join(f"{place} : goto endpoint-{number}-{place}" for place in range(len(HERE)))
    marked = f"ip daddr {vip(number)} tcp dport 80 ip saddr != 10.128.0.0/9 jump mark-for-masquerade"
    drawn = f"numgen random mod {len(HERE)} vmap {{ {choices} }}"
    return f"{ends}  chain service-{number} {{\n    {marked}\n    {drawn}\n  }}\n"


class Answering(threading.Thread):
    """Takes connections and ends them at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listeners = [socket.create_server((address, 8080), backlog=4096) for address in HERE]
        self.start()

    def run(self) -> None:
        poll = select.poll()
        by_number = {one.fileno(): one for one in self._listeners}
        for number in by_number:
            poll.register(number, select.POLLIN)
        while True:
            for number, _ in poll.poll():
                by_number[number].accept()[0].close()


class Load:
    """So many connects a second; runs in a process of its own, so that nothing here delays it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.takeover", "load"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> dict[str, float]:
        said, _ = self._process.communicate("", timeout=60)
        found: dict[str, float] = json.loads(said)
        return found


def load() -> None:
    """Until the input ends; then what came of it."""
    ended = threading.Event()

    def hear() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=hear, daemon=True).start()
    waiting: dict[int, tuple[socket.socket, float]] = {}
    poll, count, failed, slow_s, began_s = select.epoll(), 0, 0, 0.0, time.perf_counter()
    reset = struct.pack("ii", 1, 0)
    while waiting or not ended.is_set():
        now_s = time.perf_counter()
        while not ended.is_set() and count < (now_s - began_s) * CONNECTS_PER_S:
            client = socket.socket()
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            client.connect_ex((vip(random.randint(1, SIZE)), 80))
            poll.register(client, select.EPOLLOUT)
            waiting[client.fileno()] = client, now_s
            count += 1
        done = [number for number, _ in poll.poll(TICK_S)]
        now_s = time.perf_counter()
        late = [number for number, (_, since_s) in waiting.items() if now_s - since_s > WITHIN_S]
        for number in {*done, *late}:
            client, since_s = waiting.pop(number)
            is_answered = number in done and not client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            failed += not is_answered
            slow_s = max(slow_s, now_s - since_s)
            client.close()
    took_s = time.perf_counter() - began_s
    print(json.dumps({"connects": count, "failed": failed, "slowest_s": slow_s, "per_s": count / took_s}))


def prepare() -> None:
    Answering()
    for text in rules(SIZE):
        subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)


def ask_for_it(daemon: Daemon) -> None:
    command = [str(Path(sys.executable).parent / "kepd"), "takeover", "kube-proxy", "--apply"]
    subprocess.run([*command, "--config", str(daemon.config)], check=True, capture_output=True)


async def one_run() -> None:
    """Prints what came of it as JSON."""
    objects = FakeObjects()
    node = {"metadata": {"name": "n0"}, "status": {"addresses": [{"type": "InternalIP", "address": HERE[0]}]}}
    objects.load("nodes", node)
    for number in range(1, SIZE + 1):
        objects.load("services", service_object(number))
        objects.load("endpointslices", slice_object(number, list(HERE)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        certificates = make_certificates(folder)
        server = ApiServer(certificates, objects, second_s=1.0)
        await server.start()
        (folder / "kubeconfig").write_text(json.dumps(kubeconfig(server.url, str(certificates.ca))))
        daemon = Daemon(folder, str(folder / "kubeconfig"))
        await asyncio.to_thread(ask_for_it, daemon)
        clients = Load()
        await asyncio.sleep(1.0)
        began_s = time.perf_counter()
        await asyncio.to_thread(daemon.start)
        while "takeover_finished" not in daemon.log.read_text():
            if time.perf_counter() - began_s > READY_S:
                raise RuntimeError(daemon.log.read_text())
            await asyncio.sleep(0.05)
        took_s = time.perf_counter() - began_s
        await asyncio.sleep(1.0)
        found = clients.end()
        await asyncio.to_thread(daemon.end)
        await server.stop()
    print(json.dumps({**found, "took_s": took_s}))


def measure(runs: int = RUNS) -> list[Row]:
    found = []
    for _ in range(runs):
        with Namespace() as space:
            for address in HERE:
                space.run("ip", "address", "add", f"{address}/32", "dev", "lo")
            space.run("ip", "route", "add", "10.96.0.0/11", "dev", "lo")
            printed = space.run(sys.executable, "-m", "bench.takeover", "run", within_s=300.0)
        found.append(json.loads(printed.splitlines()[-1]))
        print(f"{len(found)} of {runs}: {found[-1]}", file=sys.stderr, flush=True)
    what = f"takeover of {SIZE} Services, {runs} runs"
    return [
        (f"{what}: connects", sum(one["connects"] for one in found), "", ""),
        (
            f"{what}: connects a second, least",
            min(one["per_s"] for one in found),
            "1/s",
            f"{CONNECTS_PER_S} are asked for",
        ),
        (f"{what}: failed", sum(one["failed"] for one in found), "", "0"),
        (f"{what}: slowest", max(one["slowest_s"] for one in found), "s", ""),
        (
            f"{what}: start of kepd to the end of kube-proxy's rules",
            statistics.median(one["took_s"] for one in found),
            "s",
            "",
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1] == "load":
        load()
    else:
        prepare()
        asyncio.run(one_run())

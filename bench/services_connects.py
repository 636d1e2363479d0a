# SPDX-License-Identifier: Apache-2.0
"""What a connection through a Service costs with our rules and with a chain for each endpoint.

Measures: connects per second in two network namespaces, one with each shape, in turns so short that whatever else the
machine does meets both alike. `python -m bench.services_connects SHAPE N` is the half that runs inside.
"""

import asyncio
import os
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import structlog

from agent.drivers.clock.driver import SystemClock
from agent.drivers.nft.driver import NftTable
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from bench.services_inside import HERE, VIP, Answering, Row, endpoints, prepare, vip
from tests.lab.namespace import Namespace
from tests.services.making import make_service, make_slice

SHAPES = ("ours", "chains")
TURNS = 40
TURN_S = 0.2
PORTION = 250


def measure(size: int) -> list[Row]:
    """The ratio is that of two turns right after each other, the median of all."""
    with ExitStack() as stack:
        halves = [stack.enter_context(Half(shape, size)) for shape in SHAPES]
        turns = [[half.turn() for half in halves] for _ in range(TURNS)]
    ours, theirs = (statistics.median(rates) for rates in zip(*turns, strict=True))
    ratio = statistics.median(one / other for one, other in turns)
    return [
        (f"{size} Services: connects through the VIP", ours, "1/s", ""),
        (f"{size} Services: the same, a chain per endpoint", theirs, "1/s", ""),
        (f"{size} Services: ours against theirs", ratio, "×", "≥ 0.95"),
    ]


class Half:
    """A namespace with one shape loaded, and a process in it that makes connections when told."""

    def __init__(self, shape: str, size: int, module: str = "bench.services_connects", *words: str) -> None:
        self._argv = (sys.executable, "-m", module, *words, shape, str(size))
        self._space = Namespace()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._space.command(*self._argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        self._hear()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._space.close()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        heard = self._process.stdout.readline()
        if not heard:
            raise RuntimeError(f"{' '.join(self._argv)} ended")
        return heard

    def turn(self) -> float:
        """Connects per second."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._hear())


def inside(shape: str, size: int) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    prepare()
    with answered_by_fork():
        if shape == "ours":
            asyncio.run(load_ours(size))
        else:
            for text in chain_texts(size):
                subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
        print("ready", flush=True)
        for _ in sys.stdin:
            print(connects_per_s(), flush=True)


@contextmanager
def answered_by_fork() -> Iterator[None]:
    """A process that answers at the endpoints, as long as it lasts."""
    answering = os.fork()
    if not answering:
        Answering()
        signal.pause()
    try:
        yield
    finally:
        os.kill(answering, signal.SIGKILL)
        os.waitpid(answering, 0)


def connects_per_s(address: str = VIP, port: int = 80, *, reads: bool = False) -> float:
    """`reads`: each waits for its answer, as a relay would only queue them otherwise."""
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() < began_s + TURN_S:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.settimeout(0.2)
            client.connect((address, port))
            if reads:
                client.recv(1)
        count += 1
    return count / (time.perf_counter() - began_s)


async def load_ours(size: int) -> None:
    intake = ServiceInputs(NodeSettings(node="n0", addresses=("192.168.0.10",)), tell=print, started_s=0.0)
    table = NftTable("IPv4")
    plane = ServicesPlane(intake, {"IPv4": NftRuleset(table)}, clock=SystemClock(), tell=print)
    for number in range(1, size + 1):
        chosen = list(HERE) if number == 1 else endpoints(number)
        intake.put_service(make_service(f"s{number}", ip=vip(number)))
        intake.put_slice(make_slice(chosen, service=f"s{number}", name=f"s{number}-x"))
    await plane.families["IPv4"].sync()
    assert plane.families["IPv4"].is_synced
    await table.close()


def chain_texts(size: int) -> Iterator[str]:
    """The same Services in the shape of a chain for each and a chain for each endpoint, in portions: one transaction
    of all takes the kernel minutes, because it looks for each anonymous map among all that are new."""
    yield (
        "table ip shape {\n"
        "  map service_ips { type ipv4_addr . inet_proto . inet_service : verdict; }\n"
        "  set cluster_ips { type ipv4_addr; }\n"
        "  chain services {\n    ip daddr . meta l4proto . th dport vmap @service_ips\n  }\n"
        "  chain checks {\n    ip daddr @cluster_ips drop\n  }\n"
        "  chain out {\n    type nat hook output priority -100; jump services\n  }\n"
        "  chain pre {\n    type nat hook prerouting priority -100; jump services\n  }\n"
        "  chain check {\n    type filter hook output priority 0; ct state new jump checks\n  }\n"
        "  chain post {\n"
        "    type nat hook postrouting priority 100; meta mark and 0x4000 != 0 masquerade\n  }\n}\n"
    )
    for first in range(1, size + 1, PORTION):
        numbers = range(first, min(first + PORTION, size + 1))
        chains = "".join(chain_text(number) for number in numbers)
        items = ",\n".join(f"{vip(number)} . tcp . 80 : goto service-{number}" for number in numbers)
        yield f"table ip shape {{\n{chains}}}\nadd element ip shape service_ips {{ {items} }}\n"


def chain_text(number: int) -> str:
    """Traffic from elsewhere is marked, an endpoint is drawn, one that would meet itself is marked too."""
    chosen = list(HERE) if number == 1 else endpoints(number)
    chains = "".join(
        f"  chain endpoint-{number}-{place} {{\n    ip saddr {address} meta mark set meta mark or 0x4000\n"
        f"    meta l4proto tcp dnat to {address}:8080\n  }}\n"
        for place, address in enumerate(chosen)
    )
    choices = ", ".join(f"{place} : goto endpoint-{number}-{place}" for place in range(len(chosen)))
    return (
        f"{chains}  chain service-{number} {{\n    ip daddr {vip(number)} tcp dport 80 ip saddr != 10.128.0.0/9 "
        f"meta mark set meta mark or 0x4000\n    numgen random mod {len(chosen)} vmap {{ {choices} }}\n  }}\n"
    )


if __name__ == "__main__":
    inside(sys.argv[1], int(sys.argv[2]))

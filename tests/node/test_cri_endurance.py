# SPDX-License-Identifier: Apache-2.0
"""Thousands of refused, held and given up calls of any size on one connection: it goes on, and memory stays flat.

The client is gRPC's C core, then one in Go, as kubelets are; the runtime is containerd. KEPD_PROXY_CALLS sets how many
calls: 400 where it is not set, 10 000 for the stated figure (about a minute each). The client in Go runs where
KEPD_GOCODE names the folder of golang-google-grpc-dev, /usr/share/gocode in Debian, with golang-go beside it.
"""

import json
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import STAY, Image, Lab
from tests.node.kubelet import OPTIONS, RUNTIME, Kubelet, PodPlan

CALLS = int(os.environ.get("KEPD_PROXY_CALLS", "400"))
pytestmark = [pytest.mark.node, pytest.mark.alone, pytest.mark.timeout(120 + CALLS // 10)]

AT_ONCE = 16
SIZES = (1, 1, 100, 100, 8_000, 8_000, 8_000, 70_000, 70_000, 1_000_000, 3 << 20)
STRICT = {"kepd.dev/sidecars": "side", "kepd.dev/mains": "main", "kepd.dev/start-policy": "strict"}
UNREADY = {**STRICT, "kepd.dev/ready.side": 'exec:["false"]'}
BRIEF = {**UNREADY, "kepd.dev/start-policy": "open", "kepd.dev/start-timeout": "50ms"}
STALL_S = 5.0
GO_CODE = Path(os.environ.get("KEPD_GOCODE", "/usr/share/gocode"))
GO = shutil.which("go") or "/usr/lib/go-1.19/bin/go"
HERE = Path(__file__).parent
GROWTH_MIB = 16


class Caller:
    """One connection, and all that its calls came to."""

    def __init__(self, kubelet: Kubelet, plans: dict[str, PodPlan]) -> None:
        self.kubelet, self.plans = kubelet, plans
        self.channel = grpc.insecure_channel(f"unix://{kubelet.socket}", options=OPTIONS)
        self.invoke = self.channel.unary_unary(RUNTIME + "CreateContainer")
        self.version = self.channel.unary_unary(RUNTIME + "Version")
        self.ended: Counter[str] = Counter()
        self.slowest_s = 0.0

    def message(self, kind: str, size: int) -> bytes:
        plan = self.plans.get(kind)
        annotations = dict(plan.annotations) if plan is not None else STRICT
        pod = pb.PodSandboxConfig(
            metadata=pb.PodSandboxMetadata(name=kind, uid=kind, namespace="default"), annotations=annotations
        )
        main = pb.ContainerConfig(
            metadata=pb.ContainerMetadata(name="main"),
            image=pb.ImageSpec(image="sha256:" + "0" * 64),
            labels={"pad": "x" * size},
        )
        sandbox_id = self.kubelet.sandboxes[plan.uid] if plan is not None else "f" * 64
        return pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=main, sandbox_config=pod).SerializeToString()

    def one(self, number: int) -> None:
        chance = random.Random(number)
        kind = chance.choice(("refused", "given up at once", "held and given up", "held and passed"))
        size = chance.choice(SIZES)
        pod = {"held and given up": "unready", "held and passed": "brief"}.get(kind, "refused")
        call = self.invoke.future(self.message(pod, size), timeout=60)
        if kind == "given up at once":
            time.sleep(chance.random() * 0.003)
            call.cancel()
        elif kind == "held and given up":
            time.sleep(0.02 + chance.random() * 0.05)
            call.cancel()
        code, details = call.code(), call.details() or ""
        expected = "kepd: waiting for sidecar side" if kind == "refused" else ""
        assert expected in details, (kind, size, code, details)
        assert code is not grpc.StatusCode.DEADLINE_EXCEEDED, (kind, size, details)
        self.ended[f"{kind}: {code.name}"] += 1
        if number % 10 == 0:
            self.look()

    def look(self) -> None:
        """A call that nothing holds up."""
        began_s = time.monotonic()
        self.version(b"", timeout=STALL_S)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)


@pytest.fixture
def caller(lab: Lab, short_path: Path, free_port: int) -> Iterator[tuple[Caller, Kepd]]:
    image = lab.push(Image(name="node/endurance"))
    lab.cri.pull(image)
    with Kepd(short_path, free_port, endpoint=lab.endpoint) as kepd:
        kepd.start("--planes", "proxy").wait_ready()
        kubelet = Kubelet(lab, short_path / "run" / "cri" / "kubelet.sock")
        plans = {
            name: PodPlan(name, [("side", STAY)], annotations=notes, image=image)
            for name, notes in (("unready", UNREADY), ("brief", BRIEF))
        }
        for plan in plans.values():
            assert kubelet.sync(plan) == []
        yield Caller(kubelet, plans), kepd
        for plan in plans.values():
            kubelet.remove(plan)
        kubelet.close()
        assert "Traceback" not in kepd.log.read_text()


def resident_mib(kepd: Kepd) -> float:
    assert kepd.process is not None
    status = Path(f"/proc/{kepd.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def test_one_connection_outlives_calls_that_were_refused_held_and_given_up(caller: tuple[Caller, Kepd]) -> None:
    """FI-1, FI-3, FI-16: no call waits for a window that was lost, and nothing of them stays behind."""
    calls, kepd = caller
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # Buffers for the largest calls at once are there after the first part.
        list(pool.map(calls.one, range(CALLS // 2)))
        before_mib = resident_mib(kepd)
        list(pool.map(calls.one, range(CALLS // 2, CALLS)))
    calls.look()
    grown_mib = resident_mib(kepd) - before_mib
    holds = kepd.ctl("api", "ObjectService/List", '{"kind": "holds"}').stdout

    print(dict(calls.ended), f"slowest look {calls.slowest_s:.3f} s, grown by {grown_mib:.1f} MiB")
    assert sum(calls.ended.values()) == CALLS
    assert calls.slowest_s < STALL_S
    assert grown_mib < GROWTH_MIB
    assert "CreateContainer" not in holds


@pytest.fixture
def go_client(tmp_path: Path) -> Path:
    """The program in Go."""
    missing = [one for one in (Path(GO), GO_CODE / "src" / "google.golang.org" / "grpc") if not one.exists()]
    assert not missing, f"there is no {missing[0]}; expected Debian's golang-go and golang-google-grpc-dev"
    source = tmp_path / "path" / "src" / "goclient"
    shutil.copytree(HERE / "go_client", source)
    environment = {"GO111MODULE": "off", "GOPATH": f"{tmp_path}/path:{GO_CODE}", "GOCACHE": f"{tmp_path}/cache"}
    built = subprocess.run(
        [GO, "build", "-o", str(tmp_path / "goclient"), "."],
        cwd=source, env={**os.environ, **environment}, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return tmp_path / "goclient"


@pytest.mark.beside("KEPD_GOCODE")
def test_a_connection_of_a_client_in_go_outlives_them_too(
    go_client: Path, caller: tuple[Caller, Kepd], tmp_path: Path
) -> None:
    """FI-1: 17 refusals of 8 KB were the end of a kubelet's connection."""
    calls, kepd = caller
    requests = tmp_path / "requests"
    requests.mkdir()
    for size in SIZES:
        (requests / f"refused-{size}").write_bytes(calls.message("refused", size))
        (requests / f"held-{size}").write_bytes(calls.message("unready", size))

    def run(number: int) -> dict[str, Any]:
        command = [str(go_client), str(calls.kubelet.socket), str(number), str(requests)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100 + CALLS // 10)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    run(max(CALLS // 10, 200))
    before_mib = resident_mib(kepd)
    found = run(CALLS)
    grown_mib = resident_mib(kepd) - before_mib

    print(found["ended"], f"slowest look {found['slowest']:.3f} s, grown by {grown_mib:.1f} MiB")
    assert found["wrong"] == []
    assert sum(found["ended"].values()) == CALLS
    assert found["slowest"] < STALL_S
    assert grown_mib < GROWTH_MIB

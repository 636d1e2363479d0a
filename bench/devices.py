# SPDX-License-Identifier: Apache-2.0
"""How long the devices of a pod take: the search, and what kepd adds to a driver's own time.

Owns: the inputs (made here, the same every time) and the targets. Never: asserts.
Source of the targets: 1 000 devices and 200 claims planned in 50 ms, 5 ms of our own for a prepared claim; one claim of
128 devices in 5 ms, with a constraint over 32 in 50 ms, what is impossible in a second.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import msgspec

from agent.drivers.clock.driver import SystemClock
from agent.drivers.state_files.driver import StateFiles
from agent.model.pods.pod import PodSpec
from agent.model.runtime.features import RuntimeFeatures
from agent.pods.manifest.objects import NodeIdentity, parse_objects
from bench.daemon import free_port
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.objects import Allocation, Claim, ClaimStatus, DeviceClass, Slice
from kepd_devices.manifest.reading import read_device_objects
from kepd_devices.plan.pools import PoolNode
from kepd_devices.plan.search import Question, search
from kepd_devices.run.claims import DeviceClaims
from kepd_devices.run.known_devices import ManagerSettings
from packages.devices.tests.fakes import FakeCdi, FakeDriver
from tests.host.process import Kepd
from tests.lab import Lab

ROUNDS = 30
IDLE_S, IDLE_RUNS = 15.0, 2
RUNTIME = RuntimeFeatures(name="containerd", version="2.1.9", resolves_cdi=True)
DRIVER = "gpu.example.com"
Figure = tuple[str, float, str, str]
CLASS = {"metadata": {"name": "gpus"}, "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}}
CLASSES = {"gpus": msgspec.convert(CLASS, DeviceClass)}
BIG = (
    f"device.attributes['{DRIVER}'].size == 'big' && device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('8Gi'))"
)


def measure() -> list[Figure]:
    """(name, value, unit, target) for each measurement."""
    many = make_slices(1000)
    held = [make_held(number) for number in range(199)]
    few, some = make_slices(128), make_slices(32)
    bond = [{"matchAttribute": f"{DRIVER}/numa"}]
    impossible = make_claim("none", ("a", 2), ("b", 2), constraints=[{"distinctAttribute": f"{DRIVER}/numa"}])
    found = [
        ("search: 1 000 devices, 199 claims, one more", best(many, held, make_claim("new", ("r", 1))), "ms", "≤ 50"),
        ("search: 1 000 devices, none of which fits", best(many, [], make_claim("new", ("r", 1), size="huge")), "ms",
         "≤ 50"),
        ("search: one claim of 128 devices", best(few, [], make_claim("new", ("r", 1))), "ms", "≤ 5"),
        ("search: 4 of 32 devices with a constraint", best(some, [], make_claim("n", ("r", 4), constraints=bond)), "ms",
         "≤ 50"),
        ("search: two requests that cannot be, of 32 devices", best(some, [], impossible), "ms", "≤ 1000"),
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        disk, memory = asyncio.run(held_and_released(Path(folder)))
    found.append(("a pod gets a claim prepared, beside the driver", disk, "ms p50", "≤ 5"))
    found.append(("of that without the disk", memory, "ms p50", ""))
    return found + idle()


def idle() -> list[Figure]:
    """What a plane with a manager, the fake driver and plugins costs while nothing happens: memory that is no other
    process's too, and how often the event loop woke up. The middle of a few runs, beside pods alone."""
    with Lab.start() as lab:
        runs = {planes: [idle_run(lab, planes) for _ in range(IDLE_RUNS)] for planes in ("pods", "pods,devices")}
    (memory, wakes), (more_memory, more_wakes) = (
        [median(one) for one in zip(*runs[planes], strict=True)] for planes in ("pods", "pods,devices")
    )
    return [
        ("idle: memory beside a daemon without the plane", more_memory - memory, "MiB", "≤ 3"),
        ("idle: wake-ups of the event loop without the plane", wakes / IDLE_S, "/s", ""),
        ("idle: wake-ups with it", more_wakes / IDLE_S, "/s", "the same"),
    ]


def idle_run(lab: Lab, planes: str) -> tuple[float, float]:
    with tempfile.TemporaryDirectory(prefix="kepd-bench-") as name:
        folder = Path(name)
        devices = {
            "manager": {"enabled": True, "registry": f"{name}/k/plugins_registry", "slices": f"{name}/s"},
            "plugins": {"enabled": True, "directory": f"{name}/k/device-plugins"},
            "podResources": f"{name}/k/pod-resources/kubelet.sock",
            "cdi": {"directories": [f"{name}/cdi"], "output": f"{name}/cdi"},
            "driver": {"enabled": True, "fake": {"count": 4}},
        }
        off = "pods: {logDirectory: %s/logs, cgroupRoot: '%s', logLinkDirectory: ''}\n"
        extra = off % (name, lab.place.cgroup_parent.strip("/")) + f"devices: {json.dumps(devices)}\n"
        with Kepd(folder, free_port(), lab.endpoint, extra) as kepd:
            kepd.start("--planes", planes).wait_ready()
            time.sleep(IDLE_S)
            assert kepd.process is not None
            before = wakes_of(kepd.process.pid)
            time.sleep(IDLE_S)
            return proportional_mib(kepd.process.pid), wakes_of(kepd.process.pid) - before


def wakes_of(pid: int) -> int:
    """Of the thread of the event loop: each ends in a sleep that it chose. Those of gRPC wake up by themselves."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_"))


def proportional_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def best(slices: list[Slice], held: list[Claim], claim: Claim) -> float:
    question = Question(
        node=PoolNode(name="here"), slices=tuple(slices), classes=CLASSES, existing=tuple(held), claims=(claim,)
    )
    return timed(lambda: search(question))


def timed(work: Callable[[], object]) -> float:
    """Milliseconds, the best of a few."""
    times = []
    for _ in range(ROUNDS // 5):
        began_s = perf_counter()
        work()
        times.append(perf_counter() - began_s)
    return min(times) * 1000


def make_slices(count: int) -> list[Slice]:
    devices = [
        {
            "name": f"gpu-{number:04}",
            "attributes": {"size": {"string": "big" if number % 2 else "small"}, "numa": {"int": number % 2}},
            "capacity": {"memory": {"value": "16Gi"}},
        }
        for number in range(count)
    ]
    parts = [devices[at : at + 125] for at in range(0, count, 125)]
    pool = {"name": "here", "generation": 1, "resourceSliceCount": len(parts)}
    return [
        msgspec.convert(
            {
                "metadata": {"name": f"slice-{number:02}"},
                "spec": {"driver": DRIVER, "nodeName": "here", "pool": pool, "devices": part},
            },
            Slice,
        )
        for number, part in enumerate(parts)
    ]


def make_claim(name: str, *requests: tuple[str, int], constraints: object = (), size: str = "big") -> Claim:
    expression = BIG.replace("'big'", f"'{size}'")
    wish = {"deviceClassName": "gpus", "selectors": [{"cel": {"expression": expression}}]}
    asked = [{"name": request, "exactly": {**wish, "count": count}} for request, count in requests]
    spec = {"devices": {"requests": asked, "constraints": constraints}}
    return msgspec.convert({"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": spec}, Claim)


def make_held(number: int) -> Claim:
    result = {"request": "r", "driver": DRIVER, "pool": "here", "device": f"gpu-{number * 2 + 1:04}"}
    allocation = msgspec.convert({"devices": {"results": [result]}}, Allocation)
    claim = make_claim(f"held-{number}", ("r", 1))
    return msgspec.structs.replace(claim, status=ClaimStatus(allocation=allocation))


MANIFEST = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.example.com}}]}}}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, uid: UID}
spec:
  resourceClaims: [{name: mine, resourceClaimTemplateName: gpu}]
  containers: [{name: main, image: "i:1", resources: {claims: [{name: mine}]}}]
"""


async def held_and_released(folder: Path) -> tuple[float, float]:
    """Median of a pod's claims from nothing to edits, with records on a disk, and what of it is not the disk's."""
    files = StateFiles(folder)
    cdi = FakeCdi()
    settings = ManagerSettings(node=PoolNode(name="here"), boot_id="b")
    claims = DeviceClaims(files, cdi, SystemClock(), lambda: settings, lambda _: None)
    await claims.load()
    claims.add_driver(FakeDriver(128, cdi=cdi))
    claims.take(read_device_objects({"/m": MANIFEST.encode()}, Reader("here")))
    write, waited = files.write, [0.0]

    async def timed_write(name: str, content: bytes, *, is_durable: bool = True) -> None:
        began_s = perf_counter()
        await write(name, content, is_durable=is_durable)
        waited[0] += perf_counter() - began_s

    files.write = timed_write  # type: ignore[method-assign]
    times: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        pod = make_pod(number)
        waited[0], began_s = 0.0, perf_counter()
        await claims.hold(pod)
        await claims.edits(pod, pod.containers[0], RUNTIME)
        took_s = perf_counter() - began_s
        times.append((took_s, took_s - waited[0]))
        await claims.release(pod.uid)
    files.close()
    middle = len(times) // 2
    return sorted(one for one, _ in times)[middle] * 1000, sorted(one for _, one in times)[middle] * 1000


def make_pod(number: int) -> PodSpec:
    text = POD.replace("UID", f"uid-{number}").encode()
    return parse_objects("/m", text, NodeIdentity("here", has_name_suffix=False, gives_devices=True)).pods[0]

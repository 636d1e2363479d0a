# SPDX-License-Identifier: Apache-2.0
"""Everything at once for half an hour: does anything grow, and is anything left at the end.

20 Service changes a second from an API server, pods coming and going, pulls, proxied calls, scrapes and API callers, on
a containerd, a registry and a network namespace of its own. Slopes are those of a line through what was seen after the
first part. KEPD_SOAK_S is for how long: three minutes say whether it works, not whether anything grows.
"""

import asyncio
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from agent.wire.cri import runtime_v1_pb2 as pb
from bench.daemon import free_port, resident_mib
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.namespace import Namespace

Row = tuple[str, float, str, str]
Work = tuple[float, Callable[[], Awaitable[object]]]
LASTS_S = float(os.environ.get("KEPD_SOAK_S", "1800"))
SETTLES_S = min(300.0, LASTS_S / 3)
"""Caches fill, and allocators find what they need."""
SERVICES, ENDPOINTS, CHANGES_A_SECOND = 200, 20, 20
PODS = 4
SAMPLES_S = 5.0
PORTS = [{"name": "http", "port": 80, "protocol": "TCP"}]


class Seen:
    """Figures over time, and their slopes."""

    def __init__(self, settles_s: float) -> None:
        self.settles_s = settles_s
        self.began_s = time.monotonic()
        self.values: dict[str, dict[object, list[tuple[float, float]]]] = {}
        self.did: dict[str, int] = {}

    def note(self, name: str, value: float, at_s: float | None = None, of: object = "") -> None:
        """`of`: what it is compared within, such as one of several processes."""
        since_s = (time.monotonic() if at_s is None else at_s) - self.began_s
        if since_s >= self.settles_s:
            self.values.setdefault(name, {}).setdefault(of, []).append((since_s, value))

    def count(self, what: str) -> None:
        self.did[what] = self.did.get(what, 0) + 1

    def slope_an_hour(self, name: str) -> float:
        """Of parallel lines, one through all that are compared."""
        rise = spread = 0.0
        for points in self.values[name].values():
            middle_s = sum(at_s for at_s, _ in points) / len(points)
            middle = sum(value for _, value in points) / len(points)
            rise += sum((at_s - middle_s) * (value - middle) for at_s, value in points)
            spread += sum((at_s - middle_s) ** 2 for at_s, _ in points)
        return 3600 * rise / (spread or 1.0)

    def largest(self, name: str) -> float:
        return max(value for points in self.values[name].values() for _, value in points)

    def rows(self) -> list[Row]:
        found: list[Row] = []
        units = {"resident memory": "MiB"}
        for name in sorted(self.values):
            unit = units.get(name, "")
            found.append((f"{name}: at most, after {self.settles_s:.0f} s", self.largest(name), unit, ""))
            stated = "≤ 1" if name == "resident memory" else "flat"
            found.append((f"{name}: grows in an hour by", self.slope_an_hour(name), unit, stated))
        return found


class Node:
    def __init__(self, kepd: Kepd, lab: Lab, server: ApiServer, space: Namespace, image: str) -> None:
        self.kepd, self.lab, self.server, self.space, self.image = kepd, lab, server, space, image
        self.seen = Seen(SETTLES_S)
        self.turn = 0

    def put_slice(self, number: int) -> None:
        self.turn += 1
        self.server.objects.put("endpointslices", slice_of(number, self.turn))

    async def services(self) -> None:
        self.put_slice(self.turn % SERVICES)
        self.seen.count("Service changes")

    async def pods(self) -> None:
        path = self.kepd.manifests / f"p{self.seen.did.get('pods put or removed', 0) % PODS}.yaml"
        if path.exists():
            path.unlink()
        else:
            hidden = self.kepd.manifests / ".next"
            hidden.write_text(pod(path.stem, self.image))
            hidden.rename(path)
        self.seen.count("pods put or removed")

    async def pulls(self) -> None:
        await self.ctl("pull", self.image)

    async def scrapes(self) -> None:
        status, text = await asyncio.to_thread(self.kepd.get, "/metrics")
        if status == 200:
            self.seen.count("scrapes")
            tasks = re.findall(r"(?m)^kepd_tasks (\S+)", text)
            self.seen.note("tasks", float(tasks[0]))

    async def callers(self) -> None:
        for words in (("get", "pods"), ("get", "services"), ("events",), ("status",)):
            await self.ctl(*words)

    async def ctl(self, *words: str) -> None:
        done = await asyncio.to_thread(self.kepd.ctl, *words)
        self.seen.count(f"kepctl {words[0]}" + ("" if done.returncode == 0 else " failed"))

    async def proxied(self) -> None:
        await proxied(f"{self.kepd.folder}/cri/cri.sock", self.seen)

    async def samples(self) -> None:
        assert self.kepd.process is not None
        pid = self.kepd.process.pid
        self.seen.note("resident memory", resident_mib(pid))
        for name, folder in (("descriptors", "fd"), ("threads", "task")):
            self.seen.note(name, len(os.listdir(f"/proc/{pid}/{folder}")))  # noqa: PTH208  # names are not needed
        self.seen.note("chains and sets of the kernel", await asyncio.to_thread(self.kernel_objects))
        self.seen.note("mounts", self.mounts())

    def kernel_objects(self) -> int:
        text = self.space.run("nft", "-t", "list", "table", "ip", "kepd")
        return len(re.findall(r"(?m)^\t(?:chain|set|map) ", text))

    def mounts(self) -> int:
        return Path("/proc/self/mountinfo").read_text().count(str(self.kepd.folder))

    async def run(self) -> None:
        works: list[Work] = [
            (1 / CHANGES_A_SECOND, self.services), (2.0, self.pods), (1.5, self.pulls), (1.0, self.scrapes),
            (2.0, self.callers), (0.5, self.proxied), (SAMPLES_S, self.samples),
        ]  # fmt: skip
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(LASTS_S, ended.set)
        await at_work(works, ended)


async def at_work(works: Sequence[Work], ended: asyncio.Event) -> None:
    """Each again and again after its pause, until then; what was begun is finished."""

    async def repeat(pause_s: float, work: Callable[[], Awaitable[object]]) -> None:
        while not ended.is_set():
            began_s = time.monotonic()
            await work()
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), max(pause_s - (time.monotonic() - began_s), 0))

    async with asyncio.TaskGroup() as group:
        for pause_s, work in works:
            group.create_task(repeat(pause_s, work))


async def proxied(path: Path | str, seen: Seen) -> None:
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        for name in ("Version", "ListContainers", "ListPodSandbox"):
            with suppress(grpc.aio.AioRpcError):
                await channel.unary_unary(f"/runtime.v1.RuntimeService/{name}")(b"", timeout=10)
                seen.count("proxied calls")


def pod(name: str, image: str, *, probe_s: int = 1, template: str = "") -> str:
    """`template`: of which it has a claim."""
    claims, used = (
        (f"[{{name: c, resourceClaimTemplateName: {template}}}]", "[{name: c}]") if template else ("[]", "[]")
    )
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: {claims}
  volumes: [{{name: a, emptyDir: {{medium: Memory}}}}]
  containers:
  - name: app
    image: "{image}"
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "date; sleep 1000"]
    resources: {{claims: {used}}}
    volumeMounts: [{{name: a, mountPath: /a}}]
    readinessProbe: {{exec: {{command: ["true"]}}, periodSeconds: {probe_s}}}
"""


def service(number: int) -> dict[str, Any]:
    spec = {"clusterIP": f"10.96.0.{number + 1}", "ports": PORTS}
    return {"metadata": {"name": f"s{number}", "namespace": "soak"}, "spec": spec}


def slice_of(number: int, turn: int) -> dict[str, Any]:
    """Of a Service, with other endpoints at each turn."""
    labels = {"kubernetes.io/service-name": f"s{number}"}
    addresses = [f"10.1.{number}.{1 + (turn + one) % 250}" for one in range(ENDPOINTS)]
    return {
        "metadata": {"name": f"s{number}-1", "namespace": "soak", "labels": labels},
        "addressType": "IPv4", "ports": PORTS,
        "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
    }  # fmt: skip


async def soaked(folder: Path, lab: Lab, space: Namespace) -> list[Row]:
    certificates = make_certificates(folder)
    async with serving(certificates) as server:
        server.objects.put("nodes", {"metadata": {"name": "n1"}})
        for number in range(SERVICES):
            server.objects.put("services", service(number))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}', certificate-authority: {certificates.ca}}}}}]\n"
            "users: [{name: u, user: {token: good-token}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
        )
        extra = (
            f"kubernetes: {{kubeconfig: {kubeconfig}}}\n"
            f"pods: {{enabled: true, logDirectory: {folder}/logs, logLinkDirectory: '',"
            f" cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
            f"proxy: {{enabled: true, socket: {folder}/cri/cri.sock, link: {folder}/cri/kubelet.sock}}\n"
            "images: {enabled: true, gc: {mode: 'off'}}\n"
            "services: {enabled: true, source: kubernetes, healthzAddress: '', conntrack: {maxPerCore: 0}}\n"
            # What is kept of events and pulls must be full by the end of the first part, or one sees it fill.
            "telemetry: {events: {ring: 300}}\n"
        )
        with Kepd(folder, free_port(), lab.endpoint, extra, space.command()) as kepd:
            await asyncio.to_thread(kepd.start)
            await asyncio.to_thread(kepd.wait_ready)
            node = Node(kepd, lab, server, space, lab.push(Image(name="bench/soak")))
            for number in range(SERVICES):
                node.put_slice(number)
            await node.run()
            for path in kepd.manifests.iterdir():
                path.unlink()
            gone = lambda: not lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items  # noqa: E731
            with suppress(AssertionError):
                await asyncio.to_thread(kepd.wait, gone, "no pods", 60.0)
            left = len(lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items) + node.mounts()
            await asyncio.to_thread(kepd.end)
            tracebacks = kepd.log.read_text().count("Traceback")
        return rows(node.seen, left, tracebacks)


def rows(seen: Seen, left: int, tracebacks: int) -> list[Row]:
    found: list[Row] = [(f"{LASTS_S:.0f} s: {what}", count, "", "") for what, count in sorted(seen.did.items())]
    found += seen.rows()
    found.append(("sandboxes and mounts that are left", left, "", "0"))
    found.append(("tracebacks in the log", tracebacks, "", "0"))
    return found


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="ks") as folder, Lab.start() as lab, Namespace() as space:
        subprocess.run(["chmod", "755", folder], check=True)
        return space.call(lambda: asyncio.run(soaked(Path(folder), lab, space)))

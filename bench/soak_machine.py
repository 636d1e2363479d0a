# SPDX-License-Identifier: Apache-2.0
"""`python -m bench soak --hours H`: a node in a virtual machine that never has rest, and loses its power each hour.

Slices of Services from an API server here, pods with claims and without, pulls and removed images, scrapes, callers of
the API and of the CRI proxy; the runtime and the API server are restarted every few minutes. Before each power cut and
at the end all pods go, and what is left is counted: those counts must be equal. Figures are kept in build/soak.jsonl as
they come, so a run that was cut off has its table too: `--hours 0`.
"""

import asyncio
import json
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.soak import Row, Seen, Work, at_work, pod, proxied, service, slice_of
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.host.process import ROOT
from tests.vm.disk import make
from tests.vm.machine import Machine, MachineError
from tests.vm.node import API_PORT, by_vagrantfile, fresh_node, give_kubeconfig
from tests.vm.pods import BUSYBOX, MANIFESTS, is_ready, shown
from tests.vm.release import chosen

LINES = ROOT / "build/soak.jsonl"
SERVICES, PODS, IMAGES = 20, 6, 20
HOUR_S, FIRST_CUT_S = 3600.0, 1800.0
SETTLES_S = 600.0
AWAY_S = 20.0
"""How long the API server refuses."""
OF_PROCESS = ("resident memory", "descriptors", "threads", "tasks")
NONE_LEFT = (
    "sandboxes", "containers", "processes of containers", "network namespaces", "veths", "logs of pods",
    "links to logs", "files of CDI",
)  # fmt: skip
UNCOUNTED = ("resident memory", "pid", "tracebacks")
STATED = {
    "journal": "", "tracked connections": "", "results of CNI that were set aside": "at most 10 of them",
    "descriptors": "flat", "tasks": "flat", "threads": "flat",
    "disk beside the journal": "≤ 1 an hour", "bytes below /var/lib/kepd": "≤ 1 an hour",
}  # fmt: skip
IN_MIB = ("disk beside the journal", "journal", "bytes below /var/lib/kepd")
CONFIG = """
apiVersion: config.kepd.dev/v1beta1
kind: KepdConfiguration
kubernetes: {kubeconfig: /etc/kepd/soak.kubeconfig}
services: {source: kubernetes}
proxy: {enabled: true}
images: {gc: {minAge: 0s, keep: ["docker.io/library/busybox:*", "registry.k8s.io/pause:*"]}}
devices: {manager: {enabled: true}, driver: {enabled: true, fake: {count: 8}}}
# Full before memory is judged, or one sees it fill.
telemetry: {events: {ring: 300}}
"""
TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: fake}
spec: {spec: {devices: {requests: [{name: fake, exactly: {deviceClassName: fake.kepd.dev}}]}}}
"""
REGISTRY = """
[Service]
ExecStart=python3 /vagrant/tests/vm/registry.py /root/images/1.tar 5000
[Install]
WantedBy=multi-user.target
"""
CALLS = (
    ("get", "pods"), ("get", "services"), ("events",), ("status",), ("get", "images"), ("get", "claims"),
    ("top", "pods"), ("diff",),
)  # fmt: skip
TRACEBACKS = "journalctl -u kepd -o short-iso --no-pager | grep -B 3 -A 40 'Traceback (most' | tail -n 300"
LEFT_OF_RUNTIME = """
ctr -n k8s.io snapshots list; ctr -n k8s.io containers list; journalctl -u containerd --no-pager | grep Started
ps -eo pid,lstart,args | grep '[c]ontainerd-shim' | while read -r shim; do
    echo "$shim"
    id=$(echo "$shim" | sed 's/.* -id \\([0-9a-f]*\\).*/\\1/')
    journalctl -u containerd -u kepd -o short-precise --no-pager | grep "$id" | tail -n 60
done
"""
Line = dict[str, Any]


class Soak:
    def __init__(self, machine: Machine, server: ApiServer, hours: float) -> None:
        self.machine, self.server, self.lasts_s = machine, server, hours * HOUR_S
        self.began_s = time.monotonic()
        self.seen = Seen(0.0)
        self.wanted: set[str] = set()
        self.pods_in_turn, self.turns = count(), count()
        self.ended, self.stopped = asyncio.Event(), asyncio.Event()
        self.proxy = Path()

    def keep(self, **line: Any) -> None:
        with LINES.open("a") as file:
            file.write(json.dumps({"at_s": round(time.monotonic() - self.began_s, 1), **line}) + "\n")

    async def do(self, what: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """In a thread of its own; what fails is said, and the soak goes on unless the machine is gone."""
        try:
            done = await asyncio.to_thread(work, *arguments)
        except MachineError as error:
            self.keep(fault=f"{what}: {str(error)[:4000]}")
            if not self.machine.is_on:
                raise
        else:
            self.seen.count(what)
            return done

    async def slices(self) -> None:
        turn = next(self.turns)
        self.server.objects.put("endpointslices", slice_of(turn % SERVICES, turn))
        self.seen.count("Service changes")

    def put_slices(self, turn: int) -> None:
        for number in range(SERVICES):
            self.server.objects.put("endpointslices", slice_of(number, turn))

    async def pods(self) -> None:
        name = f"p{next(self.pods_in_turn) % PODS}"
        await (self.remove(name) if name in self.wanted else self.put(name))

    async def put(self, name: str) -> None:
        text = pod(name, BUSYBOX, probe_s=10, template="fake" if int(name[1:]) % 2 else "")
        self.wanted.add(name)
        await self.do("pods put", self.machine.write, f"{MANIFESTS}/{name}.yaml", text)

    async def remove(self, *names: str) -> None:
        self.wanted.difference_update(names)
        await self.do("pods removed", self.machine.run, "rm -f " + " ".join(f"{MANIFESTS}/{one}.yaml" for one in names))

    async def pulls(self) -> None:
        turn = self.seen.did.get("kepctl pull", 0) + 1
        await self.ctl("pull", f"localhost:5000/soak/i{turn % IMAGES}:1")
        if turn % 5 == 0:
            await self.ctl("gc", "--now")

    async def callers(self) -> None:
        for words in CALLS:
            await self.ctl(*words)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), 5)

    async def ctl(self, *words: str) -> str:
        try:
            done = await asyncio.to_thread(self.machine.kepctl, *words)
        except subprocess.TimeoutExpired:
            done = subprocess.CompletedProcess(words, 1, "", "no answer")
        self.seen.count(f"kepctl {words[0]}" + ("" if done.returncode == 0 else " failed"))
        return done.stdout if done.returncode == 0 else done.stderr

    async def counts(self, kind: str) -> dict[str, float]:
        script = "python3 /vagrant/bench/node_counts.py" + (" all" if kind == "quiet" else "")
        counted: dict[str, float] = json.loads(await self.do("scrapes", self.machine.run, script) or "{}")
        self.keep(**{kind: counted, "did": dict(self.seen.did)})
        return counted

    async def api_server(self) -> None:
        await self.server.refuse()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), AWAY_S)
        await self.server.accept()
        self.seen.count("restarts of the API server")

    async def churn(self, until_s: float) -> None:
        self.ended = asyncio.Event()
        asyncio.get_running_loop().call_later(max(until_s - time.monotonic(), 0), self.ended.set)
        if self.stopped.is_set():
            self.ended.set()
        restart_s = min(300.0, self.lasts_s / 3)
        runtime = partial(self.do, "restarts of containerd", self.machine.run, "systemctl restart containerd")
        works: Sequence[Work] = [
            (2.0, self.slices), (20.0, self.pods), (20.0, self.pulls), (5.0, self.callers),
            (5.0, lambda: proxied(self.proxy, self.seen)), (30.0, partial(self.counts, "sample")),
            (restart_s, runtime), (restart_s * 0.8, self.api_server),
        ]  # fmt: skip
        await at_work(works, self.ended)

    async def quiet(self) -> None:
        """Everything is taken away and all Services are as at the begin."""
        await self.remove(*self.wanted)
        self.put_slices(0)
        await self.ctl("gc", "--now")
        await self.until("all pods gone", lambda: not shown(self.machine))
        await self.until("kepctl diff is empty", self.is_equal)
        await self.until("nothing left", self.is_empty)
        counted = await self.counts("quiet")
        if counted.get("tracebacks"):
            self.keep(tracebacks=await self.do("tracebacks read", self.machine.run, TRACEBACKS))
        if counted.get("shims") or counted.get("snapshots", 0) > 1:
            self.keep(runtime=await self.do("leftovers looked at", self.machine.run, LEFT_OF_RUNTIME))

    def is_empty(self) -> bool:
        counted = json.loads(self.machine.run("python3 /vagrant/bench/node_counts.py"))
        return not any(counted[name] for name in NONE_LEFT)

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        await self.do("things awaited", self.machine.until, what, holds)

    async def lose_power(self) -> None:
        """While pods run, one begins and all Services change."""
        *names, last = (f"p{number}" for number in range(PODS))
        for name in names:
            await self.put(name)
        await self.until("all pods before a power cut", self.are_ready)
        await self.put(last)
        self.put_slices(1)
        await asyncio.to_thread(self.machine.cut_power)
        cut_s = time.monotonic()
        await asyncio.to_thread(self.machine.start)
        self.keep(boot=time.monotonic() - self.began_s)
        await self.lead()
        await self.until("all pods after a power cut", self.are_ready)
        self.keep(back_s=time.monotonic() - cut_s)
        await self.until("kepctl diff is empty after a power cut", self.is_equal)
        counted = await self.counts("after")
        each = {"shims": 1, "network namespaces": 1, "veths": 1, "processes of containers": 2}
        if doubled := {name: counted[name] for name, times in each.items() if counted[name] != PODS * times}:
            ran = await asyncio.to_thread(self.machine.run, "ps -eo pid,etimes,args | grep [s]him")
            self.keep(fault=f"{PODS} pods, and of each of these not as many: {doubled}\n{ran}")

    def is_equal(self) -> bool:
        """A plane that still waits for the API server wants nothing and has nothing."""
        is_ready = re.search(r"(?m)^services +ready ", self.machine.kepctl("status").stdout)
        done = self.machine.kepctl("diff")
        return bool(is_ready) and (done.returncode, done.stdout) == (0, "")

    def are_ready(self) -> bool:
        now = shown(self.machine)
        return self.wanted == {*now} and all(map(is_ready, now.values()))

    async def lead(self) -> None:
        await asyncio.to_thread(self.machine.lead_back, API_PORT, f"127.0.0.1:{self.server.port}")
        self.proxy = await asyncio.to_thread(self.machine.lead_here, "/run/kepd/cri/cri.sock")

    def set_up(self, folder: Path) -> None:
        give_kubeconfig(self.machine, self.server, folder, "soak")
        self.machine.write("/etc/systemd/system/registry.service", REGISTRY)
        self.machine.write("/etc/kepd/config.d/50-soak.yaml", CONFIG)
        by_vagrantfile(self.machine, "cgroups.sh")
        self.machine.run("systemctl enable --now registry; kepd setup --yes --now")
        self.machine.write(f"{MANIFESTS}/claims.yaml", TEMPLATE)

    async def run(self, folder: Path) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, self.stop)
        await self.lead()
        await asyncio.to_thread(self.set_up, folder)
        self.began_s = time.monotonic()
        self.keep(began=time.time(), hours=self.lasts_s / HOUR_S)
        await self.quiet()
        cuts: list[float] = []
        while (cut_s := min(FIRST_CUT_S, self.lasts_s / 2) + HOUR_S * len(cuts)) < self.lasts_s:
            cuts.append(cut_s)
        for until_s in (*cuts, self.lasts_s):
            await self.churn(self.began_s + until_s)
            await self.quiet()
            if self.stopped.is_set():
                break
            if until_s in cuts:
                await self.lose_power()

    def stop(self) -> None:
        self.stopped.set()
        self.ended.set()


async def soak(hours: float, folder: Path) -> None:
    certificates = make_certificates(folder)
    disk = make(chosen(), folder / "disk")
    (folder / "soak").mkdir()
    with fresh_node(disk, folder / "soak") as machine:
        async with serving(certificates) as server:
            # Watches end each minute, as others do each half hour.
            server.second_s = 0.2
            server.objects.put("nodes", {"metadata": {"name": "kepd-vm"}})
            for number in range(SERVICES):
                server.objects.put("services", service(number))
            await Soak(machine, server, hours).run(folder)


def rows(lines: Sequence[Line]) -> list[Row]:
    seen = Seen(min(SETTLES_S, lines[0]["hours"] * HOUR_S / 3))
    seen.began_s = 0.0
    quiet = [line["quiet"] for line in lines if "quiet" in line]
    faults = [line["fault"] for line in lines if "fault" in line]
    backs = [line["back_s"] for line in lines if "back_s" in line]
    boots, kepds = 0, set()
    for line in lines:
        if "boot" in line:
            boots += 1
            seen.began_s = line["boot"]
        sample = line.get("sample", {})
        if "pid" in sample:
            kepds.add((boots, sample["pid"]))
        for name in OF_PROCESS:
            if name in sample:
                seen.note(name, sample[name], line["at_s"], of=(boots, sample["shims"]))
    did: dict[str, int] = next((line["did"] for line in reversed(lines) if "did" in line), {})
    found: list[Row] = [(what, number, "", "") for what, number in sorted(did.items())]
    found += [("power cuts", boots, "", ""), *seen.rows()]
    found.append(("all pods run after a power cut, at most after", max(backs, default=0.0), "s", ""))
    found.append(("kepd began anew, beside that", len(kepds) - len({boot for boot, _ in kepds}), "", "0"))
    names = sorted({name for one in quiet[:1] for name in one if name not in UNCOUNTED})
    found += [left(name, [one.get(name, 0.0) for one in quiet]) for name in names]
    found.append(("tracebacks in the journal", max((one["tracebacks"] for one in quiet), default=0), "", "0"))
    return [*found, ("not so in time, or doubled", len(faults), "", "0")]


def left(name: str, values: Sequence[float]) -> Row:
    """Without pods: all that there is, or what came since churn was there for the first time."""
    listed = ", ".join(f"{one:.4g}" for one in values)
    unit = "MiB" if name in IN_MIB else ""
    if name in NONE_LEFT:
        return f"without pods: {name} ({listed})", max(values), unit, "0"
    return f"without pods: {name}, more ({listed})", values[-1] - values[:2][-1], unit, STATED.get(name, "0")


def headline() -> str:
    lines = kept()
    hours = lines[-1]["at_s"] / HOUR_S
    return f"{hours:.2f} hours on Debian {chosen().number} in a virtual machine of two processors."


def kept() -> list[Line]:
    return [json.loads(line) for line in LINES.read_text().splitlines()]


def measure(hours: float) -> list[Row]:
    if hours:
        LINES.parent.mkdir(exist_ok=True)
        LINES.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="ks") as folder:
            asyncio.run(soak(hours, Path(folder)))
    return rows(kept())

# SPDX-License-Identifier: Apache-2.0
"""Containers that do their worst as uid 1000 change nothing for the pods beside them, and end like any other.

All at once: nested directories, a full volume, as many processes as there may be, output without an end, and a probe
that is never answered to its end. `KEPD_HOSTILE_S` says for how long; what the daemon took is printed.
"""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.limited import limited

pytestmark = [pytest.mark.node, pytest.mark.timeout(300)]

HOSTILE_S = float(os.environ.get("KEPD_HOSTILE_S", "12"))
MOST_KIB = 128 << 10
LIMIT_BYTES = 192 << 20
"""Of kepd's control group; files that it reads count until the kernel takes their pages back."""
# Two files of 1 MiB are kept; what comes in the second between two looks is beyond that.
MOST_LOG_BYTES = 64 << 20
NESTED = "cd /disk; i=0; while [ $i -lt 3000 ]; do mkdir d && cd d || break; i=$((i+1)); done; sleep 100000 & wait"
FULL = "dd if=/dev/zero of=/mem/full bs=64k; for i in $(seq 2000); do : > /mem/f$i; done; sleep 100000 & wait"
BOMB = "trap '' TERM; while true; do sleep 100000 & done 2>/dev/null"
LOUD = "while true; do head -c 65536 /dev/zero | tr '\\0' 'x'; echo; done"
ENDLESS = "while true; do nc -l -p 8080 </dev/zero; done"
WORST = {"nested": NESTED, "full": FULL, "bomb": BOMB, "loud": LOUD, "endless": ENDLESS}
SWAP = "while true; do mkdir /d/x; rmdir /d/x/* /d/x; ln -s OUTSIDE /d/x; rm /d/x; done 2>/dev/null"
LOOK = "touch /m/mark; cat /m/witness; ls -d /m/* >/out/$HOSTNAME; exec sleep 100000"
QUIET = "trap 'exit 0' TERM; while true; do sleep 1 & wait $!; done"


def pod(name: str, containers: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


class Node:
    def __init__(self, kepd: Kepd, image: str) -> None:
        self.kepd, self.image = kepd, image

    def container(self, name: str, script: str, **more: Any) -> dict[str, Any]:
        command = ["sh", "-c", script]
        return {"name": name, "image": self.image, "imagePullPolicy": "IfNotPresent", "command": command, **more}

    def put(self, document: dict[str, Any]) -> None:
        hidden = self.kepd.manifests / ".next"
        hidden.write_text(yaml.safe_dump(document))
        hidden.rename(self.kepd.manifests / f"{document['metadata']['name']}.yaml")

    def put_hostile(self) -> None:
        mounts = [{"name": "disk", "mountPath": "/disk"}, {"name": "mem", "mountPath": "/mem"}]
        few = {"limits": {"cpu": "100m", "memory": "64Mi"}}
        never = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1, "timeoutSeconds": 1}
        hung = {"exec": {"command": ["sleep", "100000"]}, "periodSeconds": 1, "timeoutSeconds": 1}
        made = [self.container(name, script, volumeMounts=mounts, resources=few) for name, script in WORST.items()]
        made[-1]["readinessProbe"] = never
        made[0]["readinessProbe"] = hung
        volumes = [
            {"name": "disk", "emptyDir": {}},
            {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}},
        ]
        who = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
        self.put(pod("hostile", made, volumes=volumes, securityContext=who, terminationGracePeriodSeconds=2))

    def put_honest(self, name: str) -> None:
        ready = {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5}
        self.put(pod(name, [self.container("app", QUIET, readinessProbe=ready, livenessProbe=ready)]))

    def shown(self, name: str) -> dict[str, Any] | None:
        items = self.kepd.pods()
        return next((one for one in items if one["name"] == f"{name}-n1"), None)

    def app(self, name: str) -> dict[str, Any]:
        found = self.shown(name)
        return found["containers"][0] if found is not None else {}

    def wait_ready(self, name: str) -> None:
        self.kepd.wait(lambda: self.app(name).get("ready"), f"{name} ready", 60.0)

    def ready_after_s(self, name: str) -> float:
        """How long a pod takes."""
        began_s = time.monotonic()
        self.put_honest(name)
        self.wait_ready(name)
        return time.monotonic() - began_s

    def peak_kib(self) -> int:
        assert self.kepd.process is not None
        status = Path(f"/proc/{self.kepd.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0])


def sandboxes(lab: Lab) -> list[str]:
    """Of pods that kepd runs; the runtime is that of all tests."""
    listed = lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items
    return [one.metadata.name for one in listed if one.metadata.name.endswith("-n1")]


@pytest.fixture
def node(lab: Lab, short_path: Path, free_port: int) -> Iterator[Node]:
    root = lab.place.cgroup_parent.strip("/")
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: '', podPidsLimit: 64,"
        " logs: {maxSize: 1Mi, maxFiles: 2, interval: 1s}}\n"
    )
    with (
        limited(LIMIT_BYTES) as group,
        Kepd(short_path, free_port, lab.endpoint, extra, group.prefix()) as kepd,
    ):
        kepd.start("--planes", "pods").wait_ready()
        yield Node(kepd, lab.push(Image(name="node/hostile")))
        for path in kepd.manifests.iterdir():
            path.unlink()
        kepd.wait(lambda: not sandboxes(lab), "an end", 90.0)
        assert not group.was_killed()


def test_who_does_its_worst_harms_nobody_beside_it(node: Node, lab: Lab) -> None:
    """FP-3, FP-15, FP-16, FP-18: probes, logs, a new pod, the end, and what is left."""
    node.put_honest("beside")
    node.wait_ready("beside")
    alone_s = max(node.ready_after_s(f"alone-{number}") for number in range(3))
    node.put_hostile()
    node.kepd.wait(lambda: (node.shown("hostile") or {}).get("phase") == "Running", "the hostile pod runs", 60.0)
    ends_s = time.monotonic() + HOSTILE_S
    seen = []
    while time.monotonic() < ends_s:
        seen.append(node.app("beside"))
        time.sleep(0.25)
    late_s = node.ready_after_s("late")
    logs = sum(path.stat().st_size for path in (node.kepd.folder / "logs").rglob("*") if path.is_file())
    (node.kepd.manifests / "hostile.yaml").unlink()
    began_s = time.monotonic()
    node.kepd.wait(lambda: node.shown("hostile") is None, "the hostile pod is gone", 60.0)
    gone_s = time.monotonic() - began_s
    print(f"another pod was ready in {late_s:.1f} s, {alone_s:.1f} s alone; the hostile one gone in {gone_s:.1f} s")
    print(f"kepd took {node.peak_kib() >> 10} MiB at most, the logs {logs >> 20} MiB")

    assert [one for one in seen if not one.get("ready")] == []
    assert node.app("beside").get("restartCount", 0) == 0
    assert node.peak_kib() < MOST_KIB
    assert not list((node.kepd.folder / "state").rglob("d/d"))
    assert sorted(sandboxes(lab)) == ["alone-0-n1", "alone-1-n1", "alone-2-n1", "beside-n1", "late-n1"]
    assert logs < MOST_LOG_BYTES


def at(name: str, where: str) -> dict[str, Any]:
    return {"name": name, "mountPath": where}


def host(name: str, path: Path | str, kind: str = "") -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": str(path), "type": kind}}


def test_who_swaps_paths_shows_no_other_container_a_file_of_the_node(node: Node, tmp_path: Path) -> None:
    """NP-3: one container changes a directory of the node while others get what lies below it."""
    data, outside, out = (tmp_path / name for name in ("data", "outside", "out"))
    for one in (data, outside, out):
        one.mkdir()
    (outside / "witness").write_text("root's own")
    (data / "link").symlink_to(outside)
    before = [(one, one.lstat()[:4], one.lstat().st_mtime_ns) for one in (outside, outside / "witness")]
    names = [f"reader-{number}" for number in range(6)]

    def put(name: str, script: str, *volumes: dict[str, Any]) -> None:
        mounts = [at("d", "/d"), at("out", "/out")] if name == "swapper" else [at("m", "/m"), at("out", "/out")]
        made = node.container("app", script, volumeMounts=mounts)
        node.put(pod(name, [made], volumes=[*volumes, host("out", out)], terminationGracePeriodSeconds=0))

    def told(name: str) -> list[str]:
        """Why it does not run."""
        found = [str(node.shown(name))]
        return [one for one in found if "cannot be mounted" in one or "failed to prepare" in one]

    put("swapper", SWAP.replace("OUTSIDE", str(outside)), host("d", data))
    node.kepd.wait(lambda: node.app("swapper").get("state") == "Running", "the swapper runs", 60.0)
    put("linked", LOOK, host("m", data / "link" / "made", "DirectoryOrCreate"))
    put("own", LOOK, host("m", node.kepd.folder / "state"))
    for name in names:
        put(name, LOOK, host("m", data / "x" / name, "DirectoryOrCreate"))
    node.kepd.wait(lambda: told("linked") and told("own"), "two that are refused", 60.0)

    def is_tried(name: str) -> bool:
        """What is swapped after the look at it the runtime refuses, once it starts."""
        one = node.app(name)
        return bool(told(name)) or one.get("state") == "Running" or "last" in one

    for name in names:
        node.kepd.wait(lambda name=name: is_tried(name), f"{name} tried", 60.0)  # type: ignore[misc]

    assert "which containers may change" in told("linked")[0]
    assert "which kepd gives no container at all" in told("own")[0]
    assert [(one, one.lstat()[:4], one.lstat().st_mtime_ns) for one in (outside, outside / "witness")] == before
    assert [one.name for one in outside.iterdir()] == ["witness"]
    assert all("witness" not in one.read_text() for one in out.iterdir())

# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver beside a real kubelet: it registers, its slices are published, and its sockets go with it.

Runs where KEPD_KUBELET names a kubelet program, 1.34 or newer. The API server is that of the tests, which knows just
enough kinds for a kubelet to run a pod; the part of the scheduler is played by the test.
"""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.wire.cri import runtime_v1_pb2 as pb
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.kubelet import Program, groups, kubelet, machine_as_before

PROGRAM = os.environ.get("KEPD_KUBELET", "")
pytestmark = [pytest.mark.node, pytest.mark.timeout(180), pytest.mark.beside("KEPD_KUBELET")]
DRIVER = "fake.kepd.dev"


def kubeconfig(folder: Path, server: ApiServer, authority: Path) -> Path:
    path = folder / "kubeconfig"
    cluster = {"server": server.url, "certificate-authority": str(authority)}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": "good-token"}}],
            }
        )
    )
    path.chmod(0o600)
    return path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Path]]:
    certificates = make_certificates(tmp_path)
    async with serving(certificates) as running:
        room = {"cpu": "2", "memory": "4Gi", "pods": "100"}
        status = {"conditions": [{"type": "Ready", "status": "True"}], "capacity": room, "allocatable": room}
        running.objects.put("nodes", {"metadata": {"name": "n1", "uid": "node-uid"}, "spec": {}, "status": status})
        yield running, certificates.ca


def tail_of(log: Path) -> str:
    return log.read_text()[-3000:]


async def until(condition: Callable[[], Any], what: str, log: Path) -> Any:
    for _ in range(3000):
        if found := condition():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within a minute: {what}; {tail_of(log)}")


async def test_a_kubelet_registers_the_driver_again_after_either_began_anew(
    lab: Lab, short_path: Path, free_port: int, server: tuple[ApiServer, Path]
) -> None:
    """DVD-1, DVD-2, DVD-5."""
    running, authority = server
    registry = short_path / "root" / "plugins_registry"
    devices = {
        "driver": {"enabled": True, "fake": {"count": 2}, "kubeletDirectory": str(short_path / "root")},
        "cdi": {"output": str(short_path / "cdi"), "directories": [str(short_path / "cdi")]},
    }
    config = kubeconfig(short_path, running, authority)
    extra = (
        f"devices: {json.dumps(devices)}\npods: {{enabled: false}}\nservices: {{enabled: false}}\n"
        f"images: {{enabled: false}}\nkubernetes: {{kubeconfig: {config}}}\n"
    )
    program = Program.ask(PROGRAM)

    def answers(daemon: Kepd) -> int:
        lines = [line for line in daemon.log.read_text().splitlines() if f"driver={DRIVER}" in line]
        return sum("event=driver_answered_by_kubelet" in line and "registered=true" in line for line in lines)

    with groups(f"kepd-{free_port}") as root, Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon:
        settings = program.settings(lab, short_path, lab.endpoint, cgroupRoot=root, cgroupsPerQOS=False)
        with kubelet(program, lab, short_path, settings):
            await asyncio.to_thread(daemon.start)
            await until(lambda: daemon.log.exists() and answers(daemon) == 1, "registered", daemon.log)
            found = running.objects.get("resourceslices", "", f"n1-{DRIVER}")
            assert [one["name"] for one in found["spec"]["devices"]] == ["fake-0", "fake-1"]
            assert "; registered" in await asyncio.to_thread(lambda: daemon.ctl("status").stdout)
            await asyncio.to_thread(daemon.end)
            assert not (registry / f"{DRIVER}-reg.sock").exists()
            await asyncio.to_thread(daemon.start)
            await until(lambda: answers(daemon) == 2, "registered again", daemon.log)
        with kubelet(program, lab, short_path, settings):
            await until(lambda: answers(daemon) == 3, "registered with a kubelet that began anew", daemon.log)


def claim_of(pod: str) -> dict[str, Any]:
    """Allocated, as a scheduler would have it."""
    result = {"request": "r", "driver": DRIVER, "pool": "n1", "device": "fake-1"}
    asked = {"name": "r", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}}
    return {
        "metadata": {"name": "mine", "namespace": "default", "uid": "u-1"},
        "spec": {"devices": {"requests": [asked]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": "p-1"}],
        },
    }


def pod_of(image: str) -> dict[str, Any]:
    """Scheduled to this node, with the fields that an API server fills in."""
    container = {
        "name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "securityContext": {},
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"],
        "resources": {"claims": [{"name": "mine"}]},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    }  # fmt: skip
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "p-1"},
        "spec": {
            "nodeName": "n1", "restartPolicy": "Always", "terminationGracePeriodSeconds": 5, "dnsPolicy": "Default",
            "hostNetwork": True, "enableServiceLinks": False, "automountServiceAccountToken": False,
            "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}], "containers": [container],
            "securityContext": {}, "schedulerName": "default-scheduler", "tolerations": [{"operator": "Exists"}],
        },
        "status": {
            "phase": "Pending", "qosClass": "BestEffort",
            "resourceClaimStatuses": [{"name": "mine", "resourceClaimName": "mine"}],
        },
    }  # fmt: skip


async def test_a_kubelet_has_a_claim_prepared_for_a_pod_and_gives_it_back(
    lab: Lab, short_path: Path, free_port: int, server: tuple[ApiServer, Path]
) -> None:
    """DVD-3, DVD-4: the claim of a pod that an API server has scheduled; kepd is killed while the pod runs."""
    running, authority = server
    image = await asyncio.to_thread(lab.push, Image(name="node/claiming"))
    cdi, records = short_path / "cdi", short_path / "state" / "devices" / "kubelet" / "claims"
    devices = {
        "driver": {"enabled": True, "fake": {"count": 2}, "kubeletDirectory": str(short_path / "root")},
        "cdi": {"output": str(cdi), "directories": [str(cdi)]},
    }
    config = kubeconfig(short_path, running, authority)
    extra = (
        f"devices: {json.dumps(devices)}\npods: {{enabled: false}}\nservices: {{enabled: false}}\n"
        f"images: {{enabled: false}}\nkubernetes: {{kubeconfig: {config}}}\n"
    )
    program = Program.ask(PROGRAM)
    flags = {
        "config": short_path / "kubelet.json", "root-dir": short_path / "root", "cert-dir": short_path / "certs",
        "hostname-override": "n1", "node-ip": "127.0.0.1", "kubeconfig": config,
    }  # fmt: skip
    with (
        groups(f"kepd-{free_port}") as root,
        Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as daemon,
        machine_as_before(lab, short_path),
    ):
        settings = program.settings(
            lab, short_path, lab.endpoint, cgroupRoot=root, cgroupsPerQOS=False, contentType="application/json"
        )
        flags["config"].write_text(json.dumps({**settings, "staticPodPath": ""}))
        command = [program.path, *(f"--{name}={value}" for name, value in flags.items())]
        process = await asyncio.to_thread(started, command, short_path / "kubelet.log")
        try:
            await asyncio.to_thread(daemon.start)
            await until(lambda: daemon.log.exists() and "registered=true" in tail_of(daemon.log), "it", daemon.log)
            running.objects.put("resourceclaims", claim_of("web"))
            pod = running.objects.put("pods", pod_of(image))
            await until(lambda: sandboxes(lab) == 1, "the pod runs", daemon.log)
            assert [one.name for one in cdi.iterdir()] == [f"{DRIVER}-claim_u-1.json"]
            assert [one.name for one in records.iterdir()] == ["u-1.json"]

            await asyncio.to_thread(daemon.end, signal.SIGKILL)
            await asyncio.to_thread(daemon.start)
            metadata = {**pod["metadata"], "deletionTimestamp": "2026-11-20T09:20:00Z", "deletionGracePeriodSeconds": 5}
            running.objects.put("pods", {**pod, "metadata": metadata})
            await until(lambda: not list(cdi.iterdir()) and not list(records.iterdir()), "given back", daemon.log)
        finally:
            process.terminate()
            process.wait(30)
            await asyncio.to_thread(clear_sandboxes, lab)


def started(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


def sandboxes(lab: Lab) -> int:
    request = pb.ListPodSandboxRequest(
        filter=pb.PodSandboxFilter(state=pb.PodSandboxStateValue(state=pb.SANDBOX_READY))
    )
    return len(lab.cri.call("ListPodSandbox", request).items)


def clear_sandboxes(lab: Lab) -> None:
    for one in lab.cri.call("ListPodSandbox", pb.ListPodSandboxRequest()).items:
        lab.cri.call("StopPodSandbox", pb.StopPodSandboxRequest(pod_sandbox_id=one.id))
        lab.cri.call("RemovePodSandbox", pb.RemovePodSandboxRequest(pod_sandbox_id=one.id))

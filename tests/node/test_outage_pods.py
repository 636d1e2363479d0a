# SPDX-License-Identifier: Apache-2.0
"""Pods of this node while no API server answers: the runtime and kepd's own probes say who serves no longer, of pods
whose port still answers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.wire.cri import runtime_v1_pb2 as cri_pb
from tests.drivers.kube.api_server import ApiServer, serving
from tests.drivers.kube.certificates import make_certificates
from tests.drivers.kube.following import service
from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.lab.pods import Pod
from tests.node.test_startup_taint import WITHIN_S, put_node

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

VIP, PORT = "10.96.0.10", 8080
SERVE = "mkdir -p /w; echo NAME >/w/name; exec httpd -f -p 8080 -h /w"
ASK = """
import sys, urllib.request
for _ in range(int(sys.argv[2])):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=1).read().decode().strip())
    except OSError as error:
        print(error)
"""
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, "touch /ready; SERVE"]
    readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1, failureThreshold: 1}
"""


def test_pods_that_the_runtime_or_a_probe_speaks_against_get_no_traffic(lab: Lab, short_path: Path) -> None:
    """SVN-130. Beside kepd's own pod there are two that a kubelet runs: one whose second container ends, one that has
    nothing wrong."""
    image = lab.push(Image(name="outage/web"))
    pods = {name: Pod(lab.place, lab.cri, name) for name in ("halved", "whole")}
    for name, pod in pods.items():
        lab.cri.pull(image)
        for part, script in (("web", SERVE.replace("NAME", name)), ("worker", "exec sleep 2147483")):
            pod.create(part, image, ["sh", "-c", script]).start()
    try:
        lab.netns.call(lambda: asyncio.run(story(lab, short_path, image, pods)))
    finally:
        lab.cri.remove_all_pods()
        lab.netns.run(["nft", "flush", "ruleset"])


async def story(lab: Lab, folder: Path, image: str, pods: dict[str, Pod]) -> None:
    certificates = make_certificates(folder)
    async with serving(certificates) as server:
        put_node(server)
        with daemon(lab, folder, server, certificates.ca) as kepd:
            text = MANIFEST.replace("IMAGE", image).replace("SERVE", SERVE.replace("NAME", "probed"))
            (kepd.manifests / "probed.yaml").write_text(text)
            await asyncio.to_thread(kepd.start, "--planes", "pods,services")
            await until(kepd.socket.exists)
            await until(lambda: any(one.get("ip") for one in kepd.pods()))
            put_web(server, {**{name: pod.ip for name, pod in pods.items()}, "probed": kepd.pods()[0]["ip"]})
            lab.netns.run(["ip", "route", "replace", f"{VIP}/32", "dev", "lo"])
            await until(lambda: answers(lab) == {"halved", "whole", "probed"})
            await until((folder / "state" / "services" / "changes.bin").exists)
            await server.refuse()
            await until(lambda: report(kepd).get("phase") == "alone")
            assert report(kepd).get("deadTotal", 0) == 0

            worker = container(lab, "worker", pods["halved"].id)
            lab.cri.call("StopContainer", cri_pb.StopContainerRequest(container_id=worker, timeout=0))
            await until(lambda: whys(kepd) == {"its container worker ended"})
            await until(lambda: answers(lab) == {"whole", "probed"})
            assert answers(lab, f"{pods['halved'].ip}:{PORT}", 1) == {"halved"}, "its port answers all the time"

            remove = cri_pb.ExecSyncRequest(container_id=container(lab, "main"), cmd=["rm", "/ready"], timeout=10)
            assert lab.cri.call("ExecSync", remove).exit_code == 0
            await until(lambda: whys(kepd) == {"its container worker ended", "its pod is not ready"})
            await until(lambda: answers(lab) == {"whole"})

            stop = cri_pb.StopPodSandboxRequest(pod_sandbox_id=pods["halved"].id)
            lab.cri.call("StopPodSandbox", stop)
            await until(lambda: "its sandbox ended" in whys(kepd))
            (kepd.manifests / "probed.yaml").unlink()
            await until(lambda: not kepd.pods())
            await asyncio.to_thread(kepd.end)


def container(lab: Lab, name: str, sandbox: str = "") -> str:
    listed = lab.cri.call("ListContainers", cri_pb.ListContainersRequest()).containers
    return next(str(one.id) for one in listed if one.metadata.name == name and sandbox in ("", one.pod_sandbox_id))


async def until(holds: Callable[[], object]) -> None:
    """Meanwhile the server answers."""
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(holds):
            pass


def daemon(lab: Lab, folder: Path, server: ApiServer, ca: Path) -> Kepd:
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {"server": server.url, "certificate-authority": str(ca)}}],
            "users": [{"name": "u", "user": {"token": "good-token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        })
    )  # fmt: skip
    extra = (
        f"pods: {{logDirectory: {folder}/logs, cgroupRoot: '{lab.place.cgroup_parent.strip('/')}'}}\n"
        f"kubernetes: {{kubeconfig: {kubeconfig}}}\n"
        "services: {source: kubernetes, outage: judge, outageAfter: 1s, healthzAddress: '',"
        " conntrack: {maxPerCore: 0}}\n"
    )
    return Kepd(folder, 10952, endpoint=lab.endpoint, extra=extra, prefix=tuple(lab.netns.command(())))


def put_web(server: ApiServer, places: dict[str, str]) -> None:
    server.objects.put("services", service("web", clusterIP=VIP, ports=[{"protocol": "TCP", "port": 80}]))
    made = {
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "", "protocol": "TCP", "port": PORT}],
        "endpoints": [
            {"addresses": [ip], "nodeName": "n1", "conditions": {"ready": True}} for ip in places.values()
        ],
    }  # fmt: skip
    server.objects.put("endpointslices", made)


def report(kepd: Kepd) -> dict[str, Any]:
    done = kepd.ctl("explain", "outage", "-o", "json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


def whys(kepd: Kepd) -> set[str]:
    return {one["why"] for one in report(kepd).get("dead", ())}


def answers(lab: Lab, address: str = VIP, count: int = 20) -> set[str]:
    """Who answered, and what went wrong."""
    return {*lab.netns.run(["python3", "-c", ASK, f"http://{address}/name", str(count)]).splitlines()}

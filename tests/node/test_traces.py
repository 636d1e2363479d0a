# SPDX-License-Identifier: Apache-2.0
"""Traces of real pods: a collector gets what `kepctl timeline` shows, with the calls to a real containerd."""

import json
import re
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import grpc
import pytest

from tests.collector import Collector, tree_of
from tests.host.process import Kepd
from tests.lab import Image, Lab

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

CANARY = "canary-4711"
IMAGES = "runtime.v1.ImageService"
VERSION = "/runtime.v1.RuntimeService/Version"
OPTIONS = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
POD = """
apiVersion: v1
kind: Pod
metadata: {{name: web, annotations: {{note: {canary}}}}}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: "{image}"
    imagePullPolicy: Always
    env: [{{name: PASSWORD, value: {canary}}}]
    command: [sh, -c, "trap 'exit 0' TERM; while true; do sleep 0.1; done", {canary}]
    lifecycle:
      postStart: {{exec: {{command: ["true", {canary}]}}}}
      preStop: {{exec: {{command: ["true", {canary}]}}}}
"""


START = {
    "sandbox.run": {"runtime.v1.RuntimeService/RunPodSandbox": {}, "runtime.v1.RuntimeService/PodSandboxStatus": {}},
    "runtime.v1.ImageService/ImageStatus main": {},
    "container.start main": {
        "create main": {"runtime.v1.RuntimeService/CreateContainer main": {}},
        "start main": {
            "runtime.v1.RuntimeService/StartContainer main": {},
            "runtime.v1.RuntimeService/ContainerStatus main": {},
        },
        "poststart main": {"runtime.v1.RuntimeService/ExecSync main": {}},
    },
}
STOP = {
    "wait main": {},
    "hook main": {"runtime.v1.RuntimeService/ExecSync main": {}},
    "signal main": {
        "runtime.v1.RuntimeService/StopContainer main": {},
        "runtime.v1.RuntimeService/ContainerStatus main": {},
    },
    "runtime.v1.RuntimeService/StopPodSandbox": {},
    "runtime.v1.RuntimeService/ListContainers": {},
}


def moments(kepd: Kepd) -> dict[str, float]:
    """Wall time of each, by its kind."""
    answer = kepd.ctl("api", "PodService/GetTimeline", '{"name": "web-n1"}')
    listed = json.loads(answer.stdout)["moments"]
    return {one["kind"]: datetime.fromisoformat(f"{one['at'][:26]}+00:00").timestamp() for one in listed}


def openmetrics(port: int) -> str:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return str(answer.read().decode())


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as served:
        yield served


def test_a_pods_traces_reach_the_collector_and_say_what_its_timeline_says(
    lab: Lab, collector: Collector, short_path: Path, free_port: int
) -> None:
    """OBT-17, TRC-11, TRC-13, TRC-16: tree, times, calls, exemplars, and no secret."""
    root = lab.place.cgroup_parent.strip("/")
    extra = (
        f"pods: {{logDirectory: {short_path}/logs, cgroupRoot: '{root}', logLinkDirectory: ''}}\n"
        f"telemetry: {{tracing: {{endpoint: '{collector.endpoint}', ratio: 1}}}}\n"
    )
    image = lab.push(Image(name="node/traced"))
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
        kepd.start("--planes", "pods,images").wait_ready()
        draft = short_path / "draft"
        draft.write_text(POD.format(image=image, canary=CANARY))
        draft.rename(kepd.manifests / "web.yaml")
        kepd.wait(lambda: kepd.pods() and kepd.pods()[0].get("phase") == "Running", "running")
        kepd.wait(lambda: "pod_started" in moments(kepd), "started")
        at = moments(kepd)
        (kepd.manifests / "web.yaml").unlink()
        kepd.wait(lambda: not kepd.pods(), "gone")
        page = openmetrics(free_port)
        assert kepd.end() == 0

    found = tree_of(collector.spans, "")
    # How much of a small pull is seen depends on when the store is looked at.
    assert found["pod.start"].pop("image.pull main").keys() >= {"queue main", f"{IMAGES}/ImageStatus main"}
    assert found == {"pod.start": START, "pod.stop": STOP}
    spans = {one.name: one for one in collector.spans if one.kind == "internal"}
    shown = {
        "pod.start": (at["first_seen"], at["pod_started"]),
        "image.pull": (at["pull_started"], at["pull_finished"]),
        "poststart": (at["poststart_start"], at["poststart_end"]),
    }
    assert {name: (spans[name].begin_s, spans[name].end_s) for name in shown} == {
        name: pytest.approx(times, abs=1e-5) for name, times in shown.items()
    }
    assert spans["create"].end_s == pytest.approx(at["created"], abs=1e-5)
    assert CANARY.encode() not in collector.bytes
    for family in (
        "kepd_pod_start_duration",
        "kepd_container_start_duration",
        "kepd_cri_request_duration",
        "kepd_image_pull_duration",
    ):
        assert re.search(rf'(?m)^{family}_seconds_bucket.* # {{span_id="\w{{16}}",trace_id="\w{{32}}"}}', page), page
    named = set(re.findall(r'span_id="(\w{16})"', page))
    assert named <= {one.span_id for one in collector.spans}


def test_a_kubelets_call_through_the_proxy_is_a_span_below_its_own(
    lab: Lab, collector: Collector, short_path: Path, free_port: int
) -> None:
    """TRC-12, TRC-14, TRC-16: whatever the ratio says."""
    extra = f"telemetry: {{tracing: {{endpoint: '{collector.endpoint}', ratio: 0}}}}\n"
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    with Kepd(short_path, free_port, endpoint=lab.endpoint, extra=extra) as kepd:
        kepd.start("--planes", "proxy").wait_ready()
        with grpc.insecure_channel(f"unix:{short_path}/run/cri/kubelet.sock", options=OPTIONS) as channel:
            ask = channel.unary_unary(VERSION)
            for flags in ("01", "00", "01"):
                ask(b"", timeout=20, metadata=(("traceparent", f"00-{trace}-{parent}-{flags}"),))
            ask(b"", timeout=20)
        page = openmetrics(free_port)
        assert kepd.end() == 0

    name = VERSION[1:]
    assert tree_of(collector.spans, parent) == {name: {name: {}}}
    assert [(one.kind, one.trace_id) for one in collector.spans if one.parent_id == parent] == [("server", trace)] * 2
    assert len(collector.spans) == 4
    assert re.search(rf'(?m)^kepd_proxy_added_seconds_bucket.*method="Version".*trace_id="{trace}"', page), page

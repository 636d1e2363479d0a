# SPDX-License-Identifier: Apache-2.0
"""Traces: what they add to a call through the proxy, to starts and ends of pods, and what they cost where they are off.

Calls go through three processes in turns of a few hundred, so that what else the machine does falls on all; rows are
shares of the median without traces. Pods are planned and made into messages here, without a runtime: what a trace costs
beside a start is that.
"""

import subprocess
import sys
import tempfile
import time
import timeit
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from agent.drivers.traces.messages import MessageShape
from agent.model.images.pull import PullPhase
from agent.model.pods.pod import PodSpec
from agent.model.runtime.call_notes import CallNote
from agent.pods.plan.remembered import Moment
from agent.pods.view.trace import Operation, operation_trace, start_spans, stop_spans
from bench.proxy import TURN, TURNS, Client, Kepd, Row, quantiles
from tests.collector import Collector
from tests.lab import Image, Lab

RATIOS = (0.01, 1)
# One part in a hundred shows in many calls alone.
LONGER = 3
STARTS_A_SECOND, PODS, LAYERS = 20, 300, 8
DIGEST = "sha256:" + "0123456789abcdef" * 4
IMAGE = "registry.example.com/team/app:1"
START = (
    ("first_seen", "", 0.0), ("sandbox_made", "", 0.4), ("pull_started", "app", 0.0), ("pull_finished", "app", 1.0),
    ("created", "app", 0.1), ("started", "app", 0.2), ("poststart_start", "app", 0.0), ("poststart_end", "app", 0.1),
    ("pod_started", "", 0.0),
)  # fmt: skip
STOP = (
    ("stop_began", "", 30.0), ("prestop_start", "app", 0.0), ("prestop_end", "app", 0.1), ("stop_signal", "app", 0.0),
    ("exit", "app", 0.0), ("sandbox_stop", "", 0.0), ("stop_ended", "", 0.0),
)  # fmt: skip
CALLS = ("RunPodSandbox", "PodSandboxStatus", "ImageStatus", "CreateContainer", "StartContainer", "ContainerStatus")
IMPORT = """
import time
import agent.host.compose, agent.kit.runtime
from pathlib import Path
def mib(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
before, began_s = mib(), time.perf_counter()
from agent.drivers.traces.driver import SpanExport
SpanExport("http://127.0.0.1:4317", "n1")
print((time.perf_counter() - began_s) * 1000, mib() - before)
"""


class Counter(Collector):
    """Does little with what arrives: it shares this process with the clients."""

    arrived = 0

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:  # noqa: N802  # gRPC's name
        del context
        self.arrived += sum(len(scope.spans) for one in request.resource_spans for scope in one.scope_spans)
        return ExportTraceServiceResponse()


def of_calls(lab: Lab, folder: Path) -> list[Row]:
    with Counter() as collector:
        kepds = [Kepd(lab, folder / "off")]
        for ratio in RATIOS:
            tracing = f"telemetry: {{tracing: {{endpoint: '{collector.endpoint}', ratio: {ratio}}}}}\n"
            kepds.append(Kepd(lab, folder / str(ratio), tracing))
        try:
            clients = [Client(one.link) for one in kepds]
            times: list[list[float]] = [[] for _ in clients]
            order = list(range(len(clients)))
            for turn in range(1 + TURNS * LONGER):
                for place in order:
                    made = [clients[place].time_ms() for _ in range(TURN)]
                    times[place] += made if turn else []
                # Each comes after each as often.
                order.insert(0, order.pop())
                if turn % 3 == 2:
                    order.reverse()
        finally:
            for one in kepds:
                one.close()
    off, *traced = (quantiles(one)[0] for one in times)
    rows: list[Row] = [("a call through the proxy, back to back, without traces, p50", off, "ms", "")]
    for ratio, goal, found in zip(RATIOS, ("≤ 1", "≤ 15"), traced, strict=True):
        rows.append((f"the same at ratio {ratio}: longer by, p50", (found - off) / off * 100, "%", goal))
    return [*rows, ("spans that arrived of them", collector.arrived, "", "")]


def moments(kinds: tuple[tuple[str, str, float], ...], begin_s: float) -> list[Moment]:
    return [
        Moment(
            at_s=begin_s + place / 2,
            kind=kind,
            container=container,
            seconds=seconds,
            text=IMAGE if kind.startswith("pull") else "ok",
        )
        for place, (kind, container, seconds) in enumerate(kinds)
    ]


def of_pods() -> list[Row]:
    layers = [PullPhase(name="layer", begin_s=1.2, end_s=2.0, digest=DIGEST, size_bytes=1 << 20)] * LAYERS
    shape, spans, began_s = MessageShape("0", "n1"), 0, time.process_time()
    for number in range(PODS):
        pod = PodSpec(namespace="default", name=f"web-{number}", uid=f"uid-{number}")
        made = []
        for name, kinds in (("pod.start", START), ("pod.stop", STOP)):
            found = moments(kinds, 1000.0 * number)
            calls = [CallNote("app", one, "OK", found[0].at_s + 1, found[0].at_s + 2) for one in CALLS]
            operation = Operation(
                pod=pod,
                name=name,
                trace_id=operation_trace(name, pod.uid, found[0].at_s),
                begin_s=found[0].at_s,
                end_s=found[-1].at_s,
            )
            if name == "pod.start":
                made += start_spans(operation, found, calls, {IMAGE: layers})
            else:
                made += stop_spans(operation, found, calls)
        spans += len(made)
        shape.request(made).SerializeToString()
    share = (time.process_time() - began_s) / PODS * STARTS_A_SECOND * 100
    return [
        (f"{STARTS_A_SECOND} pods a second that start and end, at ratio 1", share, "% of a core", "≤ 3"),
        ("spans of each", spans / PODS, "", ""),
    ]


class Place:
    """One that could trace, where traces are off."""

    traces = None


def when_off() -> list[Row]:
    off = timeit.timeit("place.traces is not None", globals={"place": Place()}, number=1_000_000) * 1000
    program = [sys.executable, "-c", IMPORT]
    took_ms, mib = subprocess.run(program, check=True, capture_output=True, text=True).stdout.split()
    return [
        ("a place that could trace, where traces are off", off, "ns", "≤ 60"),
        ("what sends traces: imported in", float(took_ms), "ms", ""),
        ("what sends traces: memory", float(mib), "MiB", "≤ 9"),
    ]


def measure() -> list[Row]:
    """All rows."""
    with tempfile.TemporaryDirectory(prefix="kb") as name, Lab.start() as lab:
        image = lab.push(Image(name="bench/proxy"))
        lab.cri.pull(image)
        return [*of_calls(lab, Path(name)), *of_pods(), *when_off()]

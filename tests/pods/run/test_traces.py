# SPDX-License-Identifier: Apache-2.0
"""Traces of pods over a fake runtime: what is kept, what its spans are about, and what is never in them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from agent.drivers.clock.driver import SystemClock
from agent.model.runtime.call_notes import CALLER, NOTE_BYTES, NotesRoom
from agent.model.span import Span, is_sampled
from agent.pods.plan.remembered import History
from agent.pods.run.one_pod.pod_trace import MOST_NOTES, PodTrace, PodTracing
from tests.collector import tree_of
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Plane, Slow, manifest, running
from tests.pods.pods import make_pod

CANARY = "canary-4711"
POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: web, annotations: {{note: {CANARY}}}}}
spec:
  containers:
  - name: app
    image: i
    command: [run, {CANARY}]
    env: [{{name: PASSWORD, value: {CANARY}}}]
    lifecycle:
      postStart: {{exec: {{command: [begin, {CANARY}]}}}}
      preStop: {{exec: {{command: [drain, {CANARY}]}}}}
""".encode()


class Sink:
    """Where spans go."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.spans: list[Span] = []

    def samples(self, trace_id: int) -> bool:
        return is_sampled(trace_id, self.ratio)

    def take(self, spans: Sequence[Span]) -> None:
        self.spans += spans

    def roots(self) -> list[tuple[str, str]]:
        return [(one.name, one.error) for one in self.spans if not one.parent_id]


class Told(Slow):
    """Tells of its calls as the driver does."""

    async def start_container(self, container_id: str) -> None:
        await super().start_container(container_id)
        caller = CALLER.get()
        if caller is not None:
            caller.called("StartContainer", "OK", 0.0)


def tracing(sink: Sink, room: NotesRoom | None = None) -> PodTracing:
    return PodTracing(sink, SystemClock(), room)


async def life(plane: Plane, manifests: FakeManifestDirectory) -> None:
    """A pod comes and goes."""
    manifests.put("/m/f.yaml", POD)
    await plane.until_phases(web="Running")
    await plane.until(lambda: plane.pod().containers[0].is_ready, "ready")
    manifests.put("/m/f.yaml", None)
    await plane.until(lambda: not plane.phases, "gone")


async def test_a_pods_life_is_two_traces(tmp_path: Path) -> None:
    """TRC-11, TRC-13: the tree of its start, that of its end, and nothing of what the manifest keeps to itself."""
    sink, manifests = Sink(1.0), FakeManifestDirectory({})
    async with running(Told(), manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until_ready()
        await life(plane, manifests)
        moments, _ = plane.runner.shown.past["default/web-n"]

    assert tree_of(sink.spans, 0) == {
        "pod.start": {
            "sandbox.run": {},
            "image.pull app": {},
            "container.start app": {
                "create app": {},
                "start app": {"runtime.v1.RuntimeService/StartContainer app": {}},
                "poststart app": {},
            },
        },
        "pod.stop": {"wait app": {}, "hook app": {}, "signal app": {}},
    }
    at_s = {one.kind: one.at_s for one in moments}
    start, stop = (one for one in sink.spans if not one.parent_id)
    assert (start.begin_s, start.end_s) == (at_s["first_seen"], at_s["pod_started"])
    assert (stop.begin_s, stop.end_s) == (at_s["stop_began"], at_s["stop_ended"])
    assert CANARY not in repr(sink.spans)


async def test_at_ratio_0_only_what_failed_is_kept(tmp_path: Path) -> None:
    """TRC-14."""
    sink, manifests = Sink(0.0), FakeManifestDirectory({})
    async with running(Slow(), manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until_ready()
        await life(plane, manifests)
        assert sink.spans == []
        manifests.put("/m/f.yaml", manifest("bad", "missing"))
        await plane.until(lambda: "default/bad-n" in plane.runner.pods.items, "seen")
        await plane.until(lambda: plane.pod("bad-n").containers[0].reason == "ErrImagePull", "it cannot start")
        manifests.put("/m/f.yaml", None)
        await plane.until(lambda: not plane.phases, "gone")

    assert sink.roots() == [("pod.start", "removed")]
    assert [one.error for one in sink.spans if one.name == "image.pull"] == ["pull_failed"]


async def test_a_start_of_more_than_a_minute_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRC-14."""
    monkeypatch.setattr("agent.pods.run.one_pod.pod_trace.SLOW_S", -1.0)
    sink, manifests = Sink(0.0), FakeManifestDirectory({})
    async with running(Slow(), manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until_ready()
        await life(plane, manifests)

    assert sink.roots() == [("pod.start", "")]


async def test_a_probe_that_is_slow_tells_behind_the_start(tmp_path: Path) -> None:
    """TRC-11: from the start of its container."""
    sink, manifests = Sink(1.0), FakeManifestDirectory({})
    pod = (
        manifest("web", "i")
        .decode()
        .replace("image: i}", "image: i, readinessProbe: {tcpSocket: {port: 81}, periodSeconds: 1}}")
    )
    async with running(Slow(), manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until_ready()
        manifests.put("/m/f.yaml", pod.encode())
        await plane.until(lambda: sink.spans, "the trace")
        assert "ready" not in {one.name for one in sink.spans}
        plane.probe_client.answers[81] = 200
        await plane.until(lambda: plane.pod().containers[0].is_ready, "ready")
        moments = next(iter(plane.runner.keepers.values())).run.history.moments

    at_s = {one.kind: one.at_s for one in moments}
    (root,) = [one for one in sink.spans if one.name == "pod.start"]
    (ready,) = [one for one in sink.spans if one.name == "ready"]
    assert (ready.parent_id, ready.begin_s, ready.end_s) == (root.span_id, at_s["started"], at_s["ready"])
    assert len({one.span_id for one in sink.spans}) == len(sink.spans)


async def test_a_start_that_is_tried_again_for_hours_leaves_room(tmp_path: Path) -> None:
    """TRC-14."""
    room = NotesRoom(NOTE_BYTES * (MOST_NOTES + 1))
    trace = PodTrace(tracing(Sink(1.0), room), make_pod(), History(), 100.0)
    trace.begin_start()
    for _ in range(MOST_NOTES * 2):
        trace.note("app", "StartContainer", "OK", 0.1)
    assert room.take()
    assert not room.take()


async def test_a_start_goes_on_in_the_next_process(tmp_path: Path) -> None:
    """TRC-11: its times are those of the record; what its calls were is gone."""
    cri, sink, manifests = Slow(), Sink(1.0), FakeManifestDirectory({"/m/f.yaml": manifest("web", "slow")})
    cri.registry.add("slow")
    cri.slow_images.add("slow")
    async with running(cri, manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until(lambda: cri.pulling["slow"], "it is being pulled")
        await plane.runner.keepers[next(iter(plane.runner.keepers))].run.save()
        moments = next(iter(plane.runner.keepers.values())).run.history.moments
    assert sink.spans == []
    cri.may_pull.set()
    async with running(cri, manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until_phases(web="Running")
        await plane.until(lambda: sink.spans, "the trace")

    assert sink.roots() == [("pod.start", "")]
    assert sink.spans[0].begin_s == moments[0].at_s


async def test_figures_name_the_trace_that_is_kept(tmp_path: Path) -> None:
    """TRC-16."""
    sink, manifests = Sink(1.0), FakeManifestDirectory({})
    async with running(Slow(), manifests, tmp_path, tracing=tracing(sink)) as plane:
        await plane.until_ready()
        await life(plane, manifests)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(type("Page", (), {"collect": lambda _: plane.metrics.families()})())
        page = generate_latest(registry).decode()

    for family, name in (
        ("kepd_pod_start_duration", "pod.start"),
        ("kepd_container_start_duration", "container.start"),
    ):
        (span,) = [one for one in sink.spans if one.name == name]
        label = f'# {{span_id="{span.span_id:016x}",trace_id="{span.trace_id:032x}"}}'
        assert any(line.startswith(f"{family}_seconds_bucket") and label in line for line in page.splitlines()), family


async def test_what_is_held_until_the_end_of_a_start_is_bounded(tmp_path: Path) -> None:
    """TRC-14: one note finds room; with the end of the start it is there for the next."""
    sink, manifests, room = Sink(1.0), FakeManifestDirectory({}), NotesRoom(NOTE_BYTES)
    async with running(Told(), manifests, tmp_path, tracing=tracing(sink, room)) as plane:
        await plane.until_ready()
        manifests.put("/m/f.yaml", manifest("web", "i", "i"))
        await plane.until(lambda: sink.spans, "the trace")
        await asyncio.sleep(0)

    assert sum(one.kind == "client" for one in sink.spans) == 1
    assert room.take()

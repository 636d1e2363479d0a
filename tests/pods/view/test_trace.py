# SPDX-License-Identifier: Apache-2.0
"""What a pod's trace says, from the moments of its timeline."""

from typing import Any

from agent.model.images.pull import PullPhase
from agent.model.runtime.call_notes import CallNote
from agent.model.span import Span
from agent.pods.plan.remembered import Moment
from agent.pods.view.trace import Operation, began_s, container_span, operation_trace, start_spans, stop_spans
from tests.collector import tree_of
from tests.pods.pods import make_pod

POD = make_pod()


def moment(at_s: float, kind: str, container: str = "", text: str = "", seconds: float = 0.0) -> Moment:
    return Moment(at_s=at_s, kind=kind, container=container, text=text, seconds=seconds)


START = [
    moment(100.0, "first_seen"),
    moment(101.0, "sandbox_made", text="10.0.0.2", seconds=0.8),
    moment(101.1, "pull_started", "app", "me:pw@registry/app:1?key=pw"),
    moment(103.0, "pull_finished", "app", "me:pw@registry/app:1?key=pw", 1.9),
    moment(103.2, "created", "app", seconds=0.1),
    moment(103.4, "started", "app", seconds=0.15),
    moment(103.4, "poststart_start", "app"),
    moment(103.9, "poststart_end", "app", "ok", 0.5),
    moment(104.0, "pod_started", seconds=4.0),
]
STOP = [
    moment(200.0, "stop_began", text="removed", seconds=30),
    moment(200.1, "prestop_start", "app"),
    moment(202.0, "prestop_end", "app", "ok", 1.9),
    moment(202.0, "stop_signal", "app"),
    moment(202.5, "exit", "app", "0 Completed"),
    moment(202.6, "stop_signal", "net"),
    moment(203.0, "sigkill", "net"),
    moment(203.1, "exit", "net", "137 Error"),
    moment(203.4, "sandbox_stop"),
    moment(203.5, "stop_ended", seconds=3.5),
]


def operation(name: str, begin_s: float, end_s: float, error: str = "") -> Operation:
    return Operation(
        pod=POD, name=name, trace_id=operation_trace(name, "u1", begin_s), begin_s=begin_s, end_s=end_s, error=error
    )


def named(spans: list[Span], name: str, container: str = "") -> Span:
    (found,) = [one for one in spans if one.name == name and one.attributes.get("k8s.container.name", "") == container]
    return found


def tree(spans: list[Span]) -> dict[str, Any]:
    return tree_of(spans, 0)


def test_a_start_has_the_shape_and_the_times_of_its_timeline() -> None:
    """TRC-11."""
    calls = [
        CallNote("", "RunPodSandbox", "OK", 100.3, 100.9),
        CallNote("app", "CreateContainer", "OK", 103.12, 103.19),
        CallNote("app", "StartContainer", "OK", 103.26, 103.39),
        CallNote("app", "ImageStatus", "NOT_FOUND", 101.02, 101.05),
    ]
    pulls = {
        "me:pw@registry/app:1?key=pw": (
            PullPhase(name="queue", begin_s=101.1, end_s=101.2),
            PullPhase(name="layer", begin_s=101.2, end_s=102.0, digest="sha256:1", size_bytes=7),
        ),
        "other": (PullPhase(name="queue", begin_s=101.1, end_s=101.2),),
    }
    spans = start_spans(operation("pod.start", 100.0, 104.0), START, calls, pulls)

    assert tree(spans) == {
        "pod.start": {
            "sandbox.run": {"runtime.v1.RuntimeService/RunPodSandbox": {}},
            "runtime.v1.ImageService/ImageStatus app": {},
            "image.pull app": {"queue app": {}, "layer app": {}},
            "container.start app": {
                "create app": {"runtime.v1.RuntimeService/CreateContainer app": {}},
                "start app": {"runtime.v1.RuntimeService/StartContainer app": {}},
                "poststart app": {},
            },
        }
    }
    times = {one.name: (round(one.begin_s, 2), round(one.end_s, 2)) for one in spans if one.kind == "internal"}
    assert times == {
        "pod.start": (100.0, 104.0),
        "sandbox.run": (100.2, 101.0),
        "image.pull": (101.1, 103.0),
        "queue": (101.1, 101.2),
        "layer": (101.2, 102.0),
        "container.start": (103.1, 103.9),
        "create": (103.1, 103.2),
        "start": (103.25, 103.4),
        "poststart": (103.4, 103.9),
    }
    layer = named(spans, "layer", "app").attributes
    assert (layer["kepd.layer.digest"], layer["kepd.layer.bytes"]) == ("sha256:1", 7)
    call = named(spans, "runtime.v1.ImageService/ImageStatus", "app")
    assert (call.kind, call.error, call.attributes["rpc.grpc.status_code"]) == ("client", "NOT_FOUND", 5)
    assert (call.attributes["rpc.system"], call.attributes["rpc.method"]) == ("grpc", "ImageStatus")


def test_spans_say_whose_they_are_and_no_login() -> None:
    """TRC-13."""
    spans = start_spans(operation("pod.start", 100.0, 104.0), START, [], {})
    assert named(spans, "image.pull", "app").attributes == {
        "k8s.namespace.name": "default", "k8s.pod.name": "web", "k8s.pod.uid": "u1", "k8s.container.name": "app",
        "container.image.name": "registry/app:1",
    }  # fmt: skip
    assert "pw" not in repr(spans)


def test_a_start_that_failed_says_where() -> None:
    """TRC-11, TRC-14."""
    moments = [*START[:3], moment(102.0, "pull_failed", "app", "registry/app"), moment(109.0, "stop_began", text="x")]
    spans = start_spans(operation("pod.start", 100.0, 109.0, "removed"), moments, [], {})
    assert (named(spans, "pod.start").error, named(spans, "image.pull", "app").error) == ("removed", "pull_failed")


def test_each_attempt_of_a_container_is_a_span_of_its_own() -> None:
    """TRC-11."""
    again = [moment(105.0, "exit", "app", "1"), moment(106.0, "created", "app"), moment(106.5, "started", "app")]
    moments = [*START[:6], *again]
    found = operation("pod.start", 100.0, 107.0)
    starts = [one for one in start_spans(found, moments, [], {}) if one.name == "container.start"]
    assert [round(one.begin_s, 1) for one in starts] == [103.1, 106.0]
    assert len({one.span_id for one in starts}) == 2
    assert container_span(found.trace_id, moments, 100.0, "app").span_id == starts[1].span_id


def test_a_stop_shows_what_each_container_waited_for() -> None:
    """TRC-11."""
    calls = [CallNote("app", "StopContainer", "OK", 202.01, 202.5), CallNote("", "StopPodSandbox", "OK", 203.2, 203.3)]
    spans = stop_spans(operation("pod.stop", 200.0, 203.5), [*START, *STOP], calls)
    assert tree(spans) == {
        "pod.stop": {
            "wait app": {},
            "wait net": {},
            "hook app": {},
            "signal app": {"runtime.v1.RuntimeService/StopContainer app": {}},
            "signal net": {},
            "runtime.v1.RuntimeService/StopPodSandbox": {},
        }
    }
    assert [one.name for one in named(spans, "pod.stop").moments] == ["exit", "sigkill", "exit", "sandbox_stop"]
    hook = named(spans, "hook", "app")
    assert (round(hook.begin_s, 1), round(hook.end_s, 1)) == (200.1, 202.0)


def test_a_hook_that_failed_is_an_error_of_its_span() -> None:
    """TRC-11."""
    moments = [STOP[0], STOP[1], moment(202.0, "prestop_end", "app", "timeout"), *STOP[3:]]
    spans = stop_spans(operation("pod.stop", 200.0, 203.5), moments, [])
    assert named(spans, "hook", "app").error == "timeout"


def test_a_start_after_an_end_begins_where_that_was_over() -> None:
    assert began_s(START, 100.0) == 100.0
    assert began_s([*START, *STOP], 100.0) == 203.5

# SPDX-License-Identifier: Apache-2.0
"""The trace of a pod's start or end, made from the moments of its timeline, so that both say the same.

    pod.start ⊃ sandbox.run · ready
                image.pull      ⊃ queue · resolve · layer · unpack
                container.start ⊃ create · start · poststart
    pod.stop  ⊃ for each container: wait · hook · signal

Calls to the runtime stand below whatever went on meanwhile in the same container. Ids are made from what a span is
about, so that it can be named before it has ended.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from agent.model.images.pull import PullPhase
from agent.model.pods.pod import PodSpec
from agent.model.rpc import rpc_attributes, service_of
from agent.model.runtime.call_notes import CallNote
from agent.model.span import (
    Attributes,
    AttributeValue,
    Span,
    SpanMoment,
    SpanRef,
    bounded,
    plain_image,
    span_id_of,
    trace_id_of,
)
from agent.pods.plan.remembered import Moment

START, STOP, CONTAINER, PULL = "pod.start", "pod.stop", "container.start", "image.pull"
START_MOMENTS = ("ready", "unready", "probe_failed", "exit", "restart")
PULL_ENDS = ("pull_finished", "pull_failed")
# With what the turn of a container comes in an end.
TURNS = ("prestop_start", "stop_signal", "sigkill", "exit")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A start or an end of a pod. `error` is why it did not come to its good end."""

    pod: PodSpec
    name: str
    trace_id: int
    begin_s: float
    end_s: float
    error: str = ""

    @property
    def root_id(self) -> int:
        return root_span(self.trace_id, self.name)


def operation_trace(name: str, uid: str, begin_s: float) -> int:
    return trace_id_of(name, uid, begin_s)


def root_span(trace_id: int, name: str) -> int:
    return span_id_of(trace_id, name, "", 1)


def shown_begin_s(moments: Iterable[Moment], begin_s: float) -> float:
    """A pod is known a moment before its timeline begins, and the trace says what the timeline says."""
    return next((one.at_s for one in moments if one.kind == "first_seen" and one.at_s >= begin_s), begin_s)


def began_s(moments: Sequence[Moment], first_seen_s: float) -> float:
    """When the start began that goes on: one that is not the pod's first begins where the end before it was over."""
    return max([first_seen_s, *(one.at_s for one in moments if one.kind == "stop_ended" and not one.container)])


def container_span(trace_id: int, moments: Iterable[Moment], begin_s: float, container: str) -> SpanRef:
    """The last start of a container so far."""
    number = sum(one.kind == "created" and one.container == container and one.at_s >= begin_s for one in moments)
    return SpanRef(trace_id, span_id_of(trace_id, CONTAINER, container, number))


def start_spans(
    operation: Operation,
    moments: Sequence[Moment],
    calls: Sequence[CallNote],
    pulls: Mapping[str, Sequence[PullPhase]],
) -> list[Span]:
    """`pulls`: what those of the pod's images spent their time on, by the names that containers have for them."""
    tree = _Tree(operation)
    within = [one for one in moments if operation.begin_s <= one.at_s <= operation.end_s]
    names = dict.fromkeys(one.container for one in within)
    for name in names:
        of_container = [one for one in within if one.container == name]
        _pulls(tree, name, of_container, pulls)
        _starts(tree, name, of_container)
    for one in within:
        if one.kind == "sandbox_made":
            tree.add("sandbox.run", "", one.at_s - one.seconds, one.at_s)
    told = [one for one in within if one.kind in START_MOMENTS]
    return tree.spans(told, calls)


def ready_span(operation: Operation, moments: Sequence[Moment], container: str) -> Span:
    """From the start of a container until its probe said so, which was the last moment; of a start that is over."""
    own = [one for one in moments if one.container == container]
    started_s = max((one.at_s for one in own if one.kind == "started"), default=operation.end_s)
    tree = _Tree(operation)
    tree.add("ready", container, started_s, own[-1].at_s)
    return tree.spans((), ())[-1]


def stop_spans(operation: Operation, moments: Sequence[Moment], calls: Sequence[CallNote]) -> list[Span]:
    tree = _Tree(operation)
    within = [one for one in moments if operation.begin_s <= one.at_s <= operation.end_s]
    for name in dict.fromkeys(one.container for one in within if one.container):
        _ends(tree, name, [one for one in within if one.container == name])
    told = [one for one in within if one.kind in ("sigkill", "exit", "sandbox_stop", "stop_shortened", "restart")]
    return tree.spans(told, calls)


class _Tree:
    """Spans below one root; the times of each are inside those of the operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._added: list[tuple[str, Span]] = []
        self._owners: dict[str, Attributes] = {}

    def add(
        self,
        name: str,
        container: str,
        begin_s: float,
        end_s: float,
        *,
        parent_id: int = 0,
        error: str = "",
        more: Attributes | None = None,
    ) -> int:
        """Its id."""
        self._numbers[name, container] += 1
        trace_id = self.operation.trace_id
        span = Span(
            trace_id=trace_id,
            span_id=span_id_of(trace_id, name, container, self._numbers[name, container]),
            parent_id=parent_id or self.operation.root_id,
            name=name,
            begin_s=max(begin_s, self.operation.begin_s),
            end_s=max(end_s, self.operation.begin_s),
            attributes={**self._of_pod(container), **(bounded(more) if more else {}), **_error(error)},
            error=error,
        )
        self._added.append((container, span))
        return span.span_id

    def spans(self, moments: Iterable[Moment], calls: Sequence[CallNote]) -> list[Span]:
        operation = self.operation
        told = tuple(SpanMoment(one.kind, one.at_s, bounded({"k8s.container.name": one.container})) for one in moments)
        root = Span(
            trace_id=operation.trace_id,
            span_id=operation.root_id,
            name=operation.name,
            begin_s=operation.begin_s,
            end_s=operation.end_s,
            attributes={**self._of_pod(""), **bounded(_error(operation.error))},
            moments=told,
            error=operation.error,
        )
        return [root, *(span for _, span in self._added), *(self._call(place, one) for place, one in enumerate(calls))]

    def _of_pod(self, container: str) -> Attributes:
        known = self._owners.get(container)
        if known is None:
            pod = self.operation.pod
            known = self._owners[container] = bounded(
                {
                    "k8s.namespace.name": pod.namespace,
                    "k8s.pod.name": pod.name,
                    "k8s.pod.uid": pod.uid,
                    "k8s.container.name": container,
                }
            )
        return known

    def _call(self, place: int, call: CallNote) -> Span:
        middle_s = (call.begin_s + call.end_s) / 2
        around = [
            span
            for container, span in self._added
            if container in ("", call.container) and span.begin_s <= middle_s <= span.end_s
        ]
        parent = max(around, key=lambda one: (one.begin_s, -one.end_s), default=None)
        service = service_of(call.method)
        error = "" if call.code == "OK" else call.code
        return Span(
            trace_id=self.operation.trace_id,
            span_id=call_span(self.operation.trace_id, place).span_id,
            parent_id=parent.span_id if parent is not None else self.operation.root_id,
            name=f"{service}/{call.method}",
            kind="client",
            begin_s=call.begin_s,
            end_s=call.end_s,
            attributes={**self._of_pod(call.container), **rpc_attributes(service, call.method, call.code)},
            error=error,
        )


def _error(error: str) -> dict[str, AttributeValue]:
    return {"error.type": error} if error else {}


def call_span(trace_id: int, place: int) -> SpanRef:
    """The span of the call at that place among those of an operation."""
    return SpanRef(trace_id, span_id_of(trace_id, "call", place))


def _pulls(tree: _Tree, name: str, moments: Sequence[Moment], phases: Mapping[str, Sequence[PullPhase]]) -> None:
    begun: Moment | None = None
    for one in moments:
        if one.kind == "pull_started":
            begun = one
        elif one.kind in PULL_ENDS and begun is not None:
            error = "pull_failed" if one.kind == "pull_failed" else ""
            more = {"container.image.name": plain_image(one.text)}
            own_id = tree.add(PULL, name, begun.at_s, one.at_s, error=error, more=more)
            for part in phases.get(one.text, ()):
                of_layer: Attributes = {"kepd.layer.digest": part.digest, "kepd.layer.bytes": part.size_bytes}
                tree.add(
                    part.name,
                    name,
                    part.begin_s,
                    part.end_s,
                    parent_id=own_id,
                    more=of_layer if part.digest else None,
                )
            begun = None


def _starts(tree: _Tree, name: str, moments: Sequence[Moment]) -> None:
    """Each start begins with `created`; what belongs to it lies before the next one."""
    places = [place for place, one in enumerate(moments) if one.kind == "created"]
    for place, following in pairwise([*places, len(moments)]):
        _one_start(tree, name, moments[place:following])


def _one_start(tree: _Tree, name: str, moments: Sequence[Moment]) -> None:
    created = moments[0]
    started = next((one for one in moments if one.kind == "started"), None)
    hook = next((one for one in moments if one.kind == "poststart_start"), None)
    hooked = next((one for one in moments if one.kind == "poststart_end"), None)
    end_s = max(one.at_s for one in (created, started, hooked) if one is not None)
    has_failed = started is None or (hooked is not None and hooked.text != "ok")
    error = ("not_started" if started is None else "poststart_failed") if has_failed else ""
    own_id = tree.add(CONTAINER, name, created.at_s - created.seconds, end_s, error=error)
    tree.add("create", name, created.at_s - created.seconds, created.at_s, parent_id=own_id)
    if started is not None:
        tree.add("start", name, started.at_s - started.seconds, started.at_s, parent_id=own_id)
    if hook is not None and hooked is not None:
        bad = "" if hooked.text == "ok" else "poststart_failed"
        tree.add("poststart", name, hook.at_s, hooked.at_s, parent_id=own_id, error=bad)


def _ends(tree: _Tree, name: str, moments: Sequence[Moment]) -> None:
    turn = next((one for one in moments if one.kind in TURNS), None)
    if turn is None:
        return
    tree.add("wait", name, tree.operation.begin_s, turn.at_s)
    hook: Moment | None = None
    signal: Moment | None = None
    for one in moments:
        if one.kind == "prestop_start":
            hook = one
        elif one.kind == "prestop_end" and hook is not None:
            phase = one.text.partition(" ")[0]
            tree.add("hook", name, hook.at_s, one.at_s, error="" if phase == "ok" else phase)
            hook = None
        elif one.kind in ("stop_signal", "sigkill"):
            signal = signal or one
        elif one.kind == "exit" and signal is not None:
            tree.add("signal", name, signal.at_s, one.at_s)
            signal = None
    if signal is not None:
        tree.add("signal", name, signal.at_s, tree.operation.end_s)

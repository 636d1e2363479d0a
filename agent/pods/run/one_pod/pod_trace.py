# SPDX-License-Identifier: Apache-2.0
"""What one pod's start or end leaves for its trace: the calls that were made for it, and the decision at its end.

There is one only where traces are on. A start that failed or took long is kept whatever the ratio says, so the
calls of each are held until its end; all pods together hold a bounded number. Never: plans spans (`view/trace.py`).
"""

from collections.abc import Callable, Sequence
from contextvars import Context, copy_context

import structlog

from agent.model.clock import Clock
from agent.model.images.pull import PullPhase
from agent.model.pods.pod import PodSpec
from agent.model.runtime.call_notes import CALLER, CallNote, NotesRoom
from agent.model.span import Span, SpanRef, Traces
from agent.pods.plan.remembered import History, Memory, Moment
from agent.pods.plan.work import ContainerWork, FetchingAhead, MakingSandbox, RestartingAll, StoppingPod, Work
from agent.pods.view.trace import (
    START,
    STOP,
    Operation,
    began_s,
    call_span,
    container_span,
    operation_trace,
    ready_span,
    root_span,
    shown_begin_s,
    start_spans,
    stop_spans,
)

log = structlog.get_logger(plane="pods")

SLOW_S = 60.0
# Of one pod: a start that is tried again for hours must not take the room of all others.
MOST_NOTES = 128
OF_POD = (FetchingAhead, MakingSandbox, RestartingAll, StoppingPod)


class PodTracing:
    """What all pods share of it."""

    def __init__(self, traces: Traces, clock: Clock, room: NotesRoom | None = None) -> None:
        self.traces = traces
        self.clock = clock
        self.room = room or NotesRoom()


class PodTrace:
    def __init__(self, tracing: PodTracing, pod: PodSpec, history: History, first_seen_s: float) -> None:
        """`first_seen_s`: wall time."""
        self._tracing = tracing
        self._pod = pod
        self._history = history
        self._first_seen_s = first_seen_s
        self._name = ""
        self._begin_s = 0.0
        self._trace_id = 0
        self._calls: list[CallNote] = []
        self._pulls: dict[str, tuple[PullPhase, ...]] = {}
        self._noted = 0
        self._unready: dict[str, Operation] = {}

    def resume(self, memory: Memory, *, is_up: bool) -> None:
        """As the pod is found: it starts, it ends, or nothing goes on that would be a trace."""
        began = [one.at_s for one in self._history.moments if one.kind == "stop_began" and not one.container]
        if memory.stop is not None and began:
            self._begin(STOP, began[-1])
        elif memory.stop is None and memory.outcome is None and not is_up:
            self.begin_start()

    def begin_start(self) -> None:
        self._begin(START, began_s(self._history.moments, self._first_seen_s))

    def end_start(self, error: str = "") -> SpanRef | None:
        """All its containers have started; or, with an error, they will not. Its span, if the trace is kept."""
        if self._name != START:
            return None
        operation = self._over(error)
        is_kept = bool(error) or operation.end_s - operation.begin_s > SLOW_S or self._is_sampled
        if is_kept:
            self._send(operation, lambda moments: start_spans(operation, moments, self._calls, self._pulls))
            self._unready = dict.fromkeys(() if error else self._probed(), operation)
        self._forget()
        return SpanRef(operation.trace_id, operation.root_id) if is_kept else None

    def note_ready(self, container: str) -> None:
        """The moment of that is the last one. Once a start is over, the first of each container follows it."""
        operation = self._unready.pop(container, None)
        if operation is not None:
            self._send(operation, lambda moments: [ready_span(operation, moments, container)])

    def _probed(self) -> list[str]:
        """Containers that are not ready by having started."""
        told = {one.container for one in self._history.moments if one.kind == "ready" and one.at_s >= self._begin_s}
        probed = (one.name for one in self._pod.containers if one.fields.readiness_probe is not None)
        return [name for name in probed if name not in told]

    def begin_stop(self, cause: str) -> None:
        """The moment of that is the last one. A start that has not come to its end by now has failed."""
        self.end_start("failed" if cause == "completed" else cause)
        self._unready = {}
        self._begin(STOP, self._history.moments[-1].at_s)

    def end_stop(self, *, is_new_start: bool) -> None:
        """Its moment is the last one; `is_new_start`: the pod begins again, in another sandbox."""
        if self._name != STOP:
            return
        operation = self._over("")
        if self._is_sampled:
            self._send(operation, lambda moments: stop_spans(operation, moments, self._calls))
        self._forget()
        if is_new_start:
            self.begin_start()

    def of_start(self) -> SpanRef | None:
        """The span of the start that goes on, if its trace is kept for sure."""
        if self._name != START or not self._is_sampled:
            return None
        return SpanRef(self._trace_id, root_span(self._trace_id, START))

    def of_container(self, name: str) -> SpanRef | None:
        if self._name != START or not self._is_sampled:
            return None
        return container_span(self._trace_id, self._history.moments, self._begin_s, name)

    def context_of(self, work: Work) -> Context | None:
        """In which the task of some work runs, so that its calls are known for the pod's; None for work that no trace
        is about, such as probes."""
        if isinstance(work, ContainerWork):
            caller = _Caller(self, work.container)
        elif isinstance(work, OF_POD):
            caller = _Caller(self, "")
        else:
            return None
        context = copy_context()
        context.run(CALLER.set, caller)
        return context

    def note(self, container: str, method: str, code: str, duration_s: float) -> SpanRef | None:
        if not self._name or not self._take():
            return None
        end_s = self._tracing.clock.wall_s()
        self._calls.append(CallNote(container, method, code, end_s - duration_s, end_s))
        return call_span(self._trace_id, len(self._calls) - 1) if self._is_sampled else None

    def _send(self, of: Operation, plan: Callable[[Sequence[Moment]], list[Span]]) -> None:
        """A defect in a trace must not be one of its pod."""
        try:
            self._tracing.traces.take(plan(self._history.moments))
        except Exception as error:
            log.error("pod_trace_failed", pod=self._pod.key, trace=of.name, error=repr(error), exc_info=error)

    def note_pull(self, image: str, phases: Sequence[PullPhase]) -> None:
        if self._name != START or image in self._pulls:
            return
        kept = tuple(one for one in phases if self._take())
        self._pulls[image] = kept

    def _take(self) -> bool:
        if self._noted >= MOST_NOTES or not self._tracing.room.take():
            return False
        self._noted += 1
        return True

    @property
    def _is_sampled(self) -> bool:
        return self._tracing.traces.samples(self._trace_id)

    def _begin(self, name: str, begin_s: float) -> None:
        self._forget()
        self._name, self._begin_s = name, begin_s
        self._trace_id = operation_trace(name, self._pod.uid, begin_s)

    def _over(self, error: str) -> Operation:
        # What ended it is the last thing that happened.
        moments = self._history.moments
        begin_s = shown_begin_s(moments, self._begin_s) if self._name == START else self._begin_s
        end_s = max(begin_s, moments[-1].at_s) if moments else begin_s
        return Operation(
            pod=self._pod, name=self._name, trace_id=self._trace_id, begin_s=begin_s, end_s=end_s, error=error
        )

    def _forget(self) -> None:
        self._tracing.room.give_back(self._noted)
        self._name, self._calls, self._pulls, self._noted = "", [], {}, 0


class _Caller:
    def __init__(self, trace: PodTrace, container: str) -> None:
        self._trace = trace
        self._container = container

    def called(self, method: str, code: str, duration_s: float) -> SpanRef | None:
        return self._trace.note(self._container, method, code, duration_s)

    def pulled(self, image: str, phases: Sequence[PullPhase]) -> None:
        self._trace.note_pull(image, phases)

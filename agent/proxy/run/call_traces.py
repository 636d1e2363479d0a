# SPDX-License-Identifier: Apache-2.0
"""Traces of the calls on one connection: which are kept, the parent that the runtime sees, the spans at the end.

There is one only where traces are on. A call that is not kept costs a look at its headers, and its bytes stay as they
are, unless its parent is no more than the index of an entry that an earlier parent of ours took. What fails in here
lets the call pass as it came. Never: looks into a request.
"""

from random import getrandbits

import structlog

from agent.model.clock import Clock
from agent.model.span import Span, Traces, parent_value, read_parent
from agent.proxy.frames import layout as http2
from agent.proxy.frames.hpack import Headers
from agent.proxy.frames.parent_header import is_only_index, parents_in, with_parent
from agent.proxy.gates.ledger import Sandbox
from agent.proxy.run.call import ContainerToMake, KnownContainer, ProxyCall
from agent.proxy.run.figures import METHODS
from agent.proxy.traces.call_spans import CallEnd, CallTrace, call_spans

log = structlog.get_logger(plane="proxy")

# They last as long as somebody looks.
STREAMS = frozenset({"GetContainerEvents", "Exec", "Attach", "PortForward"})
SPLIT_FLAGS = http2.PADDED | http2.PRIORITY
OLDER = "/runtime.v1alpha2."


class CallTraces:
    def __init__(self, traces: Traces, clock: Clock) -> None:
        self._traces = traces
        self._clock = clock
        self._has_replaced = False

    def begin(self, call: ProxyCall, headers: Headers, block: bytes, flags: int) -> bytes | None:
        """A call is there. The frame that goes to the runtime instead of the one that came; None: that one."""
        try:
            return self._begin(call, headers, block, flags)
        except Exception as error:  # a defect in a trace must not be one of a call
            log.error("proxy_trace_failed", method=call.path, error=repr(error), exc_info=error)
            return None

    def _begin(self, call: ProxyCall, headers: Headers, block: bytes, flags: int) -> bytes | None:
        given = parents_in(headers)
        parent = read_parent(given[0]) if len(given) == 1 else None
        trace_id = parent.trace_id if parent is not None else getrandbits(128) or 1
        is_kept = parent.is_sampled if parent is not None else self._traces.samples(trace_id)
        if is_kept and _is_traced(call.path):
            parent_id = parent.span_id if parent is not None else 0
            call.trace = CallTrace(trace_id=trace_id, span_id=getrandbits(64) or 1, parent_id=parent_id)
            if parent is not None or not given:
                return self._frame(call, headers, block, flags, parent_value(call.trace.for_runtime))
        elif self._has_replaced and len(given) == 1 and is_only_index(block, headers):
            return self._frame(call, headers, block, flags, given[0])
        return None

    def _frame(self, call: ProxyCall, headers: Headers, block: bytes, flags: int, value: bytes) -> bytes | None:
        """One that came in pieces, or would not fit into one any more, passes as it is."""
        if not flags & http2.END_HEADERS:
            return None
        rewritten = with_parent(block, headers, value)
        if len(rewritten.block) > http2.FIRST_LARGEST_FRAME:
            return None
        self._has_replaced |= rewritten.is_kept
        return http2.frame(http2.HEADERS, flags & ~SPLIT_FLAGS, call.stream, rewritten.block)

    def end(self, call: ProxyCall, trace: CallTrace) -> None:
        try:
            self._traces.take(self._spans(call, trace))
        except Exception as error:  # as above
            log.error("proxy_trace_failed", method=call.path, error=repr(error), exc_info=error)

    def _spans(self, call: ProxyCall, trace: CallTrace) -> list[Span]:
        ahead_s = self._clock.wall_s() - self._clock.now_s()
        service, _, method = call.path.removeprefix("/").partition("/")
        end = CallEnd(
            service=service,
            method=method,
            code=call.code,
            begin_s=call.began_s + ahead_s,
            end_s=self._clock.wall_s(),
            about=_about(call),
        )
        return call_spans(trace, end, ahead_s)


def _is_traced(path: str) -> bool:
    """What is no method of CRI is somebody's invention, or another service of the same socket."""
    method = METHODS.get(path.replace(OLDER, "/runtime.v1.", 1))
    return method is not None and method not in STREAMS


def _about(call: ProxyCall) -> dict[str, str]:
    subject, container = call.subject, ""
    if isinstance(subject, ContainerToMake):
        container = subject.name
    elif isinstance(subject, KnownContainer):
        container = subject.container.name
    sandbox = subject if isinstance(subject, Sandbox) else getattr(subject, "sandbox", None)
    if sandbox is None:
        return {}
    return {
        "k8s.namespace.name": sandbox.namespace,
        "k8s.pod.name": sandbox.name,
        "k8s.pod.uid": sandbox.uid,
        "k8s.container.name": container,
    }

# SPDX-License-Identifier: Apache-2.0
"""The spans of one call through the proxy.

    runtime.v1.RuntimeService/M (server, its parent is the kubelet's) ⊃ hold · runtime.v1.RuntimeService/M (client)

The runtime's own spans, if it has any, stand below the last.
"""

import msgspec

from agent.model.rpc import code_name, rpc_attributes
from agent.model.span import Span, SpanRef, bounded

LARGEST_ID = (1 << 64) - 1


class CallTrace(msgspec.Struct, kw_only=True):
    """Of a call whose trace is kept. `holds`: reason, begin and end of each, on the clock of the call."""

    trace_id: int
    span_id: int
    parent_id: int = 0
    holds: list[tuple[str, float, float]] = msgspec.field(default_factory=list)
    is_refused: bool = False
    """The runtime has not seen it."""

    @property
    def own(self) -> SpanRef:
        return SpanRef(self.trace_id, self.span_id)

    @property
    def for_runtime(self) -> SpanRef:
        """What the runtime takes for its parent."""
        return SpanRef(self.trace_id, _beside(self.span_id, 1))


class CallEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. Times are wall time; `about` says whose it was, as far as that is known."""

    service: str
    method: str
    code: int | None
    begin_s: float
    end_s: float
    about: dict[str, str] = msgspec.field(default_factory=dict)


def _beside(span_id: int, place: int) -> int:
    """Ids of calls are drawn, so those beside one are free."""
    return (span_id + place) & LARGEST_ID or 1


def call_spans(trace: CallTrace, end: CallEnd, wall_minus_clock_s: float) -> list[Span]:
    code = code_name(end.code)
    error = "" if code == "OK" else code
    name = f"{end.service}/{end.method}"
    attributes = {**bounded(end.about), **rpc_attributes(end.service, end.method, code)}
    server = Span(
        trace_id=trace.trace_id,
        span_id=trace.span_id,
        parent_id=trace.parent_id,
        has_remote_parent=bool(trace.parent_id),
        name=name,
        kind="server",
        begin_s=end.begin_s,
        end_s=end.end_s,
        attributes=attributes,
        error=error,
    )
    holds = [
        Span(
            trace_id=trace.trace_id,
            span_id=_beside(trace.span_id, 2 + place),
            parent_id=trace.span_id,
            name="hold",
            begin_s=since_s + wall_minus_clock_s,
            end_s=until_s + wall_minus_clock_s,
            attributes=bounded({"kepd.hold.reason": reason}),
        )
        for place, (reason, since_s, until_s) in enumerate(trace.holds)
    ]
    if trace.is_refused:
        return [server, *holds]
    passed_s = max([end.begin_s, *(one.end_s for one in holds)])
    runtime = Span(
        trace_id=trace.trace_id,
        span_id=trace.for_runtime.span_id,
        parent_id=trace.span_id,
        name=name,
        kind="client",
        begin_s=min(passed_s, end.end_s),
        end_s=end.end_s,
        attributes=attributes,
        error=error,
    )
    return [server, *holds, runtime]

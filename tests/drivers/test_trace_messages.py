# SPDX-License-Identifier: Apache-2.0
"""What is written of spans, beside messages that the library itself builds of them."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1 import common_pb2 as pb
from opentelemetry.proto.trace.v1 import trace_pb2

from agent.drivers.traces.messages import MessageShape
from agent.model.span import Attributes, AttributeValue, Span, SpanMoment

LONG = (1 << 63) - 1
ids = st.integers(min_value=1, max_value=(1 << 64) - 1)
# Longer than what one byte, and two, can say.
texts = st.text(max_size=40) | st.text(alphabet="aé", min_size=120, max_size=140) | st.just("x" * 20_000)
values = texts | st.integers(min_value=-LONG, max_value=LONG) | st.floats(allow_nan=False)
attributes = st.dictionaries(texts, values, max_size=4)
times = st.floats(min_value=0, max_value=4e9)
moments = st.builds(SpanMoment, texts, times, attributes)
spans = st.builds(
    Span,
    trace_id=st.integers(min_value=1, max_value=(1 << 128) - 1),
    span_id=ids,
    name=texts,
    begin_s=times,
    end_s=times,
    parent_id=st.just(0) | ids,
    kind=st.sampled_from(["internal", "client", "server"]),
    attributes=attributes,
    moments=st.lists(moments, max_size=3).map(tuple),
    error=st.just("") | texts,
    has_remote_parent=st.booleans(),
)


def value_of(value: AttributeValue) -> pb.AnyValue:
    if isinstance(value, str):
        return pb.AnyValue(string_value=value)
    return pb.AnyValue(int_value=value) if isinstance(value, int) else pb.AnyValue(double_value=value)


def pairs(given: Attributes) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=name, value=value_of(value)) for name, value in given.items()]


def nanos(at_s: float) -> int:
    return int(at_s) * 10**9 + round((at_s - int(at_s)) * 10**9)


def built(span: Span) -> trace_pb2.Span:
    message = trace_pb2.Span(
        trace_id=span.trace_id.to_bytes(16, "big"),
        span_id=span.span_id.to_bytes(8, "big"),
        name=span.name,
        kind=f"SPAN_KIND_{span.kind.upper()}",
        start_time_unix_nano=nanos(span.begin_s),
        end_time_unix_nano=nanos(span.end_s),
        attributes=pairs(span.attributes),
        flags=0x301 if span.has_remote_parent else 0x101,
    )
    if span.parent_id:
        message.parent_span_id = span.parent_id.to_bytes(8, "big")
    if span.error:
        message.status.code, message.status.message = trace_pb2.Status.STATUS_CODE_ERROR, span.error
    for one in span.moments:
        message.events.add(name=one.name, time_unix_nano=nanos(one.at_s), attributes=pairs(one.attributes))
    return message


@given(st.lists(spans, max_size=5))
def test_what_is_written_is_what_the_library_would_build(given: list[Span]) -> None:
    """TRC-15."""
    (of_resource,) = MessageShape("1", "n1").request(given).resource_spans
    (of_scope,) = of_resource.scope_spans

    assert list(of_scope.spans) == [built(one) for one in given]
    assert (of_scope.scope.name, of_scope.scope.version) == ("kepd", "1")
    assert of_resource.resource.attributes == pairs(
        {"service.name": "kepd", "service.version": "1", "k8s.node.name": "n1"}
    )


def test_a_number_is_not_taken_for_an_equal_one_of_another_kind() -> None:
    """TRC-15: 1 and 1.0 are one key of a table."""
    one = Span(trace_id=1, span_id=1, name="s", begin_s=1.0, end_s=2.0, attributes={"a": 1})
    other = msgspec.structs.replace(one, attributes={"a": 1.0})
    found = MessageShape("1", "n1").request([one, other]).resource_spans[0].scope_spans[0].spans

    assert [each.attributes[0].value.WhichOneof("value") for each in found] == ["int_value", "double_value"]

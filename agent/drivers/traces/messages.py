# SPDX-License-Identifier: Apache-2.0
"""Spans as a message of OTLP, written field by field.

While spans are written, the calls of the node wait for the interpreter. Objects of the library take three times as
long to build, and the way of its SDK takes five times as long as that. The library reads what was written here, so a
mistake shows at once, and the exporter sends nothing else.
Source: opentelemetry-proto, trace/v1/trace.proto and common/v1/common.proto.
"""

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1 import common_pb2 as pb
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from agent.model.span import Attributes, AttributeValue, Span, SpanMoment

# Tags of fields: their number and how they are written. Those of a length, of eight bytes and of four.
RESOURCE_SPANS, RESOURCE, SCOPE_SPANS, SCOPE, SPAN = b"\x0a", b"\x0a", b"\x12", b"\x0a", b"\x12"
TRACE_ID, SPAN_ID, PARENT_ID, NAME = b"\x0a\x10", b"\x12\x08", b"\x22\x08", b"\x2a"
ATTRIBUTE, EVENT, STATUS = b"\x4a", b"\x5a", b"\x7a"
STATUS_TEXT, IS_ERROR = b"\x12", b"\x18\x02"
EVENT_NAME, EVENT_ATTRIBUTE = b"\x12", b"\x1a"
BEGIN_AND_END, EVENT_AT, FLAGS = Struct("<cQcQ"), Struct("<cQ"), Struct("<2sI")
KINDS = {"internal": b"\x30\x01", "server": b"\x30\x02", "client": b"\x30\x03"}
# Sampled; and that it is known whether the parent is on another node, or in another process.
SAMPLED, REMOTE = 0x101, 0x200
NANOS_PER_S = 10**9
ONE_BYTE = 0x80


class MessageShape:
    """Of all spans of this process."""

    def __init__(self, version: str, node: str) -> None:
        attributes = {"service.name": "kepd", "service.version": version, "k8s.node.name": node}
        pairs = [_pair(name, value) for name, value in attributes.items()]
        self._resource = _field(RESOURCE, Resource(attributes=pairs).SerializeToString())
        self._scope = _field(SCOPE, pb.InstrumentationScope(name="kepd", version=version).SerializeToString())

    def request(self, spans: Iterable[Span]) -> ExportTraceServiceRequest:
        of_scope = b"".join((self._scope, *(_field(SPAN, _written(one)) for one in spans)))
        of_resource = self._resource + _field(SCOPE_SPANS, of_scope)
        return ExportTraceServiceRequest.FromString(_field(RESOURCE_SPANS, of_resource))


def _written(span: Span) -> bytes:
    parts = [
        TRACE_ID,
        span.trace_id.to_bytes(16, "big"),
        SPAN_ID,
        span.span_id.to_bytes(8, "big"),
        _text(NAME, span.name),
        KINDS[span.kind],
        BEGIN_AND_END.pack(b"\x39", _nanos(span.begin_s), b"\x41", _nanos(span.end_s)),
        FLAGS.pack(b"\x85\x01", SAMPLED | REMOTE if span.has_remote_parent else SAMPLED),
        *(_attribute(ATTRIBUTE, name, value) for name, value in span.attributes.items()),
    ]
    if span.parent_id:
        parts += (PARENT_ID, span.parent_id.to_bytes(8, "big"))
    if span.error:
        parts.append(_field(STATUS, _text(STATUS_TEXT, span.error) + IS_ERROR))
    for one in span.moments:
        parts.append(_field(EVENT, _event(one)))
    return b"".join(parts)


def _event(moment: SpanMoment) -> bytes:
    return EVENT_AT.pack(b"\x09", _nanos(moment.at_s)) + _text(EVENT_NAME, moment.name) + _attributes(moment.attributes)


def _attributes(attributes: Attributes) -> bytes:
    return b"".join(_attribute(EVENT_ATTRIBUTE, name, value) for name, value in attributes.items())


@lru_cache(2048, typed=True)
def _attribute(tag: bytes, name: str, value: AttributeValue) -> bytes:
    """Most of them come again with the next span."""
    return _field(tag, _pair(name, value).SerializeToString())


def _pair(name: str, value: AttributeValue) -> pb.KeyValue:
    if isinstance(value, str):
        return pb.KeyValue(key=name, value=pb.AnyValue(string_value=value))
    if isinstance(value, int):
        return pb.KeyValue(key=name, value=pb.AnyValue(int_value=value))
    return pb.KeyValue(key=name, value=pb.AnyValue(double_value=value))


@lru_cache(512)
def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode())


def _field(tag: bytes, content: bytes) -> bytes:
    size = len(content)
    if size < ONE_BYTE:
        return tag + bytes((size,)) + content
    length = bytearray()
    while size >= ONE_BYTE:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    return tag + length + content


def _nanos(at_s: float) -> int:
    whole_s = int(at_s)
    return whole_s * NANOS_PER_S + round((at_s - whole_s) * NANOS_PER_S)

# SPDX-License-Identifier: Apache-2.0
"""Spans of traces as values: their ids, which traces are kept, the header for a parent, bounds.

Ids are made from what they are about, so the same operation has the same ids whoever asks, also after a restart.
Source: W3C Trace Context; OpenTelemetry's TraceIdRatioBased.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, Protocol

import msgspec

from agent.model.text.outside_text import from_outside

AttributeValue = str | int | float
Attributes = Mapping[str, AttributeValue]

HEADER = b"traceparent"
MOST_ATTRIBUTES, MOST_BYTES = 32, 256
PARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
SAMPLED = 1
# Of a trace id only its last half is random for everyone who makes some.
RANDOM_BITS = 64
OBJECT_NAME = re.compile(r"[a-z0-9.-]{1,253}|sha(?:256|512):[0-9a-f]{64,128}")
LOGIN = re.compile(r"\A[^/]*@(?=[^/]*/)")


class SpanRef(msgspec.Struct, frozen=True):
    """One span of one trace."""

    trace_id: int
    span_id: int
    is_sampled: bool = True

    @property
    def labels(self) -> dict[str, str]:
        """As an exemplar has it."""
        return {"trace_id": f"{self.trace_id:032x}", "span_id": f"{self.span_id:016x}"}


class SpanMoment(msgspec.Struct, frozen=True):
    """Something that happened at one time within a span. Wall time."""

    name: str
    at_s: float
    attributes: Attributes = msgspec.field(default_factory=dict)


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One that has ended. Times are wall time; `parent_id` 0 is none; `error` is its class, such as UNAVAILABLE."""

    trace_id: int
    span_id: int
    name: str
    begin_s: float
    end_s: float
    parent_id: int = 0
    kind: Literal["internal", "client", "server"] = "internal"
    attributes: Attributes = msgspec.field(default_factory=dict)
    moments: tuple[SpanMoment, ...] = ()
    error: str = ""
    has_remote_parent: bool = False


class Traces(Protocol):
    """Where spans go. Neither call waits for anything."""

    def samples(self, trace_id: int) -> bool:
        """Whether a trace without a parent is kept, whatever becomes of it."""

    def take(self, spans: Sequence[Span]) -> None: ...


def trace_id_of(*words: object) -> int:
    """Never 0, which is no trace."""
    return _number(16, words) or 1


def span_id_of(trace_id: int, *words: object) -> int:
    return _number(8, (trace_id, *words)) or 1


def _number(size: int, words: Iterable[object]) -> int:
    return int.from_bytes(blake2b("\0".join(map(str, words)).encode(), digest_size=size).digest(), "big")


def is_sampled(trace_id: int, ratio: float) -> bool:
    """The same answer from everyone who is asked about this trace."""
    return trace_id & ((1 << RANDOM_BITS) - 1) < round(ratio * (1 << RANDOM_BITS))


def read_parent(value: bytes) -> SpanRef | None:
    """What a `traceparent` says; None for one that says nothing."""
    found = PARENT.fullmatch(value)
    if found is None:
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    return SpanRef(trace_id, span_id, bool(int(found[3], 16) & SAMPLED)) if trace_id and span_id else None


def parent_value(span: SpanRef) -> bytes:
    return b"00-%032x-%016x-%02x" % (span.trace_id, span.span_id, SAMPLED if span.is_sampled else 0)


def bounded(attributes: Attributes) -> dict[str, AttributeValue]:
    """What may leave the node: no empty ones, at most 32, each text without secrets and of 256 bytes."""
    kept = [(name, value) for name, value in attributes.items() if value != ""][:MOST_ATTRIBUTES]
    return {name: _bounded(value) if isinstance(value, str) else value for name, value in kept}


def _bounded(text: str) -> str:
    # Nearly all are names of objects, and to look for secrets in one takes longer than all else of its span.
    if OBJECT_NAME.fullmatch(text):
        return text
    return from_outside(text).encode()[:MOST_BYTES].decode("utf-8", "ignore")


def plain_image(reference: str) -> str:
    """An image's name without a login before its registry and without what follows a question mark."""
    return LOGIN.sub("", reference.partition("?")[0].partition("#")[0])

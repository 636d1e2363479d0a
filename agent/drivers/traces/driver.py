# SPDX-License-Identifier: Apache-2.0
"""Spans to a collector by OTLP over gRPC, through the exporter of OpenTelemetry's SDK (TRC-15).

Batches leave on the SDK's thread; who hands spans over never waits. What finds no room in the queue is dropped and
counted. A collector that does not answer is logged once, and once again when it does.
Never: decides which spans are kept. Imported only where a collector is configured.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import cast

import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from agent import __version__
from agent.model.outside_text import from_outside
from agent.model.span import Span

log = structlog.get_logger(plane="daemon")

QUEUE, BATCH, EVERY_MS = 2048, 512, 5000
# Of one batch with all its tries: a collector that is away must not hold up what is there when it comes back.
EXPORT_S = 5.0
# What is left at the end of the process; nothing else runs any more by then.
CLOSE_S = 2.0
KINDS = {"internal": SpanKind.INTERNAL, "client": SpanKind.CLIENT, "server": SpanKind.SERVER}
NANOS_PER_S = 10**9


class SpanExport:
    def __init__(self, endpoint: str, node: str) -> None:
        self._words = _LastWords()
        self._exporter = _Counting(endpoint, _Shape(node), self._words)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=QUEUE, schedule_delay_millis=EVERY_MS, max_export_batch_size=BATCH
        )
        self._taken = 0
        self._is_closed = False
        self.dropped = 0

    @property
    def sent(self) -> int:
        return self._exporter.sent

    @property
    def failed(self) -> int:
        return self._exporter.failed

    def take(self, spans: Sequence[Span]) -> None:
        for span in spans:
            if self._is_closed or self._taken - self.sent - self.failed >= QUEUE:
                self.dropped += 1
            else:
                self._taken += 1
                self._processor.on_end(_Waiting(span))  # type: ignore[arg-type]  # it asks for the context alone

    async def close(self) -> None:
        """Send what is left, but wait no longer than two seconds for a collector."""
        self._is_closed = True
        # A daemon thread: one that waits for a collector must not hold up the end of the process.
        closing = threading.Thread(target=self._processor.shutdown, name="kepd-traces-end", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)
        self._exporter.give_up()
        self._words.leave()


class _Counting(SpanExporter):
    """What becomes of each batch. Called on the SDK's thread alone."""

    def __init__(self, endpoint: str, shape: "_Shape", words: "_LastWords") -> None:
        self._inner = OTLPSpanExporter(endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_S)
        self._endpoint = endpoint
        self._shape = shape
        self._words = words
        self._is_away = False
        self._has_given_up = False
        self.sent = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """They are what `take` has queued."""
        waiting = cast("Sequence[_Waiting]", spans)
        result = SpanExportResult.FAILURE
        if not self._has_given_up:
            result = self._inner.export([self._shape.readable(one.span) for one in waiting])
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            self.failed += len(spans)
        self._tell(is_away=result is not SpanExportResult.SUCCESS)
        return result

    def _tell(self, *, is_away: bool) -> None:
        if is_away == self._is_away or self._has_given_up:
            return
        self._is_away = is_away
        if is_away:
            log.warning("traces_not_sent", endpoint=self._endpoint, error=self._words.last)
        else:
            log.info("traces_sent_again", endpoint=self._endpoint, lost=self.failed)

    def shutdown(self) -> None:
        self._inner.shutdown()

    def give_up(self) -> None:
        self._has_given_up = True
        self._inner.shutdown()


class _Waiting:
    """A span in the queue. It becomes one of the SDK's on the SDK's thread, for whoever hands it over is in a hurry."""

    __slots__ = ("span",)
    context = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, span: Span) -> None:
        self.span = span


class _Shape:
    """Spans as the SDK has them."""

    def __init__(self, node: str) -> None:
        self._resource = Resource({"service.name": "kepd", "service.version": __version__, "k8s.node.name": node})
        self._scope = InstrumentationScope("kepd", __version__)

    def readable(self, span: Span) -> ReadableSpan:
        context = _context(span.trace_id, span.span_id)
        parent = _context(span.trace_id, span.parent_id, is_remote=span.has_remote_parent) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context,
            parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[Event(one.name, one.attributes, _nanos(one.at_s)) for one in span.moments],
            kind=KINDS[span.kind],
            instrumentation_scope=self._scope,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=_nanos(span.begin_s),
            end_time=_nanos(span.end_s),
        )


class _LastWords(logging.Handler):
    """What the SDK last complained of: it says in its log alone why a batch was not sent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        self._logger = logging.getLogger("opentelemetry")
        self._before = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.last = from_outside(record.getMessage())

    def leave(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._before


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanos(at_s: float) -> int:
    whole_s = int(at_s)
    return whole_s * NANOS_PER_S + round((at_s - whole_s) * NANOS_PER_S)

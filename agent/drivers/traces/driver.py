# SPDX-License-Identifier: Apache-2.0
"""Spans to a collector by OTLP over gRPC, through the exporter of OpenTelemetry's SDK.

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
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from agent import __version__
from agent.drivers.traces.messages import MessageShape
from agent.model.span import Span
from agent.model.text.outside_text import from_outside

log = structlog.get_logger(plane="daemon")

QUEUE, BATCH, EVERY_MS = 2048, 512, 5000
# Of one batch with all its tries: a collector that is away must not hold up what is there when it comes back.
EXPORT_S = 5.0
# What is left at the end of the process; nothing else runs any more by then.
CLOSE_S = 2.0


class SpanExport:
    def __init__(self, endpoint: str, node: str) -> None:
        self._words = _LastWords()
        self._exporter = _Counting(endpoint, MessageShape(__version__, node), self._words)
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

    def __init__(self, endpoint: str, shape: MessageShape, words: "_LastWords") -> None:
        self._inner = _Sender(endpoint, shape)
        self._endpoint = endpoint
        self._words = words
        self._is_away = False
        self._has_given_up = False
        self.sent = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """They are what `take` has queued."""
        result = SpanExportResult.FAILURE
        try:
            if not self._has_given_up:
                result = self._inner.export(spans)
        except Exception as error:  # what is not counted would take its place in the queue for ever
            log.error("traces_not_made", error=repr(error), exc_info=error)
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
    """A span in the queue. It becomes a message on the SDK's thread, for whoever hands it over is in a hurry."""

    __slots__ = ("span",)
    context = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    def __init__(self, span: Span) -> None:
        self.span = span


class _Sender(OTLPSpanExporter):
    """The SDK's exporter: channel, deadline, tries. What it sends is made by `messages`."""

    def __init__(self, endpoint: str, shape: MessageShape) -> None:
        super().__init__(endpoint, insecure=endpoint.startswith("http://"), timeout=EXPORT_S)
        self._shape = shape

    def _translate_data(self, data: Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        return self._shape.request(one.span for one in cast("Sequence[_Waiting]", data))


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

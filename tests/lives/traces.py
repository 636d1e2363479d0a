# SPDX-License-Identifier: Apache-2.0
"""Spans on their way: to a collector that takes them, to one that does not, and after the end."""

import grpc

from agent.drivers.traces.driver import SpanExport
from agent.host.tracing import Tracing
from agent.model.span import Span
from tests.collector import Collector
from tests.lives.figures import Watched, until

SPAN = Span(trace_id=1, span_id=1, name="pod.start", begin_s=1.0, end_s=2.0)


async def traces_life() -> set[str]:
    """What moved."""
    with Collector() as collector:
        export = SpanExport(collector.endpoint, "n1")
        tracing = Tracing(export, lambda: 1.0)
        watched = Watched(tracing.families)
        collector.code = grpc.StatusCode.INVALID_ARGUMENT
        tracing.take([SPAN])
        await until(lambda: export.failed)
        collector.code = None
        tracing.take([SPAN])
        await tracing.close()
        tracing.take([SPAN])
        watched.look()
        assert (export.sent, export.failed, export.dropped) == (1, 1, 1)
    return watched.moved

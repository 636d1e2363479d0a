# SPDX-License-Identifier: Apache-2.0
"""Where planes hand their spans to, which traces are kept, and whether this installation can send any.

There is one only with a collector; whether there can be is asked without importing what sends.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.model.finding import Finding
from agent.model.histogram import counter_family
from agent.model.runtime.call_notes import CALLER
from agent.model.span import Span, SpanRef, is_sampled

if TYPE_CHECKING:
    from agent.drivers.traces.driver import SpanExport

PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-grpc")
ENDPOINT = "telemetry.tracing.endpoint"


class Tracing:
    def __init__(self, export: "SpanExport", ratio: Callable[[], float]) -> None:
        self._export = export
        self._ratio = ratio

    def samples(self, trace_id: int) -> bool:
        return is_sampled(trace_id, self._ratio())

    def take(self, spans: Sequence[Span]) -> None:
        self._export.take(spans)

    def called(self, method: str, code: str, duration_s: float) -> SpanRef | None:
        """A call to the runtime has ended: for whom, its task knows."""
        caller = CALLER.get()
        return caller.called(method, code, duration_s) if caller is not None else None

    async def close(self) -> None:
        await self._export.close()

    def families(self) -> Iterator[Metric]:
        yield span_family(self._export.sent, self._export.dropped, self._export.failed)


def span_family(sent: int, dropped: int, failed: int) -> Metric:
    outcomes = (("sent", sent), ("dropped", dropped), ("failed", failed))
    return counter_family("kepd_trace_spans", "Spans of traces, by what became of them.", ("outcome",), outcomes)


def wire_tracing(configuration: "Callable[[], Configuration]") -> Tracing | None:
    """None without a collector; then nothing of OpenTelemetry is imported."""
    endpoint = configuration().telemetry.tracing.endpoint
    if not endpoint:
        return None
    from agent.drivers.traces.driver import SpanExport

    export = SpanExport(endpoint, configuration().node.name)
    return Tracing(export, lambda: configuration().telemetry.tracing.ratio)


def has_extra() -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return all(distribution(name) for name in PACKAGES)
    except PackageNotFoundError:
        return False


def install_line(*, has_pip: bool | None = None) -> str:
    """Into the environment that this kepd runs in; that of Debian's package has no pip."""
    if has_pip if has_pip is not None else find_spec("pip") is not None:
        return f"{sys.executable} -m pip install 'kepd[otel]'"
    return "LOCK=otel scripts/package deb, in a clone of kepd, which makes a package that has it"


def tracing_faults(configuration: Configuration, has: Callable[[], bool] = has_extra) -> Iterator[Finding]:
    endpoint = configuration.telemetry.tracing.endpoint
    if endpoint and not has():
        text = (
            f"{endpoint}, but this kepd cannot send traces; expected the extra `otel` installed, by: {install_line()}"
        )
        yield Finding("", ENDPOINT, text)

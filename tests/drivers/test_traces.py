# SPDX-License-Identifier: Apache-2.0
"""Spans on their way to a real collector, to one that is away, and to one that is ill."""

import asyncio
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from agent.drivers.traces import driver
from agent.drivers.traces.driver import QUEUE, SpanExport
from agent.model.span import Span, SpanMoment
from tests.collector import Collector

WITHIN_S = 30.0


def span(number: int = 1, **more: object) -> Span:
    given = {"name": "pod.start", "begin_s": 1700000000.25, "end_s": 1700000001.5, **more}
    return Span(trace_id=0xABC, span_id=number, **given)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which it matters that batches leave, not when."""
    monkeypatch.setattr(driver, "EVERY_MS", 20)
    monkeypatch.setattr(driver, "EXPORT_S", 0.5)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as served:
        yield served


@pytest.fixture
async def export(collector: Collector) -> AsyncIterator[SpanExport]:
    made = SpanExport(collector.endpoint, "n1")
    yield made
    await made.close()


async def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_a_span_arrives_as_it_was(collector: Collector, export: SpanExport) -> None:
    """TRC-15."""
    moments = (SpanMoment("ready", 1700000001.0, {"k8s.container.name": "app"}),)
    export.take(
        [
            span(1, moments=moments, attributes={"a": "x", "bytes": 7}, error="removed"),
            span(2, parent_id=1, kind="client"),
            span(3, parent_id=9, kind="server", has_remote_parent=True),
        ]
    )
    await until(lambda: export.sent == 3)

    first, second, third = sorted(collector.spans, key=lambda one: one.span_id)
    assert (first.name, first.trace_id, first.parent_id, first.kind) == ("pod.start", f"{0xABC:032x}", "", "internal")
    assert (first.begin_s, first.end_s, first.error) == (1700000000.25, 1700000001.5, "removed")
    assert (first.attributes, first.events) == ({"a": "x", "bytes": 7}, ["ready"])
    assert (first.resource["service.name"], first.resource["k8s.node.name"]) == ("kepd", "n1")
    assert (second.parent_id, second.kind, second.error) == (f"{1:016x}", "client", "")
    assert (third.parent_id, third.kind) == (f"{9:016x}", "server")


async def test_a_collector_that_is_ill_is_told_once_and_its_return_too(
    collector: Collector, export: SpanExport
) -> None:
    """TRC-15, LOG-03."""
    collector.code = grpc.StatusCode.INVALID_ARGUMENT
    with capture_logs() as logs:
        for number in range(1, 4):
            export.take([span(number)])
            await until(lambda wanted=number: export.failed == wanted)
        collector.code = None
        export.take([span(9)])
        await until(lambda: export.sent == 1)
        await until(lambda: len(logs) == 2)

    assert [one["event"] for one in logs] == ["traces_not_sent", "traces_sent_again"]
    assert re.search("INVALID_ARGUMENT.*the collector is ill", logs[0]["error"])
    assert logs[1]["lost"] == 3


async def test_a_span_that_cannot_be_sent_is_counted_as_well(export: SpanExport) -> None:
    """TRC-15: a defect of ours must not fill the queue."""
    export.take([span(1 << 70)])
    await until(lambda: export.failed == 1)
    export.take([span(1)])
    await until(lambda: export.sent == 1)


async def test_a_dead_collector_holds_nobody_up(free_port: int, capfd: pytest.CaptureFixture[str]) -> None:
    """TRC-15: what was for it is counted, and the end of the process comes."""
    export = SpanExport(f"http://127.0.0.1:{free_port}", "n1")
    export.take([span(1)])
    await until(lambda: export.failed == 1)
    export.take([span(2)])
    await export.close()
    export.take([span(3)])

    assert export.dropped == 1
    assert "Traceback" not in capfd.readouterr().err


async def test_what_is_left_at_the_end_is_sent(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRC-15."""
    monkeypatch.setattr(driver, "EVERY_MS", 3_600_000)
    for patience in ("EXPORT_S", "CLOSE_S"):
        monkeypatch.setattr(driver, patience, 60.0)
    export = SpanExport(collector.endpoint, "n1")
    export.take([span(number) for number in range(1, 700)])
    await export.close()

    assert (export.sent, len(collector.spans)) == (699, 699)


class Slow(Collector):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer, self.asked = threading.Event(), threading.Event()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        self.asked.set()
        self.may_answer.wait(WITHIN_S)
        return super().Export(request, context)


async def test_who_hands_spans_over_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRC-15: and what finds no room is dropped and counted."""
    monkeypatch.setattr(driver, "EXPORT_S", WITHIN_S)
    with Slow() as collector:
        export = SpanExport(collector.endpoint, "n1")
        export.take([span(1)])
        await until(collector.asked.is_set)
        export.take([span(2)])
        assert export.sent == 0
        export.take([span(number) for number in range(3, QUEUE + 103)])
        assert export.dropped == 102, "the queue is full"
        collector.may_answer.set()
        await until(lambda: export.sent == QUEUE)
        await export.close()

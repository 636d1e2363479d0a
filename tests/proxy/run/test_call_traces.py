# SPDX-License-Identifier: Apache-2.0
"""Calls of a real gRPC client through the proxy: whose parent the runtime sees, and what becomes a span."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.model.span import Span, is_sampled, read_parent
from agent.proxy.run.call import ProxyCall, Refusal, Verdict
from agent.proxy.run.figures import Figures
from tests.collector import tree_of
from tests.proxy.wire import Wire, wired

STOP = "/runtime.v1.RuntimeService/StopContainer"
EVENTS = "/runtime.v1.RuntimeService/GetContainerEvents"
OTHER = "/future.v9.Service/Echo"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEPT, LEFT = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
NAME = STOP[1:]
WITHIN_S = 40.0


class Sink:
    """`ratio` is of calls without a parent."""

    def __init__(self) -> None:
        self.ratio = 0.0
        self.spans: list[Span] = []

    def samples(self, trace_id: int) -> bool:
        return is_sampled(trace_id, self.ratio)

    def take(self, spans: Sequence[Span]) -> None:
        self.spans += spans


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
async def wire(short_path: Path, sink: Sink) -> AsyncIterator[Wire]:
    async with wired(short_path, sink) as running:
        running.runtime.methods = dict.fromkeys((STOP, EVENTS, OTHER), echo)
        yield running


async def echo(requests: Any, context: grpc.aio.ServicerContext) -> Any:
    async for one in requests:
        yield one


async def ask(wire: Wire, channel: grpc.aio.Channel, path: str, parent: str = "") -> str:
    """The parent that the runtime saw."""
    metadata = (("traceparent", parent),) if parent else ()
    await channel.unary_unary(path)(b"question", timeout=WITHIN_S, metadata=metadata)
    return str(dict(wire.runtime.metadata[-1]).get("traceparent", ""))


async def settled(wire: Wire, calls: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while len(wire.judge.finished) < calls:
            await asyncio.sleep(0.005)


async def test_the_kubelets_span_is_the_parent_and_ours_that_of_the_runtime(wire: Wire, sink: Sink) -> None:
    """TRC-12."""
    async with wire.channel() as channel:
        seen = [await ask(wire, channel, STOP, KEPT) for _ in range(3)]
    await settled(wire, 3)

    assert tree_of(sink.spans, int(SPAN, 16)) == {NAME: {NAME: {}}}
    assert {f"{one.trace_id:032x}" for one in sink.spans} == {TRACE}
    servers = [one for one in sink.spans if one.kind == "server"]
    clients = [one for one in sink.spans if one.kind == "client"]
    assert len({one.span_id for one in sink.spans}) == 6
    assert [read_parent(one.encode()).span_id for one in seen] == [one.span_id for one in clients]  # type: ignore[union-attr]
    assert all(one.has_remote_parent and one.attributes["rpc.grpc.status_code"] == 0 for one in servers)


async def test_what_the_kubelet_does_not_keep_passes_unchanged(wire: Wire, sink: Sink) -> None:
    """TRC-12, TRC-14: whatever the ratio says; also between calls that are kept, on the same connection."""
    sink.ratio = 1.0
    async with wire.channel() as channel:
        seen = [await ask(wire, channel, STOP, one) for one in (LEFT, KEPT, LEFT, KEPT, LEFT)]
    await settled(wire, 5)

    assert [seen[0], seen[2], seen[4]] == [LEFT] * 3
    assert len(sink.spans) == 4


async def test_without_a_parent_the_ratio_decides(wire: Wire, sink: Sink) -> None:
    """TRC-12, TRC-14."""
    async with wire.channel() as channel:
        assert await ask(wire, channel, STOP) == ""
        sink.ratio = 1.0
        seen = await ask(wire, channel, STOP)
    await settled(wire, 2)

    server, client = sink.spans
    assert (server.parent_id, server.has_remote_parent, client.parent_id) == (0, False, server.span_id)
    assert read_parent(seen.encode()).trace_id == server.trace_id  # type: ignore[union-attr]


async def test_streams_and_other_services_have_no_span(wire: Wire, sink: Sink) -> None:
    """TRC-12."""
    async with wire.channel() as channel:
        assert [await ask(wire, channel, path, KEPT) for path in (EVENTS, OTHER)] == [KEPT, KEPT]
    await settled(wire, 2)

    assert sink.spans == []


async def test_a_hold_is_a_span_and_what_is_refused_reaches_no_runtime(wire: Wire, sink: Sink) -> None:
    """TRC-12."""

    def hold(call: ProxyCall, _message: bytes) -> Verdict:
        assert call.trace is not None
        call.trace.holds.append(("start", call.began_s, call.began_s + 0.01))
        asyncio.get_running_loop().call_later(0.02, call.release)
        return Verdict.HOLD

    async with wire.channel() as channel:
        wire.judge.verdict = hold
        await ask(wire, channel, STOP, KEPT)
        await settled(wire, 1)
        wire.judge.verdict = lambda _call, _message: Refusal(9, "no")
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(wire, channel, STOP, KEPT)
    await settled(wire, 2)

    held, refused = sink.spans[:3], sink.spans[3:]
    assert tree_of(held, int(SPAN, 16)) == {NAME: {"hold": {}, NAME: {}}}
    server, waited, runtime = held
    assert waited.attributes == {"kepd.hold.reason": "start"}
    assert server.begin_s == pytest.approx(waited.begin_s, abs=1e-4)
    assert runtime.begin_s == pytest.approx(waited.end_s, abs=1e-4)
    assert [(one.kind, one.error) for one in refused] == [("server", "FAILED_PRECONDITION")]


async def test_a_defect_in_a_trace_is_none_of_the_call(wire: Wire, sink: Sink) -> None:
    """PRX-53, TRC-12."""

    def broken(_trace: object) -> bool:
        raise RuntimeError("a defect")

    sink.samples = sink.take = broken  # type: ignore[assignment,method-assign]
    async with wire.channel() as channel:
        assert await ask(wire, channel, STOP) == ""
        assert await ask(wire, channel, STOP, KEPT) != ""


def test_a_figure_names_the_call_whose_trace_is_kept() -> None:
    """TRC-16."""
    from agent.model.span import SpanRef

    figures, span = Figures(), SpanRef(1, 2)
    figures.called(STOP, 0, 0.0002, span)
    figures.called(STOP, 0, 0.0003)
    family = next(one for one in figures.families((), 0.0, 0) if one.name == "kepd_proxy_added_seconds")
    found = [(one.labels["le"], one.exemplar.labels) for one in family.samples if one.exemplar]

    assert found == [("0.00025", span.labels)]

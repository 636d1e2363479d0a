# SPDX-License-Identifier: Apache-2.0
"""No call, however it ends, costs the other calls of its connection anything."""

import os
from pathlib import Path

import grpc
import pytest

from agent.proxy.frames.cri_bytes import with_timeout
from agent.proxy.frames.layout import framed
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.run.call import ProxyCall, Refusal, Verdict
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.proxy.frames.streams import WINDOW, Network
from tests.proxy.wire import wired

SERVICE = "/runtime.v1.RuntimeService"
CREATE, STOP, STATUS = f"{SERVICE}/CreateContainer", f"{SERVICE}/StopContainer", f"{SERVICE}/ContainerStatus"
REFUSAL = Refusal(14, "kepd: waiting for sidecar s")


async def test_1000_refused_calls_leave_the_connection_as_it_was(short_path: Path) -> None:
    """FI-1: a strict pod that its kubelet tries again and again took the node down."""

    async def echo(requests, context):
        async for one in requests:
            yield one

    async with wired(short_path) as wire, wire.channel() as channel:
        wire.runtime.methods = dict.fromkeys((CREATE, "/x.Service/Echo"), echo)
        wire.judge.verdict = lambda _call, _message: REFUSAL

        async def refused() -> grpc.StatusCode:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(CREATE)(os.urandom(30_000), timeout=20)
            return failed.value.code()

        # One after the other: grpc's own server cancels calls by chance while thousands of resets are in its queue.
        codes = [await refused() for _ in range(1000)]
        answer = await channel.unary_unary("/x.Service/Echo")(b"y" * 200_000, timeout=20)

    assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
    assert answer == b"y" * 200_000
    assert wire.server.accepted == 1, "all on the kubelet's one connection"


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole request", "rest to come"])
@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "after a hold"])
@pytest.mark.parametrize("padding", [None, 50], ids=["plain", "padded"])
def test_a_refused_request_is_credited_whole(is_whole: bool, is_held: bool, padding: int | None) -> None:
    """FI-1: whatever of the request never reached the runtime, padding included, also what comes afterwards."""
    net, calls = Network(), []

    def judge(call: ProxyCall, _message: bytes) -> Verdict | Refusal:
        calls.append(call)
        return Verdict.HOLD if is_held else REFUSAL

    net.judge.verdict = judge
    stream = net.ask(CREATE)
    net.client.http.send_data(stream, framed(b"m" * 5000), pad_length=padding, end_stream=is_whole)
    if not is_whole:
        net.client.http.send_data(stream, b"more" * 1000)
    net.settle()
    if is_held:
        calls[0].refuse(REFUSAL)
        net.settle()

    assert (net.client.status[stream], net.client.ended[stream]) == ("14", 1)
    assert (net.client.window, net.runtime.window) == (WINDOW, WINDOW)
    assert not net.link.calls


def test_a_client_that_gives_up_a_held_call_gets_its_window_back() -> None:
    """FI-1, its sibling: a hold that ends by a reset."""
    net = Network()
    net.judge.verdict = lambda _call, _message: Verdict.HOLD
    stream = net.ask(STOP)
    net.client.http.send_data(stream, framed(b"m" * 9000), end_stream=True)
    net.settle()
    net.client.http.reset_stream(stream, 8)
    net.settle()

    assert net.client.window == WINDOW


def test_an_answer_that_is_given_up_while_it_is_changed_is_credited() -> None:
    """FI-16: bytes that waited for the rest of their message."""
    net = Network()

    def rewrite(call: ProxyCall, _message: bytes) -> Verdict:
        call.rewriting = Rewriting()
        return Verdict.PASS

    net.judge.verdict = rewrite
    for _ in range(9):
        stream = net.ask(STATUS)
        net.client.http.send_data(stream, framed(b"x"), end_stream=True)
        net.settle()
        net.answer(stream, framed(b"a" * 20_000)[:9000], has_end=False)
        net.settle()
        net.client.http.reset_stream(stream, 8)
        net.settle()

    assert net.runtime.window == WINDOW


@pytest.mark.parametrize("cut", [None, 1, 5, 20, 60])
def test_a_held_stop_in_two_pieces_goes_on_with_its_new_time(cut: int | None) -> None:
    """FI-3: the call was lost, for the piece that had to change had passed."""
    net, held = Network(), []

    def hold(call: ProxyCall, _message: bytes) -> Verdict:
        held.append(call)
        return Verdict.HOLD

    net.judge.verdict = hold
    message = pb.StopContainerRequest(container_id="c" * 64, timeout=30).SerializeToString()
    stream = net.ask(STOP)
    request = framed(message)
    if cut is not None:
        net.client.http.send_data(stream, request[:cut])
    net.client.http.send_data(stream, request[cut or 0 :], end_stream=True)
    net.settle()
    reached = dict(net.runtime.bodies)
    held[0].release(with_timeout(message, 5))
    net.settle()

    assert reached == {}
    assert pb.StopContainerRequest.FromString(net.runtime.bodies[stream][5:]).timeout == 5
    assert net.runtime.ended[stream] == 1
    assert net.client.window == WINDOW


def test_a_change_that_does_not_fit_leaves_the_request_held() -> None:
    """FI-3: fail-open can still open it."""
    net, held = Network(), []

    def hold(call: ProxyCall, _message: bytes) -> Verdict:
        held.append(call)
        return Verdict.HOLD

    net.judge.verdict = hold
    stream = net.ask(STOP)
    net.client.http.send_data(stream, framed(b"message"), end_stream=True)
    net.settle()
    with pytest.raises(ValueError, match=r"StopContainer: .* 15 bytes in place of 12"):
        held[0].release(b"longer one")
    held[0].release()
    net.settle()

    assert net.runtime.bodies[stream] == framed(b"message")


def test_a_request_that_never_becomes_a_message_passes_with_its_end() -> None:
    """A compressed StopContainer is the runtime's to refuse."""
    net = Network()
    stream = net.ask(STOP)
    net.client.http.send_data(stream, b"\x01\x00\x00\x00\x03")
    net.client.http.send_data(stream, b"zip", end_stream=True)
    net.settle()

    assert net.runtime.bodies[stream] == b"\x01\x00\x00\x00\x03zip"


@pytest.mark.parametrize("has_trailing_credit", [True, False])
def test_own_frames_wait_for_the_end_of_a_header_block(has_trailing_credit: bool) -> None:
    """FI-4: HTTP/2 lets nothing stand between HEADERS and their CONTINUATION."""
    net, held = Network(), []

    def hold(call: ProxyCall, _message: bytes) -> Verdict:
        if call.path != CREATE:
            return Verdict.PASS
        held.append(call)
        return Verdict.HOLD

    net.judge.verdict = hold
    first = net.ask(CREATE)
    net.client.http.send_data(first, framed(b"abc"), end_stream=True)
    second = net.ask("/x.Service/Large")
    net.client.http.send_data(second, framed(b"abc"), end_stream=True)
    net.settle()
    headers = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "2"), ("text", "x" * 20_000)]
    net.runtime.http.send_headers(second, headers, end_stream=True)
    block = net.runtime.http.data_to_send()
    cut = 16384 + 9 if has_trailing_credit else 16384 + 9 + 4
    net.link.back.data_received(block[:cut])
    held[0].refuse(REFUSAL)
    net.client.exchange()
    net.link.back.data_received(block[cut:])
    net.settle()

    assert (net.client.status[first], net.client.status[second]) == ("14", "2")


def test_a_released_request_is_not_overtaken_by_its_own_end() -> None:
    """FI-4: it waits for the end of a header block, and what comes behind that block waits for it."""
    net, held = Network(), []

    def hold(call: ProxyCall, _message: bytes) -> Verdict:
        held.append(call)
        return Verdict.HOLD

    net.judge.verdict = hold
    first = net.ask(CREATE)
    net.client.http.send_data(first, framed(b"abc"))
    net.settle()
    second = net.client.http.get_next_available_stream_id()
    names = ((":method", "POST"), (":scheme", "http"), (":path", "/x.Service/Y"), (":authority", "localhost"))
    net.client.http.send_headers(second, [*names, ("long", "x" * 20_000)])
    net.client.http.end_stream(first)
    sent = net.client.http.data_to_send()
    net.link.front.data_received(sent[: 16384 + 9])
    held[0].release()
    net.link.front.data_received(sent[16384 + 9 :])
    net.settle()

    assert net.runtime.bodies[first] == framed(b"abc")
    assert net.runtime.ended[first] == 1


def test_headers_on_a_stream_that_has_ended_open_no_call() -> None:
    """FI-21: such a call never ended, and delayed the drain."""
    net = Network()
    stream = net.ask(CREATE)
    net.client.http.send_data(stream, framed(b"x"))
    net.settle()
    net.answer(stream, framed(b"y"))
    net.settle()
    net.client.http.send_headers(stream, [("late", "trailer")], end_stream=True)
    net.client.exchange()

    assert not net.link.calls

# SPDX-License-Identifier: Apache-2.0
"""What goes through comes out as it went in, whoever speaks and however badly."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from math import inf
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from agent.proxy.frames.cri_bytes import with_timeout
from agent.proxy.frames.layout import framed
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.run.call import ProxyCall, Refusal, Verdict
from agent.proxy.run.link import ProxyConnection
from agent.proxy.run.link_limits import BufferBudget
from agent.proxy.run.server import HEARING_S
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.proxy.wire import Wire, proxied, wired

ECHO = "/future.v9.Service/Echo"
STOP = "/runtime.v1.RuntimeService/StopContainer"
CREATE = "/runtime.v1.RuntimeService/CreateContainer"
STATUS = "/runtime.v1.RuntimeService/ContainerStatus"


@pytest.fixture
async def wire(short_path: Path) -> AsyncIterator[Wire]:
    async with wired(short_path) as running:
        running.runtime.methods = dict.fromkeys((ECHO, STOP, CREATE, STATUS), echo)
        yield running


async def echo(requests, context):
    async for one in requests:
        yield one


async def outcome(channel: grpc.aio.Channel, path: str, request: bytes):
    """Everything a client can see of a unary call."""
    call = channel.unary_unary(path)(
        request, timeout=10.0, metadata=(("traceparent", "00-1-2-03"), ("x-bin", b"\0\xff"))
    )
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        answer = error.code()
    initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
    return answer, await call.code(), await call.details(), tuple(initial), tuple(trailing)


async def test_an_unknown_method_of_a_newer_runtime_passes_with_metadata_both_ways(wire: Wire) -> None:
    """PRX-20, PRX-25, PRX-26."""

    async def method(requests, context):
        await context.send_initial_metadata((("first", "1"), ("first-bin", b"\x00\x01")))
        context.set_trailing_metadata((("last", "2"), ("grpc-status-details-bin", b"\x08\x05details")))
        async for one in requests:
            yield b"answer to " + one

    wire.runtime.methods[ECHO] = method
    async with wire.channel(direct=True) as direct, wire.channel() as through:
        expected = await outcome(direct, ECHO, b"question")
        found = await outcome(through, ECHO, b"question")

    assert expected == found
    assert found[0] == b"answer to question"
    by_itself, by_proxy = (sorted(one) for one in wire.runtime.metadata)
    assert by_itself == by_proxy


@pytest.mark.parametrize("code", list(grpc.StatusCode)[1:], ids=lambda code: code.name)
async def test_every_error_comes_with_its_code_its_text_and_its_details(wire: Wire, code: grpc.StatusCode) -> None:
    """PRX-25: text beyond ASCII too, and status details as bytes."""

    async def method(requests, context):
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x08\x05" + bytes(range(256))), ("x", "y")))
        await context.abort(code, f"etwas ging schief: 100 % {code.name} ☂\n")
        yield b""

    wire.runtime.methods[ECHO] = method
    async with wire.channel(direct=True) as direct, wire.channel() as through:
        assert await outcome(direct, ECHO, b"") == await outcome(through, ECHO, b"")


async def test_what_comes_before_the_runtimes_end_is_kept() -> None:
    """PRX-30: Python 3.11.2 reads on in spite of a pause that came with the connection."""
    front, back = Mock(), Mock()
    link = ProxyConnection(Mock(), lambda _link: None, lambda _link: None, BufferBudget(inf))
    link.front.connection_made(front)
    link.front.data_received(PREFACE[:9])
    link.front.data_received(PREFACE[9:])
    link.back.connection_made(back)

    assert b"".join(one.args[0] for one in back.write.call_args_list) == PREFACE
    assert front.pause_reading.call_count == 3


@pytest.mark.parametrize("authority", ["localhost", "", "/run/kepd/cri.sock", "%2Frun%2Fx", "node.example:1"])
async def test_any_authority_will_do(wire: Wire, authority: str) -> None:
    """PRX-30: older kubelets say the path of the socket."""
    options = [("grpc.default_authority", authority)] if authority else []
    async with grpc.aio.insecure_channel(f"unix:{wire.through}", options=options) as through:
        assert await through.unary_unary(ECHO)(b"x", timeout=5) == b"x"


async def test_a_method_nobody_has_is_unimplemented_as_the_runtime_says_it(wire: Wire) -> None:
    """IMG-X03: a newer kubelet falls back on it."""
    async with wire.channel(direct=True) as direct, wire.channel() as through:
        expected, found = await outcome(direct, "/a.B/C", b""), await outcome(through, "/a.B/C", b"")

    assert expected == found
    assert found[1] is grpc.StatusCode.UNIMPLEMENTED


async def test_an_error_text_of_20_kilobytes_arrives_whole(wire: Wire) -> None:
    """PRX-23."""

    async def method(requests, context):
        await context.abort(grpc.StatusCode.UNKNOWN, "x" * 20_000)
        yield b""

    wire.runtime.methods[ECHO] = method
    async with wire.channel() as through:
        found = await outcome(through, ECHO, b"")

    assert (found[1], len(found[2])) == (grpc.StatusCode.UNKNOWN, 20_000)


@pytest.mark.parametrize("path", [ECHO, CREATE, STATUS])
@pytest.mark.parametrize("size", [0, 1, 16_000, 16_384, 70_000, 20 << 20])
async def test_messages_of_any_size_pass_both_ways(wire: Wire, path: str, size: int) -> None:
    """PRX-22: also where requests are read along."""
    message = os.urandom(size)
    async with wire.channel() as through:
        assert await through.unary_unary(path)(message, timeout=30) == message


async def test_all_four_kinds_of_calls_pass(wire: Wire) -> None:
    """PRX-20: by what they send; the runtime's echo answers message by message."""

    async def three() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    async with wire.channel() as through:
        assert await through.unary_unary(ECHO)(b"0") == b"0"
        assert [one async for one in through.unary_stream(ECHO)(b"0")] == [b"0"]
        assert [one async for one in through.stream_stream(ECHO)(three())] == [b"0", b"1", b"2"]

    async def count(requests, context):
        yield b"%d" % len([one async for one in requests])

    wire.runtime.methods[ECHO] = count
    async with wire.channel() as through:
        assert await through.stream_unary(ECHO)(three()) == b"3"


async def test_a_stream_is_told_while_it_goes_on(wire: Wire) -> None:
    """Each answer arrives before the next question is asked."""
    async with wire.channel() as through:
        call = through.stream_stream(ECHO)()
        for number in range(20):
            await call.write(b"%d" % number)

            assert await call.read() == b"%d" % number
        call.cancel()


async def test_the_deadline_of_the_client_is_the_runtime_s_too(wire: Wire) -> None:
    """PRX-24: none is added, none is lost."""
    left: list[float | None] = []

    async def method(requests, context):
        left.append(context.time_remaining())
        async for one in requests:
            yield one

    wire.runtime.methods[ECHO] = method
    async with wire.channel() as through:
        await through.unary_unary(ECHO)(b"", timeout=77)
        await through.unary_unary(ECHO)(b"")

    assert left[0] is not None
    # gRPC rounds the header up, so that its length does not tell the time.
    assert 70 < left[0] < 78
    assert left[1] is None


async def test_who_gives_up_is_heard_by_the_runtime(wire: Wire) -> None:
    """PRX-24: a cancelled call, and one whose deadline passed."""

    async def method(requests, context):
        await asyncio.Event().wait()
        yield b""

    wire.runtime.methods[ECHO] = method
    async with wire.channel() as through:
        call = through.unary_unary(ECHO)(b"")
        await until(lambda: len(wire.runtime.metadata) == 1)
        call.cancel()
        await until(lambda: len(wire.runtime.cancelled) == 1)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await through.unary_unary(ECHO)(b"", timeout=0.1)

    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: len(wire.runtime.cancelled) == 2)
    await until(lambda: not any(link.calls for link in wire.server.links))


async def until(condition, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_runtime_that_is_away_is_unavailable_at_once_and_found_again(short_path: Path) -> None:
    """PRX-27, PRX-28, PRX-52."""
    wire = Wire(short_path)
    wire.runtime.methods[ECHO] = echo
    quick = {"initial_reconnect_backoff_ms": 100, "min_reconnect_backoff_ms": 100, "max_reconnect_backoff_ms": 500}
    async with proxied(wire), wire.channel(**quick) as through:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await through.unary_unary(ECHO)(b"", timeout=5)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        async with wire.serving():
            assert await through.unary_unary(ECHO)(b"x", timeout=5, wait_for_ready=True) == b"x"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await through.unary_unary(ECHO)(b"", timeout=5)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_refusal_is_an_answer_and_the_runtime_gets_nothing(wire: Wire) -> None:
    """ORD-3."""
    wire.judge.verdict = lambda _call, _message: Refusal(14, "kepd: waiting for sidecar größe 100%")
    async with wire.channel() as through:
        for message in (b"small", os.urandom(50_000)):
            found = await outcome(through, CREATE, message)

            assert found[:3] == (grpc.StatusCode.UNAVAILABLE,) * 2 + ("kepd: waiting for sidecar größe 100%",)
        assert await through.unary_unary(ECHO)(b"others") == b"others"
    assert [path for path, _ in wire.runtime.seen] == [ECHO]


async def test_a_held_call_holds_no_other_however_large_it_is(wire: Wire) -> None:
    """PXM-02: forty held requests of 50 KB would take the window of the connection many times over."""
    held: list[ProxyCall] = []

    def hold(call: ProxyCall, _message: bytes) -> Verdict:
        held.append(call)
        return Verdict.HOLD

    wire.judge.verdict = hold
    messages = [os.urandom(50_000) for _ in range(40)]
    async with wire.channel() as through:
        waiting = [asyncio.ensure_future(through.unary_unary(CREATE)(one, timeout=60)) for one in messages]
        await until(lambda: len(held) == 40)
        for _ in range(20):
            assert await through.unary_unary(ECHO)(b"y" * 10_000, timeout=5) == b"y" * 10_000
        assert wire.runtime.seen[-1][0] == ECHO
        for call in held:
            call.release()

        assert await asyncio.gather(*waiting) == messages


async def test_a_client_that_gives_up_a_held_call_takes_it_away(wire: Wire) -> None:
    """PRX-41 is the kubelet's habit; others cancel."""
    wire.judge.verdict = lambda _call, _message: Verdict.HOLD
    async with wire.channel() as through:
        with pytest.raises(grpc.aio.AioRpcError):
            await through.unary_unary(STOP)(b"x", timeout=0.2)
        await until(lambda: len(wire.judge.finished) == 1)
        wire.judge.finished[0].release()

    assert wire.judge.finished[0].code in (None, 4), "given up, or the runtime saw its deadline pass"
    assert wire.runtime.seen == []


@pytest.mark.parametrize(("before", "after"), [(30, 4), (300, 2), (100_000, 200)])
async def test_a_stop_goes_on_with_less_time_and_everything_else_it_had(wire: Wire, before: int, after: int) -> None:
    """STO-2, PRX-21: unknown fields too."""
    request = pb.StopContainerRequest(container_id="c" * 64, timeout=before).SerializeToString() + b"\xfa\x3f\x03new"

    def hold(call: ProxyCall, message: bytes) -> Verdict:
        asyncio.get_running_loop().call_soon(call.release, with_timeout(message, after))
        return Verdict.HOLD

    wire.judge.verdict = hold
    async with wire.channel() as through:
        answer = await through.unary_unary(STOP)(request, timeout=5)
    found = pb.StopContainerRequest.FromString(answer)

    assert (found.container_id, found.timeout) == ("c" * 64, after)
    assert answer.endswith(b"\xfa\x3f\x03new")


@pytest.mark.parametrize("more", [b"", b"longer than before" * 10, None], ids=["as it was", "longer", "shorter"])
async def test_changed_answers_upset_no_window_however_many(wire: Wire, more: bytes | None) -> None:
    """JOB-4: answers that grow or shrink, in all by more than any window, and the connection goes on."""

    def rewrite(call: ProxyCall, _message: bytes) -> Verdict:
        call.rewriting = Rewriting()
        return Verdict.PASS

    wire.judge.verdict = rewrite
    wire.judge.change = lambda _call, message: message + more if more is not None else message[:10]
    message = os.urandom(6000)
    expected = message + more if more is not None else message[:10]
    async with wire.channel() as through:
        for _ in range(10):
            answers = await asyncio.gather(*(through.unary_unary(STATUS)(message, timeout=10) for _ in range(50)))

            assert set(answers) == {expected}
        assert await through.unary_unary(ECHO)(b"z" * 200_000, timeout=10) == b"z" * 200_000


@pytest.mark.parametrize("more", [b"and more", None], ids=["longer", "shorter"])
async def test_answers_of_any_size_are_changed(wire: Wire, more: bytes | None) -> None:
    """FI-17: over 32 KiB they passed unmasked, so a finished Job's pod could turn Failed. Some at once, and beyond
    what gRPC's ends take by default they pass as they are."""

    def rewrite(call: ProxyCall, _message: bytes) -> Verdict:
        call.rewriting = Rewriting()
        return Verdict.PASS

    wire.judge.verdict = rewrite
    wire.judge.change = lambda _call, message: message + more if more is not None else message[:100_000]
    message = os.urandom(3 << 20)
    expected = message + more if more is not None else message[:100_000]
    async with wire.channel() as through:
        answers = await asyncio.gather(*(through.unary_unary(STATUS)(message, timeout=20) for _ in range(5)))
        huge = await through.unary_unary(STATUS)(b"x" * (17 << 20), timeout=20)
        echo = await through.unary_unary(ECHO)(b"z" * 200_000, timeout=10)

    assert set(answers) == {expected}
    assert (len(huge), echo) == (17 << 20, b"z" * 200_000)


# those who misbehave


async def works(wire: Wire) -> None:
    async with wire.channel() as through:
        assert await through.unary_unary(ECHO)(b"fine", timeout=5) == b"fine"


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": bytes(range(256)) * 40,
    "noise after the preface": PREFACE + SETTINGS + b"\xff" * 5000,
    "headers that are none": PREFACE + SETTINGS + b"\0\0\x04\x01\x05\0\0\0\x01" + b"\xff\xff\xff\xff",
    "a frame too large": PREFACE + SETTINGS + struct.pack(">BHBBI", 1, 0, 0, 0, 1),
    "a continuation of nothing": PREFACE + SETTINGS + b"\0\0\x01\x09\x04\0\0\0\x01x",
    "too much padding": PREFACE + SETTINGS + b"\0\0\x02\x01\x0d\0\0\0\x01\xffx",
    "headers without end": PREFACE
    + SETTINGS
    + b"\0\0\x01\x01\0\0\0\0\x01\x00"
    + b"\0\x40\0\x09\0\0\0\0\x01" * 0
    + (b"\0\x40\0\x09\0\0\0\0\x01" + b"\0" * 0x4000) * 70,
}


@pytest.mark.parametrize("garbage", list(GARBAGE))
async def test_garbage_is_answered_with_an_end_and_nobody_else_notices(wire: Wire, garbage: str) -> None:
    """Bad input: the offender is hung up on."""
    reader, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(GARBAGE[garbage])
    async with asyncio.timeout(30):
        try:
            said = await reader.read()
        except ConnectionError:  # hung up on before all was written
            said = b"\0\0\x08\x07"
    writer.close()

    assert b"\x07" in said, "no GOAWAY"
    await works(wire)
    await until(lambda: not wire.server.links or all(not link.calls for link in wire.server.links))


@pytest.mark.parametrize("cut", [0, 10, 24, 30, 60])
async def test_a_connection_that_ends_halfway_leaves_nothing(wire: Wire, cut: int) -> None:
    """Half-closed and cut off at any point."""
    start = PREFACE + SETTINGS + b"\0\0\x03\x01\x04\0\0\0\x01\x83\x86\x84" + b"\0\0\x20\x00\0\0\0\0\x01" + b"abc"
    reader, writer = await asyncio.open_unix_connection(str(wire.through))
    writer.write(start[:cut])
    writer.write_eof()
    async with asyncio.timeout(30):
        await reader.read()
    writer.close()
    await works(wire)
    await until(lambda: not wire.server.links)


async def test_a_client_that_never_reads_waits_alone(wire: Wire) -> None:
    """Its answers pile up with the runtime, which stops sending; nobody else is slower for it."""

    async def flood(requests, context):
        while True:
            yield b"x" * 100_000

    wire.runtime.methods["/a.B/Flood"] = flood
    async with wire.channel() as lazy:
        calls = [lazy.unary_stream("/a.B/Flood")(b"") for _ in range(20)]
        await asyncio.sleep(0.3)
        await works(wire)
        buffered = sum(
            link.front.transport.get_write_buffer_size() for link in wire.server.links if link.front.transport
        )
        for call in calls:
            call.cancel()

    assert buffered < 4 << 20


async def test_a_socket_that_is_never_read_fills_no_memory(wire: Wire) -> None:
    """Below gRPC: a client whose process hangs."""

    async def flood(requests, context):
        while True:
            yield b"x" * 100_000

    wire.runtime.methods["/a.B/Flood"] = flood
    window = b"\0\0\x04\x08\0\0\0\0\0" + (2**31 - 1 - 65535).to_bytes(4, "big")
    settings = b"\0\0\x06\x04\0\0\0\0\0\x00\x04" + (2**31 - 1).to_bytes(4, "big")
    block = b"\x83\x86\x44\x0a/a.B/Flood\x41\x01x\x5f\x10application/grpc\x40\x02te\x08trailers"
    head = len(block).to_bytes(3, "big") + b"\x01\x04\0\0\0\x01" + block
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(wire.through))
        client.sendall(PREFACE + settings + window + head + b"\0\0\x05\x00\x01\0\0\0\x01" + framed(b""))
        await until(lambda: wire.runtime.metadata)
        await asyncio.sleep(0.5)
        (link,) = wire.server.links
        assert link.front.transport is not None
        assert 0 < link.front.transport.get_write_buffer_size() < 8 << 20
        await works(wire)
    await until(lambda: not wire.server.links)


async def test_a_message_of_64_mebibytes_passes_or_fails_as_the_runtime_wants(wire: Wire) -> None:
    """The runtime's limit is the runtime's answer; where it has none, the message arrives."""
    message = bytes(64 << 20)
    async with wire.channel() as through:
        whole = asyncio.ensure_future(through.unary_unary(CREATE)(message, timeout=60))
        for _ in range(20):
            await works(wire)
        assert len(await whole) == 64 << 20


async def test_500_calls_at_once_all_end_well(wire: Wire) -> None:
    """Must hold: concurrent calls."""

    async def slow(requests, context):
        async for one in requests:
            await asyncio.sleep(0.2)
            yield one

    wire.runtime.methods[ECHO] = slow
    async with wire.channel() as through:
        answers = await asyncio.gather(*(through.unary_unary(ECHO)(b"%d" % n, timeout=30) for n in range(500)))

    assert answers == [b"%d" % n for n in range(500)]


async def test_an_end_waits_for_what_is_under_way_and_not_for_a_pause(wire: Wire) -> None:
    """PRX-51: a client that never pauses does not keep the proxy from ending."""
    go, is_over = asyncio.Event(), asyncio.Event()

    async def waits(requests, context):
        async for one in requests:
            if one == b"early":
                await go.wait()
            yield one

    wire.runtime.methods[ECHO] = waits
    async with wire.channel() as early_channel, wire.channel() as busy_channel:
        early = asyncio.ensure_future(early_channel.unary_unary(ECHO)(b"early", timeout=20))
        await until(lambda: wire.server.busy == 1)

        async def never_pauses() -> None:
            with suppress(grpc.aio.AioRpcError):  # when nobody listens any more
                while not is_over.is_set():
                    await asyncio.gather(*(busy_channel.unary_unary(ECHO)(b"x", timeout=20) for _ in range(4)))

        busy = asyncio.ensure_future(never_pauses())
        draining = asyncio.ensure_future(wire.server.drain(20))
        await asyncio.sleep(0.3)
        assert not draining.done()
        assert not busy.done()
        go.set()
        assert await early == b"early"
        async with asyncio.timeout(30):
            await draining
        is_over.set()
        await busy


async def test_clients_that_are_sent_away_end_their_calls_first(wire: Wire) -> None:
    """PRX-8, PRX-51: an answer that is under way arrives; a new call finds a new connection."""
    go = asyncio.Event()

    async def waits(requests, context):
        async for one in requests:
            await go.wait()
            yield one

    wire.runtime.methods[ECHO] = waits
    async with wire.channel() as through:
        early = asyncio.ensure_future(through.unary_unary(ECHO)(b"early", timeout=10))
        await until(lambda: wire.server.busy == 1)
        leaving = asyncio.ensure_future(wire.server.send_away(5))
        await asyncio.sleep(0.05)
        late = asyncio.ensure_future(through.unary_unary(ECHO)(b"late", timeout=10))
        await until(lambda: wire.server.busy == 2)
        assert wire.server.accepted == 2
        go.set()

        assert await asyncio.gather(early, late) == [b"early", b"late"]
        await leaving


async def test_a_client_may_begin_a_call_until_it_has_heard_that_it_is_sent_away(wire: Wire) -> None:
    """PRX-8: a call that crosses the farewell would be lost with the connection."""
    _, writer = await asyncio.open_unix_connection(wire.through)
    await until(lambda: wire.server.links)
    began_s = asyncio.get_running_loop().time()
    await wire.server.send_away(5)
    took_s = asyncio.get_running_loop().time() - began_s
    writer.close()

    assert took_s >= HEARING_S


async def test_a_client_may_read_its_last_answer_before_its_connection_closes(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PRX-51: however long the call was held; a client that writes into a closed connection loses the answer."""
    _, writer = await asyncio.open_unix_connection(wire.through)
    await until(lambda: wire.server.links)
    busy = [1]
    monkeypatch.setattr(type(wire.server), "busy", property(lambda _: busy[0]))
    leaving = asyncio.ensure_future(wire.server.send_away(10))
    await asyncio.sleep(HEARING_S + 0.2)
    busy[0] = 0
    await asyncio.sleep(HEARING_S / 2)
    is_early = leaving.done()
    await leaving
    writer.close()

    assert not is_early

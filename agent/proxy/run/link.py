# SPDX-License-Identifier: Apache-2.0
"""One connection of a client and the connection to the runtime that belongs to it.

    client ══ front ══▶ frames ══▶ back ══ runtime        every frame passes as it came; only a call that a gate
           ◀═════════ frames ◀═════════                    holds, refuses or rewrites is touched

Invariant: each end sees a legal HTTP/2 connection, and one that differs from a direct one only by the verdicts.

- Header blocks pass byte for byte, for the two ends share one compression state; they are read along by a decoder of
  our own, and an answer of the proxy uses no entry of that state. In a call whose trace is kept one field is another,
  in a way that keeps both states alike (`frames/parent_header.py`).
- Frames go on whole and in order. A held request is kept as the frames that came, and goes on as they are, or with
  content of the same length in them.
- Every byte of DATA goes through the ledger of its direction (`frames/credit.py`), which keeps the windows right
  wherever bytes do not pass at once. What waits for room there is sent before anything else of its stream; a block of
  headers that comes behind it waits, and all behind that with it, for blocks must keep their order.
- A frame of ours is inserted between frames, never inside a block of headers.
- A refused stream is closed on both sides: the client has an answer with END_STREAM, the runtime a reset, and what the
  client still sends on it is dropped and credited.

Owns: both transports, the calls on them, and the few frames that are made here.
Never: decides about a call (the judge does), or joins two clients on one connection: whoever stops reading, sends
garbage or hangs up is alone with it. It lives from the accept until either end closes.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

import structlog

from agent.model.allowance import CallerMeter, Share
from agent.proxy.frames import layout as http2
from agent.proxy.frames.credit import CONNECTION, MOST_UNCONFIRMED, FlowControl, flow_bytes
from agent.proxy.frames.hpack import Headers
from agent.proxy.frames.layout import HEAD, HEAD_BYTES, fragment_of, message_in
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.frames.routes import ROUTES, Holding
from agent.proxy.run.call import CallJudge, ProxyCall, Refusal, Verdict
from agent.proxy.run.call_traces import CallTraces
from agent.proxy.run.outage import UNAVAILABLE, Outage
from agent.proxy.run.side import ConnectionEnd

log = structlog.get_logger(plane="proxy")

FrameHandler = Callable[[int, int, int, bytes], bytes | None]

# Of one block: a request's hundred times what a kubelet sends; in trailers a runtime may tell a long story.
MOST_REQUEST_HEADERS, MOST_ANSWER_HEADERS = 64 << 10, 1 << 20
# Calls under way on one connection; a kubelet has some hundreds.
MOST_CALLS = 10_000
# Of one process: calls given up, each of which costs us more than its client (CVE-2023-44487), and frames that serve no
# call. One that sends more is read no further for a while, which a busy client hardly notices.
RESETS, OTHERS, CONNECTIONS = "calls given up", "frames without a call", "connections"
METERED = {RESETS: Share(1000, 200), OTHERS: Share(4000, 10_000), CONNECTIONS: Share(200, 50)}
# A shorter rest is not worth a timer.
LEAST_REST_S = 0.01
# What has come on all connections is taken for so long in one turn of the loop, then others have theirs.
TURN_S = 0.0015
# Requests beyond this pass unread; a kubelet sends 16 MiB at most, and the runtime says so to whoever sends more.
MOST_KEPT_BYTES = 16 << 20
# Of all calls of all clients that are read along; what finds no room passes unread.
MOST_KEPT_OF_ALL_BYTES = 64 << 20
# A request that may have to change is kept until it is whole, up to this size: half a stream's usual window.
MOST_WITHHELD_BYTES = 32 << 10
# Streams refused before their request had ended whose rest may still come. The rest of older ones goes to the runtime,
# which ignores it.
MOST_REFUSED_STREAMS = 1000


class Broken(Exception):
    """A peer breaks the protocol. `error` is HTTP/2's number."""

    def __init__(self, error: int, text: str) -> None:
        super().__init__(text)
        self.error = error


class BufferBudget:
    """What all links keep of the calls that they read along, and what their clients took."""

    def __init__(self, turn_s: float = TURN_S) -> None:
        """`turn_s`: infinite where there is no loop."""
        self._turn_s = turn_s
        self._has_begun = False
        self.turn_ends_s = inf
        self.kept_bytes = 0
        self.meter = CallerMeter(METERED)

    def begin_turn(self, now_s: float) -> None:
        """With the first frames of a turn; what is called soon comes with the next."""
        if not self._has_begun and self._turn_s < inf:
            self._has_begun, self.turn_ends_s = True, now_s + self._turn_s
            asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._has_begun = False

    def keep(self, call: ProxyCall, more_bytes: int) -> bool:
        if call.kept_bytes > MOST_KEPT_BYTES or self.kept_bytes > MOST_KEPT_OF_ALL_BYTES:
            return False
        call.kept_bytes += more_bytes
        self.kept_bytes += more_bytes
        return True

    def leave(self, call: ProxyCall) -> None:
        self.kept_bytes -= call.kept_bytes
        call.kept_bytes = 0


class ProxyConnection:
    def __init__(
        self,
        judge: CallJudge,
        on_ready: Callable[["ProxyConnection"], None],
        on_lost: Callable[["ProxyConnection"], None],
        room: BufferBudget,
        on_outage: Callable[[Outage], bool] = lambda _outage: False,
        traces: CallTraces | None = None,
    ) -> None:
        """`on_outage`: the runtime has gone, and event streams are open. False: nothing will be heard of it again."""
        self._judge = judge
        self._room = room
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._on_outage = on_outage
        self._traces = traces
        self.front = ConnectionEnd(self, self._from_client)
        self.back = ConnectionEnd(self, self._from_runtime)
        self.pid = 0
        self.calls: dict[int, ProxyCall] = {}
        self._requests = FlowControl(self.front.insert)
        self._answers = FlowControl(self.back.insert)
        self._last_stream = 0
        self._refused: dict[int, None] = {}
        self._has_preface = False
        self._is_closing = False
        self._is_lost = False
        self._goaway_stream = http2.STREAM
        self._chunk_s = 0.0

    # the two ends

    def connected(self, side: ConnectionEnd) -> None:
        """A transport is there: the client's first, which waits for the runtime's."""
        if side is self.front and side.transport is not None:
            side.transport.pause_reading()
            self._on_ready(self)
        elif self.front.transport is not None:
            self.front.transport.resume_reading()

    def lost(self, side: ConnectionEnd | None = None) -> None:
        """One end is gone, so is the other: what was under way fails as it would without us. Event streams alone go on
        where it was the runtime's, for it will be back."""
        if self._is_lost:
            return
        self._is_lost = True
        self._chunk_s = monotonic()
        lasting = self._lasting_calls() if side is self.back else {}
        outage = Outage(self._judge, self.front, self._answers, lasting) if lasting else None
        has_successor = outage is not None and self._on_outage(outage)
        over = [call for call in self.calls.values() if not has_successor or call.stream not in lasting]
        for call in over if has_successor else ():
            self._answers.end(call.stream, is_reset=True)
            text = "kepd: the container runtime has closed the connection"
            self.front.insert(http2.refusal_frame(call.stream, UNAVAILABLE, text, is_opened=call.is_opened))
            self._end(call, None)
        self.back.close()
        self.back.transport = None
        if outage is not None and has_successor:
            outage.take_over(min(self._last_stream, self._goaway_stream))
            self._on_lost(self)
        else:
            self.front.close()
            self.front.transport = None
            self._end_in_turns(over)

    def _end_in_turns(self, over: list[ProxyCall]) -> None:
        """There may be thousands, on each of many connections that end together."""
        self._chunk_s = monotonic()
        self._room.begin_turn(self._chunk_s)
        while over:
            self._end(over.pop(), None)
            if over and monotonic() > self._room.turn_ends_s:
                asyncio.get_running_loop().call_soon(self._end_in_turns, over)
                return
        self._on_lost(self)

    def _lasting_calls(self) -> dict[int, ProxyCall]:
        """Event streams that can go on with another runtime: all that passed of them are whole messages."""
        if self._is_closing or self.back.block_stream:
            return {}
        return {
            stream: call
            for stream, call in self.calls.items()
            if call.route is not None and call.route.is_endless and call.is_judged and call.rewriting is not None
        }

    def say_goaway(self) -> None:
        self.front.insert(http2.goaway_frame(http2.NO_ERROR))

    def close(self) -> None:
        self._is_closing = True
        self.front.close()
        self.back.close()

    def awaited(self) -> list[ProxyCall]:
        """Calls under way that clients wait for."""
        return [call for call in self.calls.values() if call.route is None or not call.route.is_endless]

    # from the client

    def _from_client(self, data: bytes) -> None:
        side = self.front
        self._chunk_s = monotonic()
        self._room.begin_turn(self._chunk_s)
        buffer = side.pending + data if side.pending else data
        try:
            start = self._read_preface(buffer) if not self._has_preface else 0
            if start is None:
                side.pending = buffer
                return
            self._walk(side, buffer, start, self._client_frame)
        except (Broken, ValueError) as error:
            self._complain(error)
            return
        self._unblock()

    def _read_preface(self, buffer: bytes) -> int | None:
        expected = http2.PREFACE
        if buffer[: len(expected)] != expected[: len(buffer)]:
            raise Broken(http2.PROTOCOL_ERROR, "this socket speaks HTTP/2 with prior knowledge, as gRPC does")
        if len(buffer) < len(expected):
            return None
        self._has_preface = True
        self.back.write(expected)
        return len(expected)

    def _complain(self, error: Exception) -> None:
        """A client that does not speak HTTP/2 gets an answer, and is hung up on."""
        code = error.error if isinstance(error, Broken) else http2.PROTOCOL_ERROR
        self.front.write(http2.goaway_frame(code, str(error)[:200]))
        self.lost()

    def _walk(self, side: ConnectionEnd, buffer: bytes, start: int, handle: FrameHandler) -> None:
        """Send whole frames on; what was handled otherwise is left out of the pieces."""
        other = side.other
        other.is_filled = True
        try:
            self._pass_frames(side, other, buffer, start, handle)
        finally:
            other.is_filled = False
        if other.own:
            other.flush_own()

    def _pass_frames(
        self, side: ConnectionEnd, other: ConnectionEnd, buffer: bytes, start: int, handle: FrameHandler
    ) -> None:
        position, end = start, len(buffer)
        while end - position >= HEAD_BYTES:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, position)
            length = high << 16 | low
            if length > other.largest_frame:
                text = f"a frame of {length} bytes where {other.largest_frame} are allowed"
                raise Broken(http2.FRAME_SIZE_ERROR, text)
            stop = position + HEAD_BYTES + length
            if stop > end:
                break
            replaced = handle(kind, flags, stream & http2.STREAM, buffer[position:stop])
            if side.blocked_stream:
                break
            if replaced is not None:
                other.write(buffer[start:position])
                other.write(replaced)
                start = stop
            position = stop
            if other.own and not side.block_stream:
                # They waited for a block of headers to end; what follows may belong to the same stream.
                other.write(buffer[start:position])
                start = position
                frames, other.own = other.own, b""
                other.write(frames)
            if monotonic() > self._room.turn_ends_s:
                side.rest(0.0)
            if side.rests is not None:
                break
        other.write(buffer[start:position])
        side.pending = buffer[position:]

    def _client_frame(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """None: the frame passes as it is."""
        if kind == http2.DATA:
            call = self.calls.get(stream)
            if call is None and stream in self._refused:
                return self._drop_rest(stream, flags, whole)
            if call is None or call.request is None:
                return self._requests.carry(stream, whole)
            return self._request_data(call, flags, whole)
        if kind in (http2.HEADERS, http2.CONTINUATION):
            headers = self._headers(self.front, kind, flags, stream, whole)
            if headers is not None and stream > self._last_stream:
                call = self._begin(stream, headers)
                if self._traces is not None:
                    is_whole = kind == http2.HEADERS
                    return self._traces.begin(call, headers, self.front.block, flags if is_whole else 0)
            return None
        self._charge(RESETS if kind == http2.RESET else OTHERS)
        if kind == http2.WINDOW:
            return self._credited(self._answers, self.front, stream, whole)
        if kind == http2.RESET:
            if stream in self._refused:
                del self._refused[stream]
                return b""
            self._reset(stream)
        elif kind == http2.SETTINGS:
            self._settings(self.front, self._answers, self._requests, flags, whole)
        return None

    def _charge(self, what: str) -> None:
        owed_s = self._room.meter.take(self.pid, what, self._chunk_s)
        if owed_s:
            self.front.rest(max(owed_s, LEAST_REST_S))

    def _begin(self, stream: int, headers: Headers) -> ProxyCall:
        self._last_stream = stream
        if len(self.calls) >= MOST_CALLS:
            raise Broken(http2.ENHANCE_YOUR_CALM, f"more than {MOST_CALLS} calls at once on one connection")
        path, deadline_s = b"", None
        for name, value in headers:
            if name == b":path":
                path = value
            elif name == b"grpc-timeout":
                allowed_s = http2.timeout_s(value)
                deadline_s = None if allowed_s is None else self._chunk_s + allowed_s
        route = ROUTES.get(path)
        call = ProxyCall(self, stream, path.decode("ascii", "replace"), route, self._chunk_s, deadline_s)
        if route is not None:
            call.request = bytearray()
            call.answer = bytearray() if route.keeps_answer else None
            call.withheld = [] if route.holding is Holding.WHOLE else None
        self._requests.begin(stream)
        self._answers.begin(stream)
        self.calls[stream] = call
        return call

    def _request_data(self, call: ProxyCall, flags: int, whole: bytes) -> bytes | None:
        """A piece of a request that is read along; with the last one it is judged."""
        call.is_sent = call.is_sent or bool(flags & http2.END_STREAM)
        if call.held is not None:
            call.held.append(whole)
            self._requests.advance(CONNECTION, flow_bytes([whole]))
            return b""
        if call.is_judged or call.request is None:
            return self._requests.carry(call.stream, whole)
        content = http2.data_of(flags, whole[HEAD_BYTES:])
        if not self._room.keep(call, len(content)):
            call.request = None
            return self._carry(call, whole)
        call.request += content
        message = message_in(call.request)
        if message is None:
            return self._request_piece(call, flags, whole)
        call.is_judged = True
        verdict = self._judge.judge(call, message)
        call.added_s = monotonic() - self._chunk_s
        if call.is_answered:
            call.rewriting = None
        if verdict is Verdict.PASS:
            return self._carry(call, whole)
        if isinstance(verdict, Refusal):
            return self._refuse(call, verdict, flow_bytes([whole]))
        was_advanced = flow_bytes(call.withheld or ())
        passed = call.keep_back(flags, whole)
        self._requests.advance(CONNECTION, flow_bytes(call.held or ()) - was_advanced)
        return self._requests.carry_all(call.stream, [passed]) if passed else b""

    def _request_piece(self, call: ProxyCall, flags: int, whole: bytes) -> bytes | None:
        """A piece without a whole message so far. It passes at once, unless the request may have to change."""
        size = len(call.request or b"")
        most = min(MOST_WITHHELD_BYTES, self._requests.first_window // 2)
        if call.withheld is None or size > most or flags & http2.END_STREAM:
            return self._carry(call, whole)
        call.withheld.append(whole)
        self._requests.advance(CONNECTION, flow_bytes([whole]))
        return b""

    def _carry(self, call: ProxyCall, whole: bytes) -> bytes | None:
        """A piece of a request after those that waited for it. None: it passes as it is."""
        if not call.withheld:
            call.withheld = None
            return self._requests.carry(call.stream, whole)
        return self._requests.carry_all(call.stream, [*call.take_withheld(), whole])

    def _refuse(self, call: ProxyCall, refusal: Refusal, dropped_bytes: int = 0) -> bytes:
        """The answer to the client, and what the runtime gets. `dropped_bytes`: of the frame that is under way."""
        if call.trace is not None:
            call.trace.is_refused = True
        self.front.insert(http2.refusal_frame(call.stream, refusal.code, refusal.text))
        self._requests.drop(dropped_bytes)
        if not call.is_sent:
            self.front.insert(http2.reset_frame(call.stream, http2.NO_ERROR))
            self._refused[call.stream] = None
            if len(self._refused) > MOST_REFUSED_STREAMS:
                del self._refused[next(iter(self._refused))]
        self._requests.end(call.stream, is_reset=True)
        self._end(call, refusal.code)
        return http2.reset_frame(call.stream)

    def _drop_rest(self, stream: int, flags: int, whole: bytes) -> bytes:
        if flags & http2.END_STREAM:
            del self._refused[stream]
        self._requests.drop(flow_bytes([whole]))
        return b""

    # from the runtime

    def _from_runtime(self, data: bytes) -> None:
        side = self.back
        if side.blocked_stream:
            side.pending += data
            return
        self._chunk_s = monotonic()
        self._room.begin_turn(self._chunk_s)
        try:
            self._walk(side, side.pending + data if side.pending else data, 0, self._runtime_frame)
        except (Broken, ValueError) as error:
            log.warning("proxy_runtime_broke_protocol", error=str(error))
            self.lost()
            return
        self._unblock()

    def _runtime_frame(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """None: the frame passes as it is."""
        if kind == http2.DATA:
            return self._answer_data(stream, flags, whole)
        if kind in (http2.HEADERS, http2.CONTINUATION):
            return self._answer_headers(kind, flags, stream, whole)
        if kind == http2.WINDOW:
            return self._credited(self._requests, self.back, stream, whole)
        if kind == http2.PROMISE:
            # It would carry headers that we do not read; no gRPC server sends one.
            raise Broken(http2.PROTOCOL_ERROR, "an unrequested push promise")
        if kind == http2.RESET:
            self._reset(stream)
        elif kind == http2.SETTINGS:
            self._settings(self.back, self._requests, self._answers, flags, whole)
        elif kind == http2.GOAWAY:
            self._goaway_stream = int.from_bytes(whole[HEAD_BYTES : HEAD_BYTES + 4], "big") & http2.STREAM
        return None

    def _answer_data(self, stream: int, flags: int, whole: bytes) -> bytes | None:
        call = self.calls.get(stream)
        if call is None or call.route is None:
            return self._answers.carry(stream, whole)
        if call.rewriting is not None:
            return self._rewritten(call, call.rewriting, flags, whole)
        call.is_answered = True
        if call.answer is not None and self._room.keep(call, len(whole)):
            call.answer += http2.data_of(flags, whole[HEAD_BYTES:])
        if flags & http2.END_STREAM:
            self._end(call, None)
        return self._answers.carry(stream, whole)

    def _answer_headers(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """Headers come behind the data of their stream, and no block passes another."""
        flushed = b""
        call = self.calls.get(stream)
        if kind == http2.HEADERS and call is not None and call.rewriting is not None:
            # What waits is no whole message and becomes none any more.
            flushed = self._answers.push(stream, call.rewriting.flush())
        if kind == http2.HEADERS and self._answers.is_waiting(stream):
            self.front.insert(flushed)
            self.back.set_reading(blocked_stream=stream)
            return None
        headers = self._headers(self.back, kind, flags, stream, whole)
        if headers is not None and call is not None:
            call.is_opened = True
            if self.back.block_ends_stream:
                code, call.text = http2.status_of(headers)
                self._end(call, code)
        return flushed + whole if flushed else None

    def _rewritten(self, call: ProxyCall, rewriting: Rewriting, flags: int, whole: bytes) -> bytes:
        """Answers go on message by message, changed or not."""
        content, is_last = http2.data_of(flags, whole[HEAD_BYTES:]), bool(flags & http2.END_STREAM)
        out, more_bytes = rewriting.take(content, lambda message: self._judge.rewrite(call, message))
        if is_last:
            out += rewriting.flush()
        if rewriting.has_given_up:
            call.rewriting = None
        padding_bytes = flow_bytes([whole]) - len(content)
        self._answers.resize(call.stream, more_bytes - padding_bytes)
        self._answers.advance(call.stream, rewriting.to_advance(self._answers.least_piece))
        passed = self._answers.push(call.stream, out, is_last=is_last)
        if is_last:
            self._end(call, None)
        return passed

    # both ways

    def _credited(self, ledger: FlowControl, receiver: ConnectionEnd, stream: int, whole: bytes) -> bytes | None:
        """The receiver takes more: what waits for that goes on, and what the sender is not owed is taken off."""
        credit_bytes = int.from_bytes(whole[HEAD_BYTES:], "big") & http2.STREAM
        left_bytes = ledger.credited(stream, credit_bytes)
        if ledger.has_queue:
            receiver.insert(ledger.pump())
        if left_bytes == credit_bytes:
            return None
        return http2.window_frame(stream, left_bytes) if left_bytes else b""

    def _settings(
        self, side: ConnectionEnd, received: FlowControl, sent: FlowControl, flags: int, whole: bytes
    ) -> None:
        """`received`: the ledger of what this side receives."""
        if flags & http2.ACK:
            sent.confirmed()
            side.other.insert(sent.pump())
            return
        payload = whole[HEAD_BYTES:]
        if not received.announced(http2.setting_in(payload, http2.FIRST_WINDOW_SETTING)):
            raise Broken(http2.ENHANCE_YOUR_CALM, f"more than {MOST_UNCONFIRMED} SETTINGS are not confirmed yet")
        # What is under way may still be as large as before.
        largest_frame = http2.setting_in(payload, http2.LARGEST_FRAME_SETTING) or 0
        side.largest_frame = max(side.largest_frame, largest_frame)

    def _unblock(self) -> None:
        """Go on with what waited for the data of a stream, where that has gone on by now."""
        if self.back.blocked_stream and not self._answers.is_waiting(self.back.blocked_stream):
            self.back.set_reading(blocked_stream=0)
            self._from_runtime(b"")

    def _reset(self, stream: int) -> None:
        """Either end gave it up: what waits of it goes nowhere."""
        for ledger in (self._requests, self._answers):
            ledger.end(stream, is_reset=True)
        self._end(self.calls.get(stream), None)

    def _headers(self, side: ConnectionEnd, kind: int, flags: int, stream: int, whole: bytes) -> Headers | None:
        payload = whole[HEAD_BYTES:]
        if kind == http2.HEADERS:
            side.block, side.block_stream = fragment_of(flags, payload), stream
            side.block_ends_stream = bool(flags & http2.END_STREAM)
        elif stream == side.block_stream:
            side.block += payload
        else:
            raise Broken(http2.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        most = MOST_REQUEST_HEADERS if side is self.front else MOST_ANSWER_HEADERS
        if len(side.block) > most:
            raise Broken(http2.ENHANCE_YOUR_CALM, f"more than {most} bytes of headers")
        if not flags & http2.END_HEADERS:
            return None
        headers, side.block_stream = side.decoder.decode(side.block), 0
        return headers

    def _end(self, call: ProxyCall | None, code: int | None) -> None:
        if call is None or call.is_over:
            return
        del self.calls[call.stream]
        self._room.leave(call)
        self._answers.end(call.stream, is_reset=False)
        self._requests.end(call.stream, is_reset=False)
        if call.held or call.withheld:
            self._requests.drop(flow_bytes([*(call.held or ()), *(call.withheld or ())]))
        if call.rewriting is not None:
            self._answers.drop(call.rewriting.waiting_bytes)
        call.code, call.is_over, call.held, call.withheld = code, True, None, None
        call.added_s += monotonic() - self._chunk_s
        self._judge.finish(call)
        if call.trace is not None and self._traces is not None:
            self._traces.end(call, call.trace)

    # for the judge, through the call

    def release(self, call: ProxyCall, frames: Sequence[bytes]) -> None:
        """A held request goes on."""
        self.back.insert(self._requests.carry_all(call.stream, frames))

    def refuse(self, call: ProxyCall, refusal: Refusal) -> None:
        self._chunk_s = monotonic()
        self.back.insert(self._refuse(call, refusal))

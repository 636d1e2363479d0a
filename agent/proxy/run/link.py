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
from time import monotonic

import structlog

from agent.proxy.frames import layout as http2
from agent.proxy.frames.credit import CONNECTION, MOST_UNCONFIRMED, FlowControl, flow_bytes
from agent.proxy.frames.hpack import Headers
from agent.proxy.frames.layout import HEAD_BYTES, message_in
from agent.proxy.frames.routes import ROUTES, Holding
from agent.proxy.run.answer_frames import AnswerFrames
from agent.proxy.run.call import CallJudge, ProxyCall, Refusal, Verdict
from agent.proxy.run.call_traces import CallTraces
from agent.proxy.run.link_limits import (
    LEAST_REST_S,
    MOST_CALLS,
    MOST_REFUSED_STREAMS,
    MOST_WITHHELD_BYTES,
    OTHERS,
    RESETS,
    Broken,
    BufferBudget,
)  # fmt: skip
from agent.proxy.run.outage import UNAVAILABLE, Outage
from agent.proxy.run.side import ConnectionEnd

log = structlog.get_logger(plane="proxy")


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
        self.judge = judge
        self.room = room
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._on_outage = on_outage
        self._traces = traces
        self.front = ConnectionEnd(self, self._from_client)
        self._answer_frames = AnswerFrames(self)
        self.back = ConnectionEnd(self, self._answer_frames.take)
        self.pid = 0
        self.calls: dict[int, ProxyCall] = {}
        self.requests = FlowControl(self.front.insert)
        self.answers = FlowControl(self.back.insert)
        self._last_stream = 0
        self._refused: dict[int, None] = {}
        self._has_preface = False
        self._is_closing = False
        self._is_lost = False
        self.goaway_stream = http2.STREAM
        self.chunk_s = 0.0

    # the two ends

    def connected(self, side: ConnectionEnd) -> None:
        """A transport is there: the client's first, which waits for the runtime's."""
        if side is self.front and side.transport is not None:
            side.transport.pause_reading()
            self._on_ready(self)
        elif self.front.transport is not None:
            self.front.transport.resume_reading()
            self.front.take(b"")

    def lost(self, side: ConnectionEnd | None = None) -> None:
        """One end is gone, so is the other: what was under way fails as it would without us. Event streams alone go on
        where it was the runtime's, for it will be back."""
        if self._is_lost:
            return
        self._is_lost = True
        self.chunk_s = monotonic()
        lasting = self._lasting_calls() if side is self.back else {}
        outage = Outage(self.judge, self.front, self.answers, lasting) if lasting else None
        has_successor = outage is not None and self._on_outage(outage)
        over = [call for call in self.calls.values() if not has_successor or call.stream not in lasting]
        for call in over if has_successor else ():
            self.answers.end(call.stream, is_reset=True)
            text = "kepd: the container runtime has closed the connection"
            self.front.insert(http2.refusal_frame(call.stream, UNAVAILABLE, text, is_opened=call.is_opened))
            self.end(call, None)
        self.back.close()
        self.back.transport = None
        if outage is not None and has_successor:
            outage.take_over(min(self._last_stream, self.goaway_stream))
            self._on_lost(self)
        else:
            self.front.close()
            self.front.transport = None
            self._end_in_turns(over)

    def _end_in_turns(self, over: list[ProxyCall]) -> None:
        """There may be thousands, on each of many connections that end together."""
        self.chunk_s = monotonic()
        self.room.begin_turn(self.chunk_s)
        while over:
            self.end(over.pop(), None)
            if over and monotonic() > self.room.turn_ends_s:
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
        if self.back.transport is None and side.transport is not None and not self._is_lost:
            # Python 3.11.2, which Debian 12 has, reads on where the pause came with the connection itself.
            side.pending += data
            side.transport.resume_reading()
            side.transport.pause_reading()
            return
        self.chunk_s = monotonic()
        self.room.begin_turn(self.chunk_s)
        buffer = side.pending + data if side.pending else data
        try:
            start = self._read_preface(buffer) if not self._has_preface else 0
            if start is None:
                side.pending = buffer
                return
            side.walk(buffer, start, self._client_frame, self.room)
        except (Broken, ValueError) as error:
            self._complain(error)
            return
        self.unblock()

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

    def _client_frame(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """None: the frame passes as it is."""
        if kind == http2.DATA:
            call = self.calls.get(stream)
            if call is None and stream in self._refused:
                return self._drop_rest(stream, flags, whole)
            if call is None or call.request is None:
                return self.requests.carry(stream, whole)
            return self._request_data(call, flags, whole)
        if kind in (http2.HEADERS, http2.CONTINUATION):
            headers = self.front.read_headers(kind, flags, stream, whole)
            if headers is not None and stream > self._last_stream:
                call = self._begin(stream, headers)
                if self._traces is not None:
                    is_whole = kind == http2.HEADERS
                    return self._traces.begin(call, headers, self.front.block, flags if is_whole else 0)
            return None
        self._charge(RESETS if kind == http2.RESET else OTHERS)
        if kind == http2.WINDOW:
            return self.credited(self.answers, self.front, stream, whole)
        if kind == http2.RESET:
            if stream in self._refused:
                del self._refused[stream]
                return b""
            self.reset(stream)
        elif kind == http2.SETTINGS:
            self.settings(self.front, self.answers, self.requests, flags, whole)
        return None

    def _charge(self, what: str) -> None:
        owed_s = self.room.meter.take(self.pid, what, self.chunk_s)
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
                deadline_s = None if allowed_s is None else self.chunk_s + allowed_s
        route = ROUTES.get(path)
        call = ProxyCall(self, stream, path.decode("ascii", "replace"), route, self.chunk_s, deadline_s)
        if route is not None:
            call.request = bytearray()
            call.answer = bytearray() if route.keeps_answer else None
            call.withheld = [] if route.holding is Holding.WHOLE else None
        self.requests.begin(stream)
        self.answers.begin(stream)
        self.calls[stream] = call
        return call

    def _request_data(self, call: ProxyCall, flags: int, whole: bytes) -> bytes | None:
        """A piece of a request that is read along; with the last one it is judged."""
        call.is_sent = call.is_sent or bool(flags & http2.END_STREAM)
        if call.held is not None:
            call.held.append(whole)
            self.requests.advance(CONNECTION, flow_bytes([whole]))
            return b""
        if call.is_judged or call.request is None:
            return self.requests.carry(call.stream, whole)
        content = http2.data_of(flags, whole[HEAD_BYTES:])
        if not self.room.keep(call, len(content)):
            call.request = None
            return self._carry(call, whole)
        call.request += content
        message = message_in(call.request)
        if message is None:
            return self._request_piece(call, flags, whole)
        call.is_judged = True
        verdict = self.judge.judge(call, message)
        call.added_s = monotonic() - self.chunk_s
        if call.is_answered:
            call.rewriting = None
        if verdict is Verdict.PASS:
            return self._carry(call, whole)
        if isinstance(verdict, Refusal):
            return self._refuse(call, verdict, flow_bytes([whole]))
        was_advanced = flow_bytes(call.withheld or ())
        passed = call.keep_back(flags, whole)
        self.requests.advance(CONNECTION, flow_bytes(call.held or ()) - was_advanced)
        return self.requests.carry_all(call.stream, [passed]) if passed else b""

    def _request_piece(self, call: ProxyCall, flags: int, whole: bytes) -> bytes | None:
        """A piece without a whole message so far. It passes at once, unless the request may have to change."""
        size = len(call.request or b"")
        most = min(MOST_WITHHELD_BYTES, self.requests.first_window // 2)
        if call.withheld is None or size > most or flags & http2.END_STREAM:
            return self._carry(call, whole)
        call.withheld.append(whole)
        self.requests.advance(CONNECTION, flow_bytes([whole]))
        return b""

    def _carry(self, call: ProxyCall, whole: bytes) -> bytes | None:
        """A piece of a request after those that waited for it. None: it passes as it is."""
        if not call.withheld:
            call.withheld = None
            return self.requests.carry(call.stream, whole)
        return self.requests.carry_all(call.stream, [*call.take_withheld(), whole])

    def _refuse(self, call: ProxyCall, refusal: Refusal, dropped_bytes: int = 0) -> bytes:
        """The answer to the client, and what the runtime gets. `dropped_bytes`: of the frame that is under way."""
        if call.trace is not None:
            call.trace.is_refused = True
        self.front.insert(http2.refusal_frame(call.stream, refusal.code, refusal.text))
        self.requests.drop(dropped_bytes)
        if not call.is_sent:
            self.front.insert(http2.reset_frame(call.stream, http2.NO_ERROR))
            self._refused[call.stream] = None
            if len(self._refused) > MOST_REFUSED_STREAMS:
                del self._refused[next(iter(self._refused))]
        self.requests.end(call.stream, is_reset=True)
        self.end(call, refusal.code)
        return http2.reset_frame(call.stream)

    def _drop_rest(self, stream: int, flags: int, whole: bytes) -> bytes:
        if flags & http2.END_STREAM:
            del self._refused[stream]
        self.requests.drop(flow_bytes([whole]))
        return b""

    # both ways

    def credited(self, ledger: FlowControl, receiver: ConnectionEnd, stream: int, whole: bytes) -> bytes | None:
        """The receiver takes more: what waits for that goes on, and what the sender is not owed is taken off."""
        credit_bytes = int.from_bytes(whole[HEAD_BYTES:], "big") & http2.STREAM
        left_bytes = ledger.credited(stream, credit_bytes)
        if ledger.has_queue:
            receiver.insert(ledger.pump())
        if left_bytes == credit_bytes:
            return None
        return http2.window_frame(stream, left_bytes) if left_bytes else b""

    def settings(self, side: ConnectionEnd, received: FlowControl, sent: FlowControl, flags: int, whole: bytes) -> None:
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

    def unblock(self) -> None:
        """Go on with what waited for the data of a stream, where that has gone on by now."""
        if self.back.blocked_stream and not self.answers.is_waiting(self.back.blocked_stream):
            self.back.set_reading(blocked_stream=0)
            self._answer_frames.take(b"")

    def reset(self, stream: int) -> None:
        """Either end gave it up: what waits of it goes nowhere."""
        for ledger in (self.requests, self.answers):
            ledger.end(stream, is_reset=True)
        self.end(self.calls.get(stream), None)

    def end(self, call: ProxyCall | None, code: int | None) -> None:
        if call is None or call.is_over:
            return
        del self.calls[call.stream]
        self.room.leave(call)
        self.answers.end(call.stream, is_reset=False)
        self.requests.end(call.stream, is_reset=False)
        if call.held or call.withheld:
            self.requests.drop(flow_bytes([*(call.held or ()), *(call.withheld or ())]))
        if call.rewriting is not None:
            self.answers.drop(call.rewriting.waiting_bytes)
        call.code, call.is_over, call.held, call.withheld = code, True, None, None
        call.added_s += monotonic() - self.chunk_s
        self.judge.finish(call)
        if call.trace is not None and self._traces is not None:
            self._traces.end(call, call.trace)

    # for the judge, through the call

    def release(self, call: ProxyCall, frames: Sequence[bytes]) -> None:
        """A held request goes on."""
        self.back.insert(self.requests.carry_all(call.stream, frames))

    def refuse(self, call: ProxyCall, refusal: Refusal) -> None:
        self.chunk_s = monotonic()
        self.back.insert(self._refuse(call, refusal))

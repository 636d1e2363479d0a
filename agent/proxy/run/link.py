# SPDX-License-Identifier: Apache-2.0
"""One connection of a client and the connection to the runtime that belongs to it.

    client ══ front ══▶ frames ══▶ back ══ runtime        every frame passes as it came; only a call that a gate
           ◀═════════ frames ◀═════════                    holds, refuses or rewrites is touched

Invariant: each end sees a legal HTTP/2 connection, and one that differs from a direct one only by the verdicts.

- Header blocks pass byte for byte, for the two ends share one compression state; they are read along by a decoder of
  our own, and an answer of the proxy uses no entry of that state.
- Frames go on whole and in order. A held request is kept as the frames that came, and goes on as they are, or with
  content of the same length in them.
- Windows are made good by `frames/credit.py` wherever bytes do not pass.
- A frame of ours is inserted between frames, never inside a block of headers.
- A refused stream is closed on both sides: the client has an answer with END_STREAM, the runtime a reset, and what the
  client still sends on it is dropped and credited.

Owns: both transports, the calls on them, and the few frames that are made here.
Never: decides about a call (the judge does), or joins two clients on one connection: whoever stops reading, sends
garbage or hangs up is alone with it. It lives from the accept until either end closes.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import cast

import structlog

from agent.proxy.frames import layout as http2
from agent.proxy.frames.credit import Credit, flow_bytes
from agent.proxy.frames.hpack import HeaderDecoder, Headers
from agent.proxy.frames.layout import HEAD, HEAD_BYTES, fragment_of, message_in
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.frames.routes import ROUTES, Holding
from agent.proxy.run.call import CallJudge, ProxyCall, Refusal, Verdict

log = structlog.get_logger(plane="proxy")

FrameHandler = Callable[[int, int, int, bytes], bytes | None]

MOST_HEADER_BYTES = 1 << 20
# Requests beyond this pass unread; a kubelet sends 16 MiB at most, and the runtime says so to whoever sends more.
MOST_KEPT_BYTES = 16 << 20
# A request that may have to change is kept until it is whole, up to this size; the smallest window is 64 KiB.
MOST_WITHHELD_BYTES = 32 << 10
# Streams refused before their request had ended whose rest may still come. The rest of older ones goes to the runtime,
# which ignores it.
MOST_REFUSED_STREAMS = 1000
FLUSH_S = 5.0


class Broken(Exception):
    """A peer breaks the protocol. `error` is HTTP/2's number."""

    def __init__(self, error: int, text: str) -> None:
        super().__init__(text)
        self.error = error


class Side(asyncio.Protocol):
    def __init__(self, link: "Link", take: Callable[[bytes], None]) -> None:
        self.link = link
        self.take = take
        self.transport: asyncio.Transport | None = None
        self.pending = b""
        self.largest_frame = http2.FIRST_LARGEST_FRAME
        self.decoder = HeaderDecoder()
        self.block = b""
        self.block_stream = 0
        self.block_ends_stream = False
        self.own = b""
        self.is_filled = False

    @property
    def other(self) -> "Side":
        return self.link.back if self is self.link.front else self.link.front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.link.connected(self)

    def data_received(self, data: bytes) -> None:
        self.take(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self.link.lost()

    def write(self, data: bytes) -> None:
        if self.transport is not None and data:
            self.transport.write(data)

    def insert(self, frames: bytes) -> None:
        """Send frames that the proxy made, as soon as they would not part a block of headers (RFC 9113, 6.10)."""
        self.own += frames
        self.flush_own()

    def flush_own(self) -> None:
        if self.own and not self.is_filled and not self.other.block_stream:
            frames, self.own = self.own, b""
            self.write(frames)

    def close(self) -> None:
        """After what is written has been sent, but not for ever."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.close()
            asyncio.get_running_loop().call_later(FLUSH_S, transport.abort)


class Link:
    def __init__(self, judge: CallJudge, on_ready: Callable[["Link"], None], on_lost: Callable[["Link"], None]) -> None:
        self._judge = judge
        self._on_ready = on_ready
        self._on_lost = on_lost
        self.front = Side(self, self._from_client)
        self.back = Side(self, self._from_runtime)
        self.calls: dict[int, ProxyCall] = {}
        self._credit = Credit()
        self._last_stream = 0
        self._refused: dict[int, None] = {}
        self._has_preface = False
        self._is_lost = False
        self._chunk_s = 0.0

    # the two ends

    def connected(self, side: Side) -> None:
        """A transport is there: the client's first, which waits for the runtime's."""
        if side is self.front and side.transport is not None:
            side.transport.pause_reading()
            self._on_ready(self)
        elif self.front.transport is not None:
            self.front.transport.resume_reading()

    def lost(self) -> None:
        """One end is gone, so is the other: what was under way fails as it would without us."""
        if self._is_lost:
            return
        self._is_lost = True
        self._chunk_s = monotonic()
        for call in list(self.calls.values()):
            self._end(call, None)
        self.front.close()
        self.back.close()
        self._on_lost(self)

    def say_goaway(self) -> None:
        self.front.insert(http2.goaway_frame(http2.NO_ERROR))

    def close(self) -> None:
        self.front.close()
        self.back.close()

    def awaited(self) -> list[ProxyCall]:
        """Calls under way that clients wait for."""
        return [call for call in self.calls.values() if call.route is None or not call.route.is_endless]

    # from the client

    def _from_client(self, data: bytes) -> None:
        side = self.front
        self._chunk_s = monotonic()
        buffer = side.pending + data if side.pending else data
        try:
            start = self._read_preface(buffer) if not self._has_preface else 0
            if start is None:
                side.pending = buffer
                return
            self._walk(side, buffer, start, self._client_frame)
        except (Broken, ValueError) as error:
            self._complain(error)

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

    def _walk(self, side: Side, buffer: bytes, start: int, handle: FrameHandler) -> None:
        """Send whole frames on; what was handled otherwise is left out of the pieces."""
        side.other.is_filled = True
        try:
            self._pass_frames(side, buffer, start, handle)
        finally:
            side.other.is_filled = False
        side.other.flush_own()

    def _pass_frames(self, side: Side, buffer: bytes, start: int, handle: FrameHandler) -> None:
        other = side.other
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
        other.write(buffer[start:position])
        side.pending = buffer[position:]

    def _client_frame(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """None: the frame passes as it is."""
        if kind == http2.DATA:
            call = self.calls.get(stream)
            if call is not None:
                return None if call.request is None else self._request_data(call, flags, whole)
            return self._drop_rest(stream, flags, whole) if stream in self._refused else None
        if kind in (http2.HEADERS, http2.CONTINUATION):
            headers = self._headers(self.front, kind, flags, stream, whole)
            if headers is not None and stream > self._last_stream:
                self._begin(stream, headers)
        elif kind == http2.WINDOW:
            return self._without_debt(stream, whole) if self._credit.has_debts else None
        elif kind == http2.RESET:
            if stream in self._refused:
                del self._refused[stream]
                return b""
            self._end(self.calls.get(stream), None)
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            self.front.largest_frame = http2.largest_frame_in(whole[HEAD_BYTES:], self.front.largest_frame)
        return None

    def _begin(self, stream: int, headers: Headers) -> None:
        self._last_stream = stream
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
        self.calls[stream] = call

    def _request_data(self, call: ProxyCall, flags: int, whole: bytes) -> bytes | None:
        """A piece of a request that is read along; with the last one it is judged."""
        call.is_sent = call.is_sent or bool(flags & http2.END_STREAM)
        if call.held is not None:
            call.held.append(whole)
            return b""
        if call.is_judged or call.request is None:
            return None
        call.request += http2.data_of(flags, whole[HEAD_BYTES:])
        message = message_in(call.request)
        if message is None:
            return self._request_piece(call, flags, whole)
        call.is_judged = True
        verdict = self._judge.judge(call, message)
        call.added_s = monotonic() - self._chunk_s
        if verdict is Verdict.PASS:
            return call.take_withheld(whole)
        if isinstance(verdict, Refusal):
            return self._refuse(call, verdict, flow_bytes([whole]))
        return call.keep_back(flags, whole)

    def _request_piece(self, call: ProxyCall, flags: int, whole: bytes) -> bytes | None:
        """A piece without a whole message so far. It passes at once, unless the request may have to change."""
        size = len(call.request or b"")
        if size > MOST_KEPT_BYTES:
            call.request = None
        if call.withheld is None:
            return None
        if size > MOST_WITHHELD_BYTES or flags & http2.END_STREAM:
            passed, call.withheld = call.take_withheld(whole), None
            return passed
        call.withheld.append(whole)
        return b""

    def _refuse(self, call: ProxyCall, refusal: Refusal, dropped_bytes: int = 0) -> bytes:
        """The answer to the client, and what the runtime gets. `dropped_bytes`: of the frame that is under way."""
        self.front.insert(http2.refusal_frame(call.stream, refusal.code, refusal.text) + Credit.drop(dropped_bytes))
        if not call.is_sent:
            self.front.insert(http2.reset_frame(call.stream, http2.NO_ERROR))
            self._refused[call.stream] = None
            if len(self._refused) > MOST_REFUSED_STREAMS:
                del self._refused[next(iter(self._refused))]
        self._end(call, refusal.code)
        return http2.reset_frame(call.stream)

    def _drop_rest(self, stream: int, flags: int, whole: bytes) -> bytes:
        if flags & http2.END_STREAM:
            del self._refused[stream]
        self.front.insert(Credit.drop(flow_bytes([whole])))
        return b""

    def _without_debt(self, stream: int, whole: bytes) -> bytes | None:
        """The client credits bytes that the runtime never sent; those are taken off."""
        credit_bytes = int.from_bytes(whole[HEAD_BYTES:], "big") & http2.STREAM
        left_bytes = self._credit.pass_on(stream, credit_bytes)
        if left_bytes == credit_bytes:
            return None
        return http2.window_frame(stream, left_bytes) if left_bytes else b""

    # from the runtime

    def _from_runtime(self, data: bytes) -> None:
        side = self.back
        self._chunk_s = monotonic()
        try:
            self._walk(side, side.pending + data if side.pending else data, 0, self._runtime_frame)
        except (Broken, ValueError) as error:
            log.warning("proxy_runtime_broke_protocol", error=str(error))
            self.lost()

    def _runtime_frame(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """None: the frame passes as it is."""
        if kind == http2.DATA:
            call = self.calls.get(stream)
            if call is not None and call.rewriting is not None:
                return self._rewritten(call, call.rewriting, http2.data_of(flags, whole[HEAD_BYTES:]), whole)
            if call is not None and call.answer is not None and len(call.answer) < MOST_KEPT_BYTES:
                call.answer += http2.data_of(flags, whole[HEAD_BYTES:])
        elif kind in (http2.HEADERS, http2.CONTINUATION):
            headers = self._headers(self.back, kind, flags, stream, whole)
            if headers is not None:
                return self._answer_headers(stream, headers)
        elif kind == http2.PROMISE:
            # It would carry headers that we do not read; no gRPC server sends one.
            raise Broken(http2.PROTOCOL_ERROR, "an unrequested push promise")
        elif kind == http2.RESET:
            self._end(self.calls.get(stream), None)
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            self.back.largest_frame = http2.largest_frame_in(whole[HEAD_BYTES:], self.back.largest_frame)
        return None

    def _answer_headers(self, stream: int, headers: Headers) -> bytes | None:
        call = self.calls.get(stream)
        if call is not None and self.back.block_ends_stream:
            code, call.text = http2.status_of(headers)
            self._end(call, code)
        return None

    def _rewritten(self, call: ProxyCall, rewriting: Rewriting, content: bytes, whole: bytes) -> bytes:
        """Answers go on message by message, changed or not, and both windows stay right."""
        out, more_bytes = rewriting.take(content, lambda message: self._judge.rewrite(call, message))
        padding_bytes = flow_bytes([whole]) - len(content)
        if rewriting.has_given_up:
            call.rewriting = None
        self.back.insert(self._credit.resize(call.stream, more_bytes - padding_bytes))
        most, flags = self.front.largest_frame, whole[4] & http2.END_STREAM
        pieces = [out[start : start + most] for start in range(0, len(out), most)] or [b""] * bool(flags)
        frames = [http2.data_frame(call.stream, piece) for piece in pieces[:-1]]
        return b"".join([*frames, *(http2.data_frame(call.stream, one, ends=bool(flags)) for one in pieces[-1:])])

    # both ways

    def _headers(self, side: Side, kind: int, flags: int, stream: int, whole: bytes) -> Headers | None:
        payload = whole[HEAD_BYTES:]
        if kind == http2.HEADERS:
            side.block, side.block_stream = fragment_of(flags, payload), stream
            side.block_ends_stream = bool(flags & http2.END_STREAM)
        elif stream == side.block_stream:
            side.block += payload
        else:
            raise Broken(http2.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        if not flags & http2.END_HEADERS:
            if len(side.block) > MOST_HEADER_BYTES:
                raise Broken(http2.PROTOCOL_ERROR, f"more than {MOST_HEADER_BYTES} bytes of headers")
            return None
        headers, side.block_stream = side.decoder.decode(side.block), 0
        return headers

    def _end(self, call: ProxyCall | None, code: int | None) -> None:
        if call is None or call.is_over:
            return
        del self.calls[call.stream]
        self._credit.end(call.stream)
        self.front.insert(Credit.drop(flow_bytes([*(call.held or ()), *(call.withheld or ())])))
        if call.rewriting is not None:
            self.back.insert(Credit.drop(call.rewriting.waiting_bytes))
        call.code, call.is_over, call.held, call.withheld = code, True, None, None
        call.added_s += monotonic() - self._chunk_s
        self._judge.finish(call)

    # for the judge, through the call

    def release(self, frames: bytes) -> None:
        """A held request goes on."""
        self.back.insert(frames)

    def refuse(self, call: ProxyCall, refusal: Refusal) -> None:
        self._chunk_s = monotonic()
        self.back.insert(self._refuse(call, refusal))

# SPDX-License-Identifier: Apache-2.0
"""Frames from the runtime: answers pass as they came, but for those that are read along or rewritten."""

from time import monotonic
from typing import TYPE_CHECKING

import structlog

from agent.proxy.frames import layout as http2
from agent.proxy.frames.credit import flow_bytes
from agent.proxy.frames.layout import HEAD_BYTES
from agent.proxy.frames.rewriting import Rewriting
from agent.proxy.run.call import ProxyCall
from agent.proxy.run.link_limits import Broken

if TYPE_CHECKING:
    from agent.proxy.run.link import ProxyConnection

log = structlog.get_logger(plane="proxy")


class AnswerFrames:
    """Of one connection."""

    def __init__(self, link: "ProxyConnection") -> None:
        self._link = link

    def take(self, data: bytes) -> None:
        side = self._link.back
        if side.blocked_stream:
            side.pending += data
            return
        self._link.chunk_s = monotonic()
        self._link.room.begin_turn(self._link.chunk_s)
        try:
            side.walk(side.pending + data if side.pending else data, 0, self._frame, self._link.room)
        except (Broken, ValueError) as error:
            log.warning("proxy_runtime_broke_protocol", error=str(error))
            self._link.lost()
            return
        self._link.unblock()

    def _frame(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """None: the frame passes as it is."""
        if kind == http2.DATA:
            return self._data(stream, flags, whole)
        if kind in (http2.HEADERS, http2.CONTINUATION):
            return self._headers(kind, flags, stream, whole)
        if kind == http2.WINDOW:
            return self._link.credited(self._link.requests, self._link.back, stream, whole)
        if kind == http2.PROMISE:
            # It would carry headers that we do not read; no gRPC server sends one.
            raise Broken(http2.PROTOCOL_ERROR, "an unrequested push promise")
        if kind == http2.RESET:
            self._link.reset(stream)
        elif kind == http2.SETTINGS:
            self._link.settings(self._link.back, self._link.requests, self._link.answers, flags, whole)
        elif kind == http2.GOAWAY:
            self._link.goaway_stream = int.from_bytes(whole[HEAD_BYTES : HEAD_BYTES + 4], "big") & http2.STREAM
        return None

    def _data(self, stream: int, flags: int, whole: bytes) -> bytes | None:
        call = self._link.calls.get(stream)
        if call is None or call.route is None:
            return self._link.answers.carry(stream, whole)
        if call.rewriting is not None:
            return self._rewritten(call, call.rewriting, flags, whole)
        call.is_answered = True
        if call.answer is not None and self._link.room.keep(call, len(whole)):
            call.answer += http2.data_of(flags, whole[HEAD_BYTES:])
        if flags & http2.END_STREAM:
            self._link.end(call, None)
        return self._link.answers.carry(stream, whole)

    def _headers(self, kind: int, flags: int, stream: int, whole: bytes) -> bytes | None:
        """Headers come behind the data of their stream, and no block passes another."""
        flushed = b""
        call = self._link.calls.get(stream)
        if kind == http2.HEADERS and call is not None and call.rewriting is not None:
            # What waits is no whole message and becomes none any more.
            flushed = self._link.answers.push(stream, call.rewriting.flush())
        if kind == http2.HEADERS and self._link.answers.is_waiting(stream):
            self._link.front.insert(flushed)
            self._link.back.set_reading(blocked_stream=stream)
            return None
        headers = self._link.back.read_headers(kind, flags, stream, whole)
        if headers is not None and call is not None:
            call.is_opened = True
            if self._link.back.block_ends_stream:
                code, call.text = http2.status_of(headers)
                self._link.end(call, code)
        return flushed + whole if flushed else None

    def _rewritten(self, call: ProxyCall, rewriting: Rewriting, flags: int, whole: bytes) -> bytes:
        """Answers go on message by message, changed or not."""
        content, is_last = http2.data_of(flags, whole[HEAD_BYTES:]), bool(flags & http2.END_STREAM)
        out, more_bytes = rewriting.take(content, lambda message: self._link.judge.rewrite(call, message))
        if is_last:
            out += rewriting.flush()
        if rewriting.has_given_up:
            call.rewriting = None
        padding_bytes = flow_bytes([whole]) - len(content)
        self._link.answers.resize(call.stream, more_bytes - padding_bytes)
        self._link.answers.advance(call.stream, rewriting.to_advance(self._link.answers.least_piece))
        passed = self._link.answers.push(call.stream, out, is_last=is_last)
        if is_last:
            self._link.end(call, None)
        return passed

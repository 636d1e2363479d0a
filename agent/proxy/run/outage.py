# SPDX-License-Identifier: Apache-2.0
"""A client's connection that outlives the runtime's, for the event streams on it.

    client ══ front ══▶ Outage ◀── events of the runtime, asked for anew until they flow

A kubelet that loses its event stream five times goes back to polling until it is restarted, so a restart of containerd
ends no such stream. All other calls have ended as they would without us, and GOAWAY leads the client's next
calls to a connection of their own. What is left here is small: the client's credits, its pings, and the end of its
streams. Its headers are not read any more, for the calls in them are made again elsewhere.

Owns: the front's transport. Lives until the client ends its last stream or hangs up.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import structlog

from agent.model.clock import Clock
from agent.model.runtime.error import NotImplementedByRuntime, RuntimeCallFailed
from agent.proxy.frames import layout as http2
from agent.proxy.frames.credit import FlowControl
from agent.proxy.frames.layout import HEAD, HEAD_BYTES, framed
from agent.proxy.run.call import CallJudge, ProxyCall
from agent.proxy.run.side import ConnectionEnd

log = structlog.get_logger(plane="proxy")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
UNIMPLEMENTED, UNAVAILABLE = 12, 14

Subscribe = Callable[[], AsyncIterator[bytes]]


class Outage:
    def __init__(
        self, judge: CallJudge, front: ConnectionEnd, answers: FlowControl, calls: dict[int, ProxyCall]
    ) -> None:
        """`answers`: the ledger of what goes to the client. `calls`: its event streams."""
        self._judge = judge
        self._answers = answers
        self.calls = calls
        self.front, self.back = front, ConnectionEnd(self, lambda _data: None)
        self.is_over = asyncio.Event()
        self._has_moved = asyncio.Event()
        self._largest_frame = front.other.largest_frame

    def take_over(self, last_stream: int) -> None:
        """Go on in place of the link that lost its runtime; later streams than `last_stream` belong elsewhere."""
        self.front.link, self.front.take = self, self._from_client
        self.front.insert(http2.goaway_frame(http2.NO_ERROR, last_stream=last_stream))
        for call in self.calls.values():
            if not call.is_opened:
                call.is_opened = True
                self.front.insert(http2.opening_frame(call.stream))
        self.front.set_reading(is_choked=False)

    # as the link before

    def connected(self, side: ConnectionEnd) -> None:
        """Never: the client is connected, and there is no other end."""

    def lost(self, side: ConnectionEnd | None = None) -> None:  # noqa: ARG002  # there is one
        for call in list(self.calls.values()):
            self._end(call, None)
        self.is_over.set()

    def close(self) -> None:
        self.front.close()

    def say_goaway(self) -> None:
        """The client has heard it."""

    def awaited(self) -> list[ProxyCall]:
        """None: an event stream has no end to wait for."""
        return []

    # from the client

    def _from_client(self, data: bytes) -> None:
        buffer, position = self.front.pending + data, 0
        while len(buffer) - position >= HEAD_BYTES:
            high, low, kind, flags, stream = HEAD.unpack_from(buffer, position)
            length = high << 16 | low
            if length > self._largest_frame:
                self.front.insert(http2.goaway_frame(http2.FRAME_SIZE_ERROR, f"a frame of {length} bytes", 0))
                self.lost()
                return
            stop = position + HEAD_BYTES + length
            if stop > len(buffer):
                break
            self._frame(kind, flags, stream & http2.STREAM, buffer[position + HEAD_BYTES : stop])
            position = stop
        self.front.pending = buffer[position:]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == http2.WINDOW:
            self._answers.credited(stream, int.from_bytes(payload, "big") & http2.STREAM)
            self._pump()
        elif kind == http2.RESET and stream in self.calls:
            self._answers.end(stream, is_reset=True)
            self._end(self.calls[stream], None)
        elif kind == http2.PING and not flags & http2.ACK:
            self.front.insert(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            self._answers.announced(http2.setting_in(payload, http2.FIRST_WINDOW_SETTING))
            self._answers.confirmed()
            self.front.insert(http2.frame(http2.SETTINGS, http2.ACK, 0))
            self._pump()

    def _pump(self) -> None:
        self.front.insert(self._answers.pump())
        self._has_moved.set()

    def _end(self, call: ProxyCall, code: int | None) -> None:
        del self.calls[call.stream]
        call.code, call.is_over = code, True
        self._judge.finish(call)
        self._has_moved.set()
        if not self.calls:
            self.is_over.set()

    # from the runtime

    async def follow(self, subscribe: Subscribe, clock: Clock) -> None:
        """Events, as soon as the runtime has them again, and after its next restart too."""
        pause_s = FIRST_PAUSE_S
        while self.calls:
            try:
                async for message in subscribe():
                    pause_s = FIRST_PAUSE_S
                    await self._say(message)
            except NotImplementedByRuntime as error:
                self._refuse(UNIMPLEMENTED, error.details)
            except RuntimeCallFailed as error:
                log.debug("proxy_events_wait", error=str(error))
            except Exception as error:  # noqa: BLE001  # a defect of ours ends these streams, not the proxy
                log.warning("proxy_events_failed", error=str(error))
                self._refuse(UNAVAILABLE, "kepd: cannot follow the runtime's events; its log has the cause")
            await clock.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _say(self, message: bytes) -> None:
        """To all streams; the next one has to wait until all have room."""
        for call in self.calls.values():
            self.front.insert(self._answers.push(call.stream, framed(self._judge.rewrite(call, message))))
        while self._answers.has_queue and self.calls:
            self._has_moved.clear()
            await self._has_moved.wait()

    def _refuse(self, code: int, text: str) -> None:
        for call in list(self.calls.values()):
            self.front.insert(http2.refusal_frame(call.stream, code, text, is_opened=True))
            self._end(call, code)

# SPDX-License-Identifier: Apache-2.0
"""One end of a link: its transport, and what of its bytes is not written or read yet. Changed by its link alone."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol, cast

from agent.proxy.frames import layout as http2
from agent.proxy.frames.hpack import HeaderDecoder, Headers
from agent.proxy.frames.layout import HEAD, HEAD_BYTES, fragment_of
from agent.proxy.run.link_limits import MOST_ANSWER_HEADERS, MOST_REQUEST_HEADERS, Broken

FLUSH_S = 5.0
# Of what we answer ourselves and a client leaves unread; then we read no more of it.
MOST_UNREAD_BYTES = 1 << 20


class BothEnds(Protocol):
    @property
    def front(self) -> "ConnectionEnd": ...

    @property
    def back(self) -> "ConnectionEnd": ...

    def connected(self, side: "ConnectionEnd") -> None: ...

    def lost(self, side: "ConnectionEnd | None" = None) -> None: ...


FrameHandler = Callable[[int, int, int, bytes], bytes | None]
"""Kind, flags, stream, the whole frame; None: it passes as it is."""


class Turn(Protocol):
    """When others have theirs."""

    turn_ends_s: float


class ConnectionEnd(asyncio.Protocol):
    def __init__(self, link: BothEnds, take: Callable[[bytes], None]) -> None:
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
        self.is_choked = False
        self.is_unread = False
        self.rests: asyncio.TimerHandle | None = None
        self.ends: asyncio.TimerHandle | None = None
        self.blocked_stream = 0

    @property
    def other(self) -> "ConnectionEnd":
        return self.link.back if self is self.link.front else self.link.front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.link.connected(self)

    def data_received(self, data: bytes) -> None:
        self.take(data)

    def pause_writing(self) -> None:
        self.other.set_reading(is_choked=True)

    def resume_writing(self) -> None:
        self.other.set_reading(is_choked=False)
        if self.is_unread:
            self.is_unread = False
            self.set_reading()

    def set_reading(self, *, is_choked: bool | None = None, blocked_stream: int | None = None) -> None:
        """Read on unless the other end takes no more, this one leaves our answers unread or has to rest, or the next
        frame has to wait for data of `blocked_stream`."""
        self.is_choked = self.is_choked if is_choked is None else is_choked
        self.blocked_stream = self.blocked_stream if blocked_stream is None else blocked_stream
        is_held = self.is_choked or self.is_unread or self.rests is not None or bool(self.blocked_stream)
        if self.transport is not None and is_held:
            self.transport.pause_reading()
        elif self.transport is not None:
            self.transport.resume_reading()

    def rest(self, seconds: float) -> None:
        """Read nothing for so long, from now on; what has come already is taken after that."""
        if self.rests is not None:
            self.rests.cancel()
        self.rests = asyncio.get_running_loop().call_later(seconds, self._rested)
        self.set_reading()

    def _rested(self) -> None:
        self.rests = None
        self.set_reading()
        self.take(b"")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        # A transport that is gone bears no abort.
        for timer in (self.rests, self.ends):
            if timer is not None:
                timer.cancel()
        self.link.lost(self)

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
            if self.transport is not None and self.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
                self.is_unread = True
                self.set_reading()

    def walk(self, buffer: bytes, start: int, handle: FrameHandler, turn: Turn) -> None:
        """Send whole frames on; what was handled otherwise is left out of the pieces."""
        other = self.other
        other.is_filled = True
        try:
            self._pass_frames(other, buffer, start, handle, turn)
        finally:
            other.is_filled = False
        if other.own:
            other.flush_own()

    def _pass_frames(self, other: "ConnectionEnd", buffer: bytes, start: int, handle: FrameHandler, turn: Turn) -> None:
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
            if self.blocked_stream:
                break
            if replaced is not None:
                other.write(buffer[start:position])
                other.write(replaced)
                start = stop
            position = stop
            if other.own and not self.block_stream:
                # They waited for a block of headers to end; what follows may belong to the same stream.
                other.write(buffer[start:position])
                start = position
                frames, other.own = other.own, b""
                other.write(frames)
            if monotonic() > turn.turn_ends_s:
                self.rest(0.0)
            if self.rests is not None:
                break
        other.write(buffer[start:position])
        self.pending = buffer[position:]

    def read_headers(self, kind: int, flags: int, stream: int, whole: bytes) -> Headers | None:
        payload = whole[HEAD_BYTES:]
        if kind == http2.HEADERS:
            self.block, self.block_stream = fragment_of(flags, payload), stream
            self.block_ends_stream = bool(flags & http2.END_STREAM)
        elif stream == self.block_stream:
            self.block += payload
        else:
            raise Broken(http2.PROTOCOL_ERROR, "a CONTINUATION of nothing")
        most = MOST_REQUEST_HEADERS if self is self.link.front else MOST_ANSWER_HEADERS
        if len(self.block) > most:
            raise Broken(http2.ENHANCE_YOUR_CALM, f"more than {most} bytes of headers")
        if not flags & http2.END_HEADERS:
            return None
        headers, self.block_stream = self.decoder.decode(self.block), 0
        return headers

    def close(self) -> None:
        """After what is written has been sent, but not for ever."""
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.close()
            self.ends = asyncio.get_running_loop().call_later(FLUSH_S, transport.abort)

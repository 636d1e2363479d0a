# SPDX-License-Identifier: Apache-2.0
"""A client and a runtime that speak HTTP/2 by the h2 library over a link, with everything about them left to chance.

Each end sends as its windows allow and raises on a frame that breaks the protocol: one beyond a window, between the
parts of a header block, on a stream that is over, or headers that HPACK cannot read. An end may be lazy with its
credits, which is when bytes have to wait in the link.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from random import Random

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import h2.windows

from agent.proxy.frames.layout import PREFACE
from agent.proxy.run.link import ProxyConnection
from agent.proxy.run.link_limits import BufferBudget
from agent.proxy.run.side import ConnectionEnd
from tests.proxy.frames.streams import WINDOW, Pipe, Prompt
from tests.proxy.wire import CallJudge

SETTINGS, GOAWAY, HEAD_BYTES = 4, 7, 9
FIRST_WINDOW = h2.settings.SettingCodes.INITIAL_WINDOW_SIZE
LARGEST_FRAME = h2.settings.SettingCodes.MAX_FRAME_SIZE
HEADERS = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), ("content-type", "application/grpc")]


class Outgoing:
    """What is left to be said on a stream."""

    def __init__(self, content: bytes, *, ends: bool, trailers: list[tuple[str, str]] | None) -> None:
        self.content, self.ends, self.trailers = content, ends, trailers


class Talker:
    def __init__(self, side: ConnectionEnd, *, is_client: bool, random: Random) -> None:
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(is_client, header_encoding="utf-8"))
        self.http._inbound_flow_control_window_manager = Prompt(WINDOW)
        self.http.initiate_connection()
        self.side, self.pipe, self.random = side, Pipe(), random
        self.outgoing: dict[int, Outgoing] = {}
        self.bodies: dict[int, bytes] = {}
        self.status: dict[int, str] = {}
        self.over: set[int] = set()
        self.reset: set[int] = set()
        self.goaways = 0
        self.has_announced = True
        self.is_lazy = False
        self._owed: deque[tuple[int, int]] = deque()
        self._inbox = b""
        self._has_preface = is_client
        self.meanwhile: Callable[[], None] = lambda: None

    def say(self, stream: int, content: bytes, *, ends: bool, trailers: list[tuple[str, str]] | None = None) -> None:
        self.outgoing[stream] = Outgoing(content, ends=ends, trailers=trailers)

    def give_up(self, stream: int) -> None:
        self.outgoing.pop(stream, None)
        if stream not in self.over | self.reset:
            self.reset.add(stream)
            try:
                self.http.reset_stream(stream, 8)
            except h2.exceptions.StreamClosedError:
                return

    def announce(self, setting: h2.settings.SettingCodes, value: int) -> None:
        """One thing at a time: at any confirmation h2 takes all that it announced as confirmed."""
        if not self.has_announced:
            self.has_announced = True
            self.http.update_settings({setting: value})

    def exchange(self) -> bool:
        """Send and read what is there. False: nothing was."""
        self._send_what_fits()
        if not self.is_lazy:
            self._pay()
        sent, read = self.http.data_to_send(), bytes(self.pipe.data)
        self.pipe.data.clear()
        for piece in self._pieces(sent):
            self.side.data_received(piece)
            self.meanwhile()
        for chunk in self._chunks(read):
            for piece in self._pieces(chunk):
                for event in self.http.receive_data(piece):
                    self._note(event)
        return bool(sent or read)

    @property
    def window(self) -> int:
        return self.http.outbound_flow_control_window

    def _send_what_fits(self) -> None:
        for stream, left in list(self.outgoing.items()):
            try:
                self._send(stream, left)
            except (h2.exceptions.StreamClosedError, h2.exceptions.NoSuchStreamError):
                del self.outgoing[stream]
            except h2.exceptions.ProtocolError:
                if stream not in self.reset | self.over:
                    raise
                del self.outgoing[stream]

    def _send(self, stream: int, left: Outgoing) -> None:
        while left.content:
            padding = self.random.choice((None, None, 0, 40))
            room = self.http.local_flow_control_window(stream) - (0 if padding is None else padding + 1)
            size = min(room, len(left.content), self.random.choice((1, 100, 5000, 16000)))
            if size <= 0:
                if padding is None:
                    return
                continue
            self.http.send_data(stream, left.content[:size], pad_length=padding)
            left.content = left.content[size:]
        if left.trailers is not None:
            self.http.send_headers(stream, left.trailers, end_stream=True)
        elif left.ends:
            self.http.end_stream(stream)
        del self.outgoing[stream]

    def _pay(self) -> None:
        while self._owed:
            stream, size = self._owed.popleft()
            self.http.acknowledge_received_data(size, stream)

    def _chunks(self, data: bytes) -> list[bytes]:
        """Whole frames without GOAWAY, at which h2 would end the connection although calls under way go on. A chunk
        ends with SETTINGS, for h2 applies what they change at the next one."""
        chunks = []
        self._inbox += data
        out, position = b"", 0
        if not self._has_preface:
            if len(self._inbox) < len(PREFACE):
                return []
            self._has_preface, out, position = True, PREFACE, len(PREFACE)
        while len(self._inbox) - position >= HEAD_BYTES:
            stop = position + HEAD_BYTES + int.from_bytes(self._inbox[position : position + 3], "big")
            if stop > len(self._inbox):
                break
            if self._inbox[position + 3] == GOAWAY:
                self.goaways += 1
            else:
                out += self._inbox[position:stop]
            if self._inbox[position + 3] == SETTINGS:
                chunks.append(out)
                out = b""
            position = stop
        self._inbox = self._inbox[position:]
        return [*chunks, out]

    def _pieces(self, data: bytes) -> list[bytes]:
        """As they may arrive: often together, sometimes cut anywhere, also within the head of a frame."""
        cuts = (
            sorted(self.random.randrange(len(data)) for _ in range(self.random.choice((0, 0, 1, 3, 8)))) if data else []
        )
        near = [cut + self.random.choice((0, 1, 9)) for cut in cuts]
        stops = sorted({*cuts, *near, len(data)})
        return [data[start:stop] for start, stop in zip([0, *stops], stops, strict=False) if data[start:stop]]

    def _note(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.DataReceived():
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                self._owed.append((event.stream_id, event.flow_controlled_length))
            case h2.events.StreamReset():
                self.reset.add(event.stream_id)
                self.outgoing.pop(event.stream_id, None)
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                found = dict(event.headers).get("grpc-status")
                if found is not None:
                    self.status[event.stream_id] = str(found)
            case h2.events.SettingsAcknowledged():
                self.has_announced = False
            case h2.events.StreamEnded():
                self.over.add(event.stream_id)


class Conversation:
    """Client, link and runtime."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.judge = CallJudge()
        self.link = ProxyConnection(self.judge, lambda _link: None, lambda _link: None, BufferBudget(inf))
        self.client = Talker(self.link.front, is_client=True, random=random)
        self.runtime = Talker(self.link.back, is_client=False, random=random)
        self.link.front.connection_made(self.client.pipe)
        self.link.back.connection_made(self.runtime.pipe)
        self.settle()

    def settle(self) -> None:
        """Until neither end has anything left to send."""
        while self.client.exchange() | self.runtime.exchange():
            pass

    def a_while(self) -> None:
        for _ in range(self.random.randrange(4)):
            self.random.choice((self.client, self.runtime)).exchange()

    def ask(self, path: str, content: bytes, *, ends: bool, has_long_headers: bool) -> int:
        stream = self.client.http.get_next_available_stream_id()
        more = [("long", self.random.choice("xyz") * 40_000)] if has_long_headers else []
        names = [HEADERS[0], HEADERS[1], (":path", path), *HEADERS[2:], *more]
        self.client.http.send_headers(stream, names)
        self.client.say(stream, content, ends=ends)
        return stream

    def answer(self, stream: int, content: bytes, *, ends: bool, has_long_trailers: bool) -> None:
        self.runtime.http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        trailers = [("grpc-status", "0"), *([("details", "d" * 40_000)] if has_long_trailers else [])]
        self.runtime.say(stream, content, ends=ends, trailers=trailers if ends else None)

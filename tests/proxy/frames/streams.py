# SPDX-License-Identifier: Apache-2.0
"""Two ends that speak HTTP/2 by the h2 library, and a link between them, all in memory.

Bytes arrive in pieces of any size. Each end credits every byte of DATA at once, so when nothing is under way both
windows of the connection must be as large as they were at the beginning.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from math import inf
from random import Random

import h2.config
import h2.connection
import h2.events
import h2.windows

from agent.proxy.run.link import ProxyConnection
from agent.proxy.run.link_limits import BufferBudget
from agent.proxy.run.side import ConnectionEnd
from tests.proxy.wire import CallJudge

__all__ = ["Network"]

WINDOW = 65535


class Prompt(h2.windows.WindowManager):
    """Credits at once, where h2 waits for half a window."""

    def process_bytes(self, size: int) -> int:
        self.current_window_size += size
        return size


class Pipe(asyncio.Transport):
    """What a side of the link writes, until the end it leads to reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.is_over = False

    def write(self, data: bytes) -> None:
        self.data += data

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        """Whoever reads it reads on."""
        return 0


class End:
    """A client or a runtime. `events` has what it was sent, by stream."""

    def __init__(self, side: ConnectionEnd, *, is_client: bool, random: Random) -> None:
        config = h2.config.H2Configuration(client_side=is_client, header_encoding="utf-8")
        self.http = h2.connection.H2Connection(config)
        self.http._inbound_flow_control_window_manager = Prompt(WINDOW)
        self.http.initiate_connection()
        self.side, self.pipe, self._random = side, Pipe(), random
        self.bodies: dict[int, bytes] = {}
        self.ended: Counter[int] = Counter()
        self.reset: set[int] = set()
        self.status: dict[int, str] = {}
        self.on_request_end: Callable[[int], None] = lambda _stream: None

    def exchange(self) -> bool:
        """Send and read what is there. False: nothing was."""
        sent, read = self.http.data_to_send(), bytes(self.pipe.data)
        self.pipe.data.clear()
        for piece in self._pieces(sent):
            self.side.data_received(piece)
        for piece in self._pieces(read):
            for event in self.http.receive_data(piece):
                self._note(event)
        return bool(sent or read)

    def _pieces(self, data: bytes) -> list[bytes]:
        pieces = []
        while data:
            size = self._random.choice((1, 7, 9, 10, 100, 5000, 1 << 20))
            pieces.append(data[:size])
            data = data[size:]
        return pieces

    def _note(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            self.http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamReset):
            self.reset.add(event.stream_id)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            found = dict(event.headers).get("grpc-status")
            if found is not None:
                self.status[event.stream_id] = str(found)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended[event.stream_id] += 1
            self.on_request_end(event.stream_id)

    @property
    def window(self) -> int:
        """How much it may send on the connection."""
        return self.http.outbound_flow_control_window


class Network:
    """Client, link and runtime."""

    def __init__(self, seed: int = 0) -> None:
        self.random = Random(seed)
        self.judge = CallJudge()
        self.link = ProxyConnection(self.judge, lambda _link: None, lambda _link: None, BufferBudget(inf))
        self.client = End(self.link.front, is_client=True, random=self.random)
        self.runtime = End(self.link.back, is_client=False, random=self.random)
        self.link.front.connection_made(self.client.pipe)
        self.link.back.connection_made(self.runtime.pipe)
        self.settle()

    def settle(self) -> None:
        """Until nobody has anything left to send."""
        while self.client.exchange() | self.runtime.exchange():
            pass

    def ask(self, path: str) -> int:
        """Open a call."""
        stream = self.client.http.get_next_available_stream_id()
        names = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"))
        self.client.http.send_headers(stream, [*names, ("content-type", "application/grpc"), ("te", "trailers")])
        return stream

    def answer(self, stream: int, body: bytes, *, padding: int | None = None, has_end: bool = True) -> None:
        """By the runtime; trailers with status 0 follow."""
        http = self.runtime.http
        http.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc")])
        if body:
            http.send_data(stream, body, pad_length=padding)
        if has_end:
            http.send_headers(stream, [("grpc-status", "0")], end_stream=True)

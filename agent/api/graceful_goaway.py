# SPDX-License-Identifier: Apache-2.0
"""How a connection is given up so that no call on it is lost: GOAWAY with the number of the last call that was taken.

Frames are told apart, never read: what a client sends after the number is not passed on, and HTTP/2 lets it send that
anew on another connection, which waits for the next process. gRPC's own server says first that it will take no more and
cancels whatever comes until the client has heard it; on a busy machine these are many.

A PING goes with the farewell: who answers it has read what stood before it, and sends nothing that would be lost.

Source: RFC 9113, sections 3.4, 4.1, 5.1.1, 6.7, 6.8, 10.5.
"""

import struct

import msgspec

PREFACE_BYTES = 24
# gRPC takes 8 KiB of headers, and reads on to the end of any block to throw it away.
MOST_HEADER_BYTES = 16 << 10
HEAD = struct.Struct(">HBBBI")
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
ENHANCE_YOUR_CALM = 11
# So much of a frame that serves no call, as for one that has ended, counts as another frame.
OTHER_BYTES = 512
END_STREAM, END_HEADERS = 1, 4
ACK = 1
STREAM_MASK = 0x7FFFFFFF


class _Cutter:
    """Cuts the bytes of one direction into heads and bodies of frames, however they arrive."""

    def __init__(self, before: int) -> None:
        self.left = before
        """Bytes until the next head."""
        self._head = b""
        self._is_in_block = False

    @property
    def is_between(self) -> bool:
        """Whether a frame could be put in here: not inside another one, nor inside a block of headers."""
        return not self.left and not self._head and not self._is_in_block

    def cut(self, chunk: bytes) -> list[tuple[bytes, tuple[int, int, int, int] | None]]:
        """Pieces in order; a whole head has its type, flags, stream and length of its body beside it."""
        pieces: list[tuple[bytes, tuple[int, int, int, int] | None]] = []
        at = 0
        while at < len(chunk):
            if self.left:
                body = chunk[at : at + self.left]
                self.left -= len(body)
                at += len(body)
                pieces.append((body, None))
                continue
            missing = HEAD.size - len(self._head)
            self._head += chunk[at : at + missing]
            at += missing
            if len(self._head) == HEAD.size:
                high, low, kind, flags, stream = HEAD.unpack(self._head)
                self.left = high << 8 | low
                self._is_in_block = kind in (HEADERS, CONTINUATION) and not flags & END_HEADERS
                pieces.append((self._head, (kind, flags, stream & STREAM_MASK, self.left)))
                self._head = b""
        return pieces


class ClientFrames(msgspec.Struct, frozen=True):
    """What a client has sent: calls, calls given up, and frames that serve none."""

    calls: int = 0
    resets: int = 0
    others: int = 0


def sent_away(text: str, last: int = 0) -> bytes:
    """What a client that went too far reads before it is hung up on."""
    body = struct.pack(">II", last, ENHANCE_YOUR_CALM) + text.encode()
    return HEAD.pack(0, len(body), GOAWAY, 0, 0) + body


class Parting:
    """One connection. `from_client` and `from_server` give what is to be passed on for what has come."""

    def __init__(self) -> None:
        self.fault = ""
        """What came that no client sends, so there is nothing to wait for."""
        self._block_bytes = 0
        self._calls = self._resets = self._others = 0
        self.open: dict[int, int] = {}
        """Calls without an end, and how many bytes of their requests the server may keep until then."""
        self.held_bytes = 0
        self._client, self._server = _Cutter(PREFACE_BYTES), _Cutter(0)
        self._last = self._pings = 0
        self._is_parting = self._is_dropped = self._has_said = self._has_greeted = False

    @property
    def was_heard(self) -> bool:
        """Whether the client has read the farewell."""
        return self._has_said and self._pings <= 0

    @property
    def is_done(self) -> bool:
        return self._has_said and not self.open and self._server.is_between

    def asked(self) -> ClientFrames:
        """Since this was last looked at."""
        found = ClientFrames(self._calls, self._resets, self._others)
        self._calls = self._resets = self._others = 0
        return found

    def cut_off(self, text: str) -> bytes:
        """The last words to a client, if they may be said now."""
        return sent_away(text, self._last) if self._has_greeted and self._server.is_between else b""

    def begin(self) -> None:
        """No further calls from now on."""
        self._is_parting = True

    def farewell(self) -> bytes:
        """What to tell the client now, once. It takes nothing before the settings that a server begins with."""
        if not self._is_parting or self._has_said or not self._has_greeted or not self._server.is_between:
            return b""
        self._has_said = True
        # Clients answer in order, so the answer to ours is as many answers away as the server still waits for.
        self._pings += 1
        body = struct.pack(">II", self._last, 0)
        return HEAD.pack(0, len(body), GOAWAY, 0, 0) + body + HEAD.pack(0, 8, PING, 0, 0) + bytes(8)

    def from_client(self, chunk: bytes) -> bytes:
        """Without calls that came after the parting."""
        passed = bytearray()
        for piece, head in self._client.cut(chunk):
            if head is not None:
                kind, flags, stream, size = head
                is_answer = kind == PING and bool(flags & ACK)
                self._pings -= is_answer
                self._is_dropped = (self._is_parting and stream > self._last) or (self._has_said and is_answer)
                if not self._is_dropped:
                    self._note(kind, stream, size)
            if not self._is_dropped:
                passed += piece
        return bytes(passed)

    def _note(self, kind: int, stream: int, size: int) -> None:
        if kind in (HEADERS, CONTINUATION):
            self._block_bytes = size + (self._block_bytes if kind == CONTINUATION else 0)
            if self._block_bytes > MOST_HEADER_BYTES:
                self.fault = f"more than {MOST_HEADER_BYTES} bytes of headers"
        if kind == HEADERS and stream > self._last:
            self._last = stream
            self.open[stream] = 0
            self._calls += 1
        elif kind == RST_STREAM:
            self._end(stream)
            self._resets += 1
        elif kind == DATA and size and stream in self.open:
            self.open[stream] += size
            self.held_bytes += size
        else:
            self._others += 1 + size // OTHER_BYTES

    def _end(self, stream: int) -> None:
        self.held_bytes -= self.open.pop(stream, 0)

    def from_server(self, chunk: bytes) -> bytes:
        """With the farewell in it, once one is due."""
        passed = bytearray()
        for piece, head in self._server.cut(chunk):
            passed += piece
            if head is not None:
                kind, flags, stream, _ = head
                self._has_greeted = True
                self._pings += kind == PING and not flags & ACK
                if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
                    self._end(stream)
        return bytes(passed + self.farewell())

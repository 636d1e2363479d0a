# SPDX-License-Identifier: Apache-2.0
"""Frames of HTTP/2 and the messages of gRPC in them: taking apart, and making the few that we add ourselves.

Source: RFC 9113; gRPC over HTTP/2.
"""

import re
import struct
from collections.abc import Sequence
from urllib.parse import unquote_to_bytes

from agent.proxy.frames.hpack import Headers, plain_block

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD = struct.Struct(">BHBBI")
HEAD_BYTES = HEAD.size
STREAM = 0x7FFFFFFF
FIRST_LARGEST_FRAME = 16384

DATA, HEADERS, RESET, SETTINGS, PROMISE, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
FIRST_WINDOW_SETTING, LARGEST_FRAME_SETTING = 4, 5

NO_ERROR, PROTOCOL_ERROR, FRAME_SIZE_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0, 1, 6, 8, 11

OPENING = ((b":status", b"200"), (b"content-type", b"application/grpc"))

MESSAGE_HEAD_BYTES = 5
SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])\Z")
# Header values may hold visible ASCII except the percent sign, which begins an escape.
PLAIN_TEXT = frozenset(range(0x20, 0x7F)) - {0x25}


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return HEAD.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


def data_frame(stream: int, payload: bytes, *, ends: bool = False) -> bytes:
    return frame(DATA, END_STREAM if ends else 0, stream, payload)


def reset_frame(stream: int, error: int = CANCEL) -> bytes:
    """A stream ends here and now: by default because its caller has gone."""
    return frame(RESET, 0, stream, error.to_bytes(4, "big"))


def window_frame(stream: int, credit_bytes: int) -> bytes:
    """The other side may send that much more."""
    return frame(WINDOW, 0, stream, credit_bytes.to_bytes(4, "big"))


def goaway_frame(error: int, text: str = "", last_stream: int = STREAM) -> bytes:
    """No new calls on this connection, please; those that are under way go on unless it is for an error. Calls after
    `last_stream` were not looked at, so a client may make them again elsewhere."""
    return frame(GOAWAY, 0, 0, last_stream.to_bytes(4, "big") + error.to_bytes(4, "big") + text.encode())


def opening_frame(stream: int) -> bytes:
    """The headers of an answer that goes on."""
    return frame(HEADERS, END_HEADERS, stream, plain_block(OPENING))


def refusal_frame(stream: int, code: int, text: str, *, is_opened: bool = False) -> bytes:
    """An answer that is nothing but a status; or the end of one whose headers were sent before."""
    status = [(b"grpc-status", str(code).encode()), (b"grpc-message", _escaped(text))]
    block = plain_block([*(() if is_opened else OPENING), *status])
    return frame(HEADERS, END_STREAM | END_HEADERS, stream, block)


def fragment_of(flags: int, payload: bytes) -> bytes:
    """The part of a header block in a HEADERS or CONTINUATION frame. Raises ValueError."""
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - payload[0] if payload else -1
    if flags & PRIORITY:
        start += 5
    if end < start:
        raise ValueError("a HEADERS frame with more padding than content")
    return payload[start:end]


def data_of(flags: int, payload: bytes) -> bytes:
    """The content of a DATA frame. Raises ValueError."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ValueError("a DATA frame with more padding than content")
    return payload[1 : len(payload) - payload[0]]


def with_content(frames: Sequence[bytes], content: bytes) -> list[bytes]:
    """The same DATA frames, sizes and padding included, with other content. Raises ValueError where it does not fit."""
    parts = [data_of(one[4], one[HEAD_BYTES:]) for one in frames]
    size = sum(len(part) for part in parts)
    if size != len(content):
        raise ValueError(f"{len(content)} bytes in place of {size}")
    out, position = [], 0
    for one, part in zip(frames, parts, strict=True):
        start = HEAD_BYTES + bool(one[4] & PADDED)
        out.append(one[:start] + content[position : position + len(part)] + one[start + len(part) :])
        position += len(part)
    return out


def message_in(buffer: bytes | bytearray) -> bytes | None:
    """The first message of a stream's data, if it is whole and not compressed."""
    if len(buffer) < MESSAGE_HEAD_BYTES:
        return None
    end = MESSAGE_HEAD_BYTES + int.from_bytes(buffer[1:MESSAGE_HEAD_BYTES], "big")
    return bytes(buffer[MESSAGE_HEAD_BYTES:end]) if len(buffer) >= end and buffer[0] == 0 else None


def framed(message: bytes) -> bytes:
    return b"\x00" + len(message).to_bytes(4, "big") + message


def setting_in(payload: bytes, wanted: int) -> int | None:
    """What a SETTINGS frame says of one thing; None if it says nothing. The last word counts."""
    found = None
    for offset in range(0, len(payload) - 5, 6):
        if int.from_bytes(payload[offset : offset + 2], "big") == wanted:
            found = int.from_bytes(payload[offset + 2 : offset + 6], "big")
    return found


def timeout_s(value: bytes) -> float | None:
    """What `grpc-timeout` says; None for something that is none."""
    found = TIMEOUT.match(value)
    return None if found is None else int(found[1]) * SECONDS[found[2].decode()]


def status_of(headers: Headers) -> tuple[int | None, str]:
    """Status and text of trailers; None if these headers are none."""
    code, text = None, ""
    for name, value in headers:
        if name == b"grpc-status":
            code = int(value) if value.isdigit() else 2
        elif name == b"grpc-message":
            text = unquote_to_bytes(value).decode("utf-8", "replace")
    return code, text


def _escaped(text: str) -> bytes:
    return b"".join(bytes([one]) if one in PLAIN_TEXT else b"%%%02X" % one for one in text.encode())

# SPDX-License-Identifier: Apache-2.0
"""One read-only call over a unix socket without gRPC's library, whose import is most of what a short command costs.

Speaks as much HTTP/2 as a unary call needs: one stream, headers that are written out, windows so wide that no answer
waits. An answer is there only if it came whole; whatever else happens is nothing here, and the caller asks again with
gRPC, which says why. So only calls that change nothing may come here.
"""

import socket
import struct
import time
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, PADDED, END_HEADERS = 1, 1, 8, 4
WIDEST = (1 << 31) - 1
FIRST_WINDOW = 65535
INITIAL_WINDOW_SIZE, ENABLE_PUSH = 4, 2
LONGEST_TEXT = 126
"""A longer one needs another form of its length."""
READ_BYTES = 1 << 16
STREAM = 1
READS = ("List", "Explain")
OTHER_READS = frozenset(("Describe", "Get", "GetNode", "GetTimeline", "Table"))


def may_be_quick(method: str) -> bool:
    """Whether asking twice changes nothing."""
    name = method.rpartition("/")[2]
    return name.startswith(READS) or name in OTHER_READS


def quick_call(path: str, method: str, request: bytes, timeout_s: float, most_bytes: int) -> bytes | None:
    """The answer's bytes, or None if there is none to be had in this way. Raises TimeoutError."""
    until_s = time.monotonic() + timeout_s
    headers = {
        ":method": "POST", ":scheme": "http", ":path": f"/{method}", ":authority": "localhost",
        "content-type": "application/grpc", "te": "trailers",
    }  # fmt: skip
    if len(method) >= LONGEST_TEXT:
        return None
    block = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in headers.items())
    settings = struct.pack(">HIHI", ENABLE_PUSH, 0, INITIAL_WINDOW_SIZE, WIDEST)
    opening = (
        PREFACE
        + _frame(SETTINGS, 0, 0, settings)
        + _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WIDEST - FIRST_WINDOW))
        + _frame(HEADERS, END_HEADERS, STREAM, block)
    )
    message = struct.pack(">BI", 0, len(request)) + request
    if len(message) > FIRST_WINDOW // 4:
        # A large request would have to wait for the other side's window, and to be cut.
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_s)
            link.connect(path)
            link.sendall(opening + _frame(DATA, END_STREAM, STREAM, message))
            return _message(_answer(link, until_s, most_bytes))
    except TimeoutError:
        raise
    except OSError:
        return None


def _literal(text: str) -> bytes:
    data = text.encode()
    return bytes((len(data),)) + data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _answer(link: socket.socket, until_s: float, most_bytes: int) -> bytes:
    """What the stream carried until its end; empty if it ended otherwise."""
    found = bytearray()
    for kind, flags, stream, payload in _frames(link, until_s, most_bytes):
        if kind == SETTINGS and not flags & ACK:
            link.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            link.sendall(_frame(PING, ACK, 0, payload))
        elif kind in (RST_STREAM, GOAWAY) or (kind == DATA and flags & PADDED):
            return b""
        elif stream == STREAM and kind == DATA:
            found += payload
        if stream == STREAM and kind in (DATA, HEADERS) and flags & END_STREAM:
            return bytes(found)
    return b""


def _frames(link: socket.socket, until_s: float, most_bytes: int) -> Iterator[tuple[int, int, int, bytes]]:
    """Those that come until the deadline, the end of the connection, or more bytes than an answer may have."""
    data = bytearray()
    seen = 0
    while True:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if seen > most_bytes:
            return
        link.settimeout(left_s)
        more = link.recv(READ_BYTES)
        if not more:
            return
        seen += len(more)
        data += more
        while len(data) >= 9:
            length = int.from_bytes(data[:3], "big")
            if len(data) < 9 + length:
                break
            kind, flags, stream = struct.unpack(">BBI", data[3:9])
            yield kind, flags, stream & WIDEST, bytes(data[9 : 9 + length])
            del data[: 9 + length]


def _message(body: bytes) -> bytes | None:
    """A failed call has no message: gRPC servers send one with the status OK alone."""
    if len(body) < 5:
        return None
    is_packed, length = struct.unpack(">BI", body[:5])
    return body[5:] if not is_packed and length == len(body) - 5 else None

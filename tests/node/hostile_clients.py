# SPDX-License-Identifier: Apache-2.0
"""What a client of the CRI proxy's socket can send that no kubelet sends. Each gives up after a while."""

import socket
import struct

from tests.node.hostile_callers import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    block,
    field,
    frame,
    on_each,
    ten_thousand_connections,
)

RUN = "/runtime.v1.RuntimeService/RunPodSandbox"
VERSION = "/runtime.v1.RuntimeService/Version"
LIST = "/runtime.v1.RuntimeService/ListContainers"
CALLS = 64


def unfinished_requests(path: str) -> None:
    """Of calls that are read along, each announced with 16 MiB and never ended."""

    def send(link: socket.socket) -> None:
        streams = range(1, 2 * CALLS, 2)
        for stream in streams:
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(RUN)))
            link.sendall(frame(DATA, 0, stream, b"\0" + struct.pack(">I", (16 << 20) - 1)))
        for stream in streams:
            for _ in range(4):
                link.sendall(frame(DATA, 0, stream, bytes(15_000)))

    on_each(path, 64, send)


def open_calls(path: str) -> None:
    """More than any kubelet has, without an end."""

    def send(link: socket.socket) -> None:
        for stream in range(1, 60_001, 2):
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(RUN)))

    on_each(path, 2, send)


def endless_headers(path: str) -> None:
    def send(link: socket.socket) -> None:
        link.sendall(frame(HEADERS, 0, 1, block(VERSION)))
        for number in range(3000):
            link.sendall(frame(CONTINUATION, 0, 1, field(b"x-%d" % number, b"y" * 100) * 100))

    on_each(path, 8, send)


def crowded_tables(path: str) -> None:
    """The largest table that there may be, filled with the least entries, each of which moves all others."""
    grow = b"\x3f" + bytes([0xE1, 0xFF, 0x03])

    def send(link: socket.socket) -> None:
        for stream in range(1, 201, 2):
            entries = b"".join(b"\x40\x01x\x01%c" % (33 + one % 90) for one in range(2500))
            link.sendall(frame(HEADERS, END_HEADERS, stream, grow + block(VERSION) + entries))

    on_each(path, 8, send)


def rapid_resets(path: str) -> None:
    def send(link: socket.socket) -> None:
        for stream in range(1, 60_001, 2):
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(RUN)) + frame(RST_STREAM, 0, stream, bytes(4)))

    on_each(path, 4, send)


def slow_readers(path: str) -> None:
    """Answers and PINGs that nobody reads, with windows as large as there are."""
    wide = struct.pack(">HI", 4, 0x7FFFFFFF)

    def send(link: socket.socket) -> None:
        for number in range(2000):
            stream = 2 * number + 1
            link.sendall(frame(HEADERS, END_HEADERS, stream, block(LIST)))
            link.sendall(frame(DATA, END_STREAM, stream, bytes(5)) + frame(PING, 0, 0, bytes(8)) * 20)

    on_each(path, 16, send, wide)


CLIENTS = (
    unfinished_requests, open_calls, endless_headers, crowded_tables, rapid_resets, slow_readers,
    ten_thousand_connections,
)  # fmt: skip

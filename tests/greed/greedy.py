# SPDX-License-Identifier: Apache-2.0
"""One greedy caller as a program: DOOR KIND SECONDS UID, with what it was told at the end on standard output.

Doors are paths of sockets, or a port of HTTP. It starts anew whatever is ended, as often as it can.
"""

import itertools
import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

GROUP = 23456
AT_ONCE = 16
# Of a program that asks again at once and is refused each time; no more would tell more.
PAUSE_S = 0.001

Deed = Callable[[socket.socket, float], None]


def frame(kind: int, flags: int = 0, stream: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def _field(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def headers(path: bytes) -> bytes:
    fields = (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    )  # fmt: skip
    return b"".join(_field(*one) for one in fields)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4)
GET_NODE, LIST_PODS = b"/kepd.v1.NodeService/GetNode", b"/kepd.v1.ObjectService/List"
WATCH_STATS, VERSION = b"/kepd.v1.NodeService/WatchStats", b"/runtime.v1.RuntimeService/Version"
EMPTY = bytes(5)
LAST_WORDS, LOOK = b"kepd: ", socket.MSG_DONTWAIT | socket.MSG_PEEK


def endless(chunk: bytes) -> Deed:
    """The same bytes again and again."""

    def deed(link: socket.socket, until_s: float) -> None:
        link.sendall(PREFACE)
        while time.monotonic() < until_s:
            link.sendall(chunk)

    return deed


def calls(path: bytes, *, ends: bool = True, gives_up: bool = False, reads: bool = True) -> Deed:
    """One call after the other, as many as the connection bears."""

    def deed(link: socket.socket, until_s: float) -> None:
        link.sendall(PREFACE)
        stream, block = 1, headers(path)
        while time.monotonic() < until_s and stream < 1 << 30:
            burst = b""
            for _ in range(AT_ONCE):
                burst += frame(1, 4, stream, block) + (
                    frame(0, 1, stream, EMPTY) if ends else frame(0, 0, stream, b"\0")
                )
                burst += frame(3, 0, stream, bytes(4)) if gives_up else b""
                stream += 2
            link.sendall(burst)
            if reads and not gives_up:
                link.recv(1 << 16)
            elif gives_up:
                # What is answered to calls that are given up is thrown away, and not waited for; a farewell is left.
                with suppress(BlockingIOError):
                    while (some := link.recv(1 << 16, LOOK)) and LAST_WORDS not in some:
                        link.recv(len(some))

    return deed


def silent(link: socket.socket, until_s: float) -> None:
    """Half a request, and then nothing."""
    link.sendall(PREFACE[:10])
    while time.monotonic() < until_s and link.recv(1 << 16):
        pass


def gone(link: socket.socket, until_s: float) -> None:
    """Only connects."""
    del link, until_s


def pages(path: bytes, *, reads: bool = True) -> Deed:
    def deed(link: socket.socket, until_s: float) -> None:
        link.sendall(b"GET " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        while reads and link.recv(1 << 16):
            pass
        if not reads:
            time.sleep(max(0.0, min(0.2, until_s - time.monotonic())))

    return deed


def each(inputs: Sequence[bytes]) -> Deed:
    """One of them a connection, in turn, and whatever is answered is read."""
    turn = itertools.cycle(inputs)

    def deed(link: socket.socket, until_s: float) -> None:
        link.sendall(next(turn))
        link.settimeout(max(0.01, min(0.2, until_s - time.monotonic())))
        while link.recv(1 << 16):
            pass

    return deed


HALF = headers(GET_NODE)
BAD_FRAMES = (
    b"GET / HTTP/1.1\r\n\r\n", bytes(24), PREFACE[:-1], PREFACE + bytes(100), PREFACE + b"\xff" * 100,
    PREFACE + b"\xff\xff\xff\0\0\0\0\0\1", PREFACE + frame(0, 1, 0, b"x"), PREFACE + frame(0, 1, 1, b"x"),
    PREFACE + frame(1, 4, 0, HALF), PREFACE + frame(1, 4, 2, HALF), PREFACE + frame(1, 4, 1, b"\xff" * 50),
    PREFACE + frame(1, 0, 1, HALF) + frame(9, 0, 1, bytes(16_000)) * 40, PREFACE + frame(9, 4, 1, b""),
    PREFACE + frame(1, 4, 3, HALF) + frame(1, 4, 1, HALF), PREFACE + frame(1, 5, 1, HALF) + frame(1, 5, 1, HALF),
    PREFACE + frame(1, 4, 1, HALF) + frame(0, 1, 1, b"\0\xff\xff\xff\xff"), PREFACE + frame(2, 0, 1, b"x"),
    PREFACE + frame(1, 12, 1, b"\xff" + HALF), PREFACE + frame(3, 0, 0, bytes(4)), PREFACE + frame(4, 0, 0, b"x"),
    PREFACE + frame(4, 0, 0, struct.pack(">HI", 4, 1 << 31)), PREFACE + frame(5, 4, 1, bytes(8)),
    PREFACE + frame(6, 0, 1, bytes(8)), PREFACE + frame(7, 0, 1, b""), PREFACE + frame(8, 0, 1, bytes(4)),
    PREFACE + frame(8, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 2, PREFACE + frame(1, 4, 1, headers(b"/" * 250)),
)  # fmt: skip
BAD_HEADS = (
    b"", b"\r\n\r\n", b"\0" * 9000, b"\xff" * 9000, b"GET\r\n\r\n", b"GET  HTTP/1.1\r\n\r\n", b"A" * 9000,
    b"GET " + b"/" * 8000 + b" HTTP/1.1\r\n\r\n", b"POST /metrics HTTP/1.1\r\ncontent-length: 9\r\n\r\nx",
    b"GET //[::1 HTTP/1.1\r\n\r\n", b"GET /readyz?" + b"exclude=x&" * 700 + b" HTTP/1.1\r\n\r\n", PREFACE,
    b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 1300 + b"\r\n", b"GET /metrics HTTP/1.1\r\naccept: ;;;q=\xff\r\n\r\n",
    b"GET /metrics HTTP/9.9\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n", b"HEAD /metrics HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\0",
    b"GET /livez?verbose&verbose&x=%00%ff HTTP/1.1\r\n\r\n", b"GET /../../etc/shadow HTTP/1.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n", b"CONNECT x:1 HTTP/1.1\r\n\r\n",
)  # fmt: skip
FRAMES: Mapping[str, Deed] = {
    "window": endless(frame(8, body=struct.pack(">I", 1)) * 5000),
    "unknown": endless(frame(0x77) * 5000),
    "large unknown": endless(frame(0x77, body=bytes(16_000)) * 8),
    "settings": endless(frame(4) * 5000),
    "ping": endless(frame(6, body=bytes(8)) * 5000),
    "priority": endless(frame(2, stream=1, body=b"\0\0\0\0\x10") * 5000),
    "resets of none": endless(frame(3, stream=1, body=bytes(4)) * 5000),
    "half a preface": silent,
    "connects": gone,
    "bad input": each(BAD_FRAMES),
}
API: Mapping[str, Deed] = {
    **FRAMES,
    "calls": calls(GET_NODE),
    "lists": calls(LIST_PODS),
    "lists unread": calls(LIST_PODS, reads=False),
    "calls given up": calls(GET_NODE, gives_up=True),
    "half calls": calls(GET_NODE, ends=False, reads=False),
    "watches": calls(WATCH_STATS),
}
CRI: Mapping[str, Deed] = {
    **FRAMES,
    "calls": calls(VERSION),
    "calls given up": calls(VERSION, gives_up=True),
    "half calls": calls(VERSION, ends=False, reads=False),
}
HTTP: Mapping[str, Deed] = {
    "pages": pages(b"/metrics"),
    "pages unread": pages(b"/metrics", reads=False),
    "half a head": pages(b"/metrics" * 1000, reads=False),
    "bad input": each(BAD_HEADS),
    "connects": gone,
}
DOORS: Mapping[str, Mapping[str, Deed]] = {"api": API, "cri": CRI, "http": HTTP}


def connect(door: str) -> socket.socket:
    if door.isdecimal():
        return socket.create_connection(("127.0.0.1", int(door)), timeout=5)
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(5)
    link.connect(door)
    return link


def last_words(link: socket.socket) -> str:
    """What the other end said when it hung up: the text of its GOAWAY."""
    found = b""
    try:
        while some := link.recv(1 << 16):
            found = (found + some)[-4096:]
    except OSError:
        pass
    _, _, text = found.rpartition(LAST_WORDS)
    return text.decode("utf-8", "replace")


def greedy(door: str, deed: Deed, until_s: float, told: Counter[str]) -> None:
    while time.monotonic() < until_s:
        try:
            with connect(door) as link:
                try:
                    deed(link, until_s)
                except OSError:
                    told[last_words(link)] += 1
        except OSError:
            time.sleep(PAUSE_S)


def main() -> None:
    door, kind, seconds, uid = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    which, _, name = kind.partition("/")
    if uid:
        os.setgroups([GROUP])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    told: Counter[str] = Counter()
    until_s = time.monotonic() + seconds
    many = [
        threading.Thread(target=greedy, args=(door, DOORS[which][name], until_s, told), daemon=True)
        for _ in range(AT_ONCE)
    ]
    for one in many:
        one.start()
    for one in many:
        one.join(max(0.0, until_s + 6 - time.monotonic()))
    print(next(iter(sorted(filter(None, told), key=lambda text: -told[text])), ""), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()

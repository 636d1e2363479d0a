# SPDX-License-Identifier: Apache-2.0
"""One greedy caller as a program: DOOR KIND SECONDS UID, with what it was told at the end on standard output.

Doors are paths of sockets, or a port of HTTP. It starts anew whatever is ended, as often as it can.
"""

import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping

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
GET_NODE, LIST_PODS = b"/kepd.v1.NodeService/GetNode", b"/kepd.v1.PodService/ListPods"
WATCH_STATS, VERSION = b"/kepd.v1.NodeService/WatchStats", b"/runtime.v1.RuntimeService/Version"
EMPTY = bytes(5)


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
            if reads:
                while link.recv(1 << 16, socket.MSG_DONTWAIT if gives_up else 0) and gives_up:
                    pass

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
    _, _, text = found.rpartition(b"kepd: ")
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

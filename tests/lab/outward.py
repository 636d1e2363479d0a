# SPDX-License-Identifier: Apache-2.0
"""The one way out of a lab: a relay through which its containerd reaches registries of the world.

It listens on loopback inside the lab's namespace and connects from outside, as an HTTP proxy that knows CONNECT alone.
A proxy of the machine's own (HTTPS_PROXY) is asked in its turn. Never: serves pods; they have loopbacks of their own.
"""

import os
import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from tests.lab.netns import Netns

__all__ = ["Outward"]

MOST_HEAD_BYTES = 8192
WITHIN_S = 40.0
PIECE_BYTES = 1 << 16


class Outward:
    """Open from `begin` to `stop`."""

    def __init__(self, netns: Netns, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._netns = netns
        self._port = port
        self._listener: socket.socket | None = None

    def environment(self) -> dict[str, str]:
        """For the program that is to go out; loopback stays inside."""
        return {"HTTPS_PROXY": self.url, "NO_PROXY": "127.0.0.1,localhost"}

    def begin(self) -> None:
        self._listener = self._netns.call(lambda: socket.create_server(("127.0.0.1", self._port)))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def stop(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=_serve, args=(client,), daemon=True).start()


def _serve(client: socket.socket) -> None:
    with client:
        try:
            head, rest = _head(client)
            verb, target, *_ = head.split(b" ", 2)
            if verb != b"CONNECT":
                client.sendall(b"HTTP/1.1 405 only CONNECT\r\n\r\n")
                return
            server = _dial(target.decode("ascii"))
        except (OSError, ValueError) as error:
            with suppress(OSError):
                client.sendall(f"HTTP/1.1 502 {error}\r\n\r\n".encode())
            return
        with server, suppress(OSError):
            client.sendall(b"HTTP/1.1 200 connected\r\n\r\n")
            server.sendall(rest)
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            _pass(client, server)
            back.join()


def _head(source: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = source.recv(PIECE_BYTES)
        if not piece or len(data) > MOST_HEAD_BYTES:
            raise ValueError("no request")
        data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _dial(target: str) -> socket.socket:
    upstream = urlsplit(os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or "")
    if upstream.hostname:
        server = socket.create_connection((upstream.hostname, upstream.port or 80), WITHIN_S)
        server.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        answer, _ = _head(server)
        if answer.split(b" ", 2)[1] != b"200":
            raise ValueError(answer.split(b"\r\n")[0].decode("ascii", "replace"))
    else:
        host, _, port = target.rpartition(":")
        server = socket.create_connection((host.strip("[]"), int(port)), WITHIN_S)
    server.settimeout(None)
    return server


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)

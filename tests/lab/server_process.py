# SPDX-License-Identifier: Apache-2.0
"""The process behind servers.py: a program of its own, which needs nothing but the standard library.

Owns: the sockets. Commands come as lines of JSON on the standard input; its end is the end.
"""

import ctypes
import json
import os
import selectors
import socket
import sys
from typing import Any

CLONE_NEWNET = 0x40000000
MOST_WAITING = 4096

libc = ctypes.CDLL(None, use_errno=True)
selector = selectors.DefaultSelector()
opened: list[tuple[str, socket.socket]] = []


def enter(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns", path)
    finally:
        os.close(descriptor)


def listen(name: str, namespace: str, address: str, port: int) -> None:
    enter(namespace)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        made = socket.socket(family, kind)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.setblocking(False)
        if kind == socket.SOCK_STREAM:
            made.listen(MOST_WAITING)
        selector.register(made, selectors.EVENT_READ, (accept if kind == socket.SOCK_STREAM else answer, name))
        opened.append((name, made))


def accept(listener: socket.socket, name: str) -> None:
    try:
        connection, peer = listener.accept()
    except OSError:
        return
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ, (echo, name))
    send(connection, f"{name} {peer[0]}\n".encode())


def echo(connection: socket.socket, name: str) -> None:
    try:
        data = connection.recv(4096)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if data:
        send(connection, name.encode() + b" " + data)
    else:
        forget(connection)


def send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        forget(connection)


def answer(datagrams: socket.socket, name: str) -> None:
    try:
        _, peer = datagrams.recvfrom(4096)
        datagrams.sendto(f"{name} {peer[0]}".encode(), peer)
    except OSError:
        return


def forget(connection: socket.socket) -> None:
    if connection.fileno() >= 0:
        selector.unregister(connection)
        connection.close()


def obey(command: dict[str, Any]) -> None:
    for listener in command.get("open", []):
        listen(**listener)
    for name, made in list(opened):
        if name == command.get("close"):
            forget(made)
            opened.remove((name, made))


def main() -> None:
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                work, name = key.data
                if key.fileobj.fileno() >= 0:  # type: ignore[union-attr]
                    work(key.fileobj, name)
                continue
            line = sys.stdin.readline()
            if not line:
                return
            obey(json.loads(line))
            sys.stdout.write("done\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

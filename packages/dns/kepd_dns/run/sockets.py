# SPDX-License-Identifier: Apache-2.0
"""Sockets of the service manager, or our own where there is none."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

FIRST = 3
RECEIVE_BYTES = 4 << 20
IP_FREEBIND, IPV6_FREEBIND, SO_RCVBUFFORCE = 15, 78, 33


def handed_over(environment: Mapping[str, str], pid: int) -> list[tuple[str, socket.socket]]:
    """What a service manager opened for this process, or kept for it, with its name."""
    if environment.get("LISTEN_PID") != str(pid):
        return []
    found = []
    names = environment.get("LISTEN_FDNAMES", "").split(":")
    for place in range(int(environment.get("LISTEN_FDS") or 0)):
        os.set_inheritable(FIRST + place, False)
        with suppress(OSError):
            found.append((names[place] if place < len(names) else "", socket.socket(fileno=FIRST + place)))
    return found


def stored_name(opened: socket.socket) -> str:
    """Under which the service manager keeps a socket that this process opened. No name there has a colon."""
    way = "udp" if opened.type == socket.SOCK_DGRAM else "tcp"
    return f"{way}-{opened.getsockname()[0].replace(':', '.')}"


def bind(address: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """Beside another process that has the same address, if need be, and before the address is there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    opened = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
        else:
            opened.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        if kind == socket.SOCK_DGRAM:
            try:
                opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
            except PermissionError:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        else:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((address, port))
        if kind == socket.SOCK_STREAM:
            opened.listen(512)
    except OSError:
        opened.close()
        raise
    return opened


def drops(inodes: set[int]) -> int:
    """Packets that the kernel threw away because a socket's buffer was full."""
    total = 0
    for path in ("/proc/self/net/udp", "/proc/self/net/udp6"):
        with suppress(OSError, ValueError, IndexError), open(path, encoding="ascii") as file:  # noqa: PTH123
            next(file)
            for line in file:
                words = line.split()
                if int(words[9]) in inodes:
                    total += int(words[12])
    return total


def notify(environment: Mapping[str, str], text: str, *kept: socket.socket) -> None:
    """To the service manager, if there is one. `kept` go with it, to be kept for the next process."""
    place = environment.get("NOTIFY_SOCKET", "")
    if not place:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
        opened.connect(f"\0{place[1:]}" if place.startswith("@") else place)
        socket.send_fds(opened, [text.encode()], [one.fileno() for one in kept])

# SPDX-License-Identifier: Apache-2.0
"""Ports of loopback for programs that a test starts.

Below those that the kernel gives to whoever connects: such a port may be someone's before the program has opened it.
"""

import random
import socket
from contextlib import suppress
from itertools import count

_ports = count(random.randrange(11_000, 28_000))


def take_port() -> int:
    """One that is free for TCP and UDP, and that this process has not given before."""
    for port in _ports:
        with suppress(OSError), socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", port))
            udp.bind(("127.0.0.1", port))
            return port
    raise AssertionError

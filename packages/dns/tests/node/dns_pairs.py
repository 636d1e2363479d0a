# SPDX-License-Identifier: Apache-2.0
"""Pairs of A and AAAA as libc asks them: both at once from one socket, another socket for each pair.

It is these that connection tracking loses when both packets are new to it at the same moment. A pair that gets no two
answers in time is lost; how many were is what the program prints.

    python -m packages.dns.tests.node.dns_pairs SERVER NAME COUNT
"""

import select
import socket
import sys
import time
from contextlib import suppress

import dns.message

OPEN, WAIT_S = 48, 5.0


def lost_pairs(server: str, name: str, count: int) -> int:
    texts = [dns.message.make_query(name, kind, use_edns=False).to_wire() for kind in ("A", "AAAA")]
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    waiting: dict[int, tuple[socket.socket, float, set[bytes]]] = {}
    poll = select.epoll()
    sent = lost = 0
    while sent < count or waiting:
        while sent < count and len(waiting) < OPEN:
            asking = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            asking.connect((server, 53))
            for text in texts:
                asking.send(text)
            sent += 1
            waiting[asking.fileno()] = asking, time.monotonic() + WAIT_S, set()
            poll.register(asking.fileno(), select.EPOLLIN)
        for number, _ in poll.poll(0.2):
            asking, _, heard = waiting[number]
            with suppress(OSError):
                heard.add(asking.recv(4096)[:2])
            if len(heard) == len(texts):
                del waiting[number]
                asking.close()
        now_s = time.monotonic()
        for number in [one for one, (_, end_s, _) in waiting.items() if end_s < now_s]:
            waiting.pop(number)[0].close()
            lost += 1
    poll.close()
    return lost


if __name__ == "__main__":
    print(lost_pairs(sys.argv[1], sys.argv[2], int(sys.argv[3])))

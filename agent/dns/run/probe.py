# SPDX-License-Identifier: Apache-2.0
"""Asks kepd-dns whether it answers, as anybody would ask: by UDP and TCP at each address (DNS-24).

The questions have a mark, by which rules lead them to the process even while others are led elsewhere.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable

import msgspec

from agent.dns.rules.guards import PORT, PROBE_MARK, SLOW_S
from agent.dns.wire.answer import read_answer
from agent.dns.wire.names import Malformed, to_wire
from agent.dns.wire.question import IN, RD, TXT
from agent.dns.wire.writing import question_bytes

NAME = to_wire("probe.kepd.invalid")
SECTION = NAME + TXT.to_bytes(2, "big") + IN.to_bytes(2, "big")
SO_MARK = 36


class Probed(msgspec.Struct, frozen=True):
    """`number` of its state, -1 without one. `problem` empty: it works. `is_foreign`: another program answers."""

    problem: str = ""
    instance: str = ""
    number: int = -1
    is_foreign: bool = False


Opens = Callable[[int, int], socket.socket]


async def probe(
    address: str,
    kind: socket.SocketKind = socket.SOCK_DGRAM,
    port: int = PORT,
    opens: Opens = socket.socket,
) -> Probed:
    """`opens` is for tests, whose process is in another network namespace."""
    id_ = secrets.randbits(16)
    text = question_bytes(id_, SECTION, RD, has_options=False)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    try:
        with opens(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as asking:
            asking.setsockopt(socket.SOL_SOCKET, SO_MARK, PROBE_MARK)
            async with asyncio.timeout(SLOW_S):
                await loop.sock_connect(asking, (address, port))
                if kind == socket.SOCK_STREAM:
                    await loop.sock_sendall(asking, len(text).to_bytes(2, "big") + text)
                    answer = (await loop.sock_recv(asking, 4096))[2:]
                else:
                    await loop.sock_sendall(asking, text)
                    answer = await loop.sock_recv(asking, 4096)
    except TimeoutError:
        return Probed(f"no answer within {SLOW_S * 1000:.0f} ms")
    except OSError as error:
        return Probed(error.strerror or "cannot be asked")
    return read_probe(answer)


def read_probe(answer: bytes) -> Probed:
    try:
        found = read_answer(answer)
    except Malformed as error:
        return Probed(f"an answer that cannot be read: {error}", is_foreign=True)
    if not found.answers or found.answers[0].type != TXT:
        return Probed("another program answers", is_foreign=True)
    one = found.answers[0]
    words = dict(
        word.partition("=")[::2] for word in answer[one.data_at + 1 : one.end].decode("ascii", "replace").split()
    )
    if "instance" not in words:
        return Probed("another program answers", is_foreign=True)
    number = words.get("number", "-1")
    return Probed("", words["instance"], int(number) if number.lstrip("-").isdigit() else -1)

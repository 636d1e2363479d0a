# SPDX-License-Identifier: Apache-2.0
"""Asks kepd-dns whether it answers, as anybody would ask: by UDP and TCP at each address.

The questions have a mark, by which rules lead them to the process even while others are led elsewhere.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable

import msgspec

from kepd_dns.rules.guards import PORT, PROBE_MARK, SLOW_S
from kepd_dns.wire.answer import read_answer
from kepd_dns.wire.names import Malformed, to_wire
from kepd_dns.wire.question import IN, RD, TXT
from kepd_dns.wire.writing import question_bytes

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
    text = question_bytes(secrets.randbits(16), SECTION, RD, has_options=False)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with opens(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as asking:
            asking.setsockopt(socket.SOL_SOCKET, SO_MARK, PROBE_MARK)
            try:
                async with asyncio.timeout(SLOW_S):
                    answer = await _ask(asking, (address, port), text)
            except TimeoutError:
                # Perhaps it was we who were late: then the answer is there.
                answer = asking.recv(4096)
    except BlockingIOError:
        return Probed(f"no answer within {SLOW_S * 1000:.0f} ms")
    except OSError as error:
        return Probed(error.strerror or "cannot be asked")
    return read_probe(answer if kind == socket.SOCK_DGRAM else answer[2:])


async def _ask(asking: socket.socket, to: tuple[str, int], text: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_connect(asking, to)
    is_stream = asking.type == socket.SOCK_STREAM
    await loop.sock_sendall(asking, len(text).to_bytes(2, "big") + text if is_stream else text)
    return await loop.sock_recv(asking, 4096)


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

# SPDX-License-Identifier: Apache-2.0
"""Asks kepd-dns for a name on behalf of somebody who looks, by UDP and by TCP where the answer is cut."""

import asyncio
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from kepd_dns.rules.guards import PORT, PROBE_MARK
from kepd_dns.run.probe import SO_MARK
from kepd_dns.wire.answer import ReadAnswer, plain_data, read_answer
from kepd_dns.wire.names import Malformed, to_text
from kepd_dns.wire.question import IN, RD, TC
from kepd_dns.wire.records_text import CODES, data_text, type_text
from kepd_dns.wire.writing import question_bytes

WAIT_S = 5.0


class Heard(msgspec.Struct, frozen=True):
    code: str
    records: tuple[str, ...] = ()


Inquirer = Callable[[str, bytes, int], Awaitable[Heard | None]]


async def inquire(address: str, name: bytes, kind: int, port: int = PORT) -> Heard | None:
    """None: silence."""
    section = name + kind.to_bytes(2, "big") + IN.to_bytes(2, "big")
    try:
        async with asyncio.timeout(WAIT_S):
            text = await _asked(address, port, section, socket.SOCK_DGRAM)
            answer = read_answer(text)
            if answer.flags & TC:
                text = await _asked(address, port, section, socket.SOCK_STREAM)
                answer = read_answer(text)
    except (OSError, TimeoutError, Malformed):
        return None
    return Heard(CODES.get(answer.code, str(answer.code)), tuple(_records(text, answer)))


async def _asked(address: str, port: int, section: bytes, kind: socket.SocketKind) -> bytes:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    text = question_bytes(secrets.randbits(16), section, RD, has_options=True)
    with socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as asking:
        asking.setsockopt(socket.SOL_SOCKET, SO_MARK, PROBE_MARK)
        await loop.sock_connect(asking, (address, port))
        if kind == socket.SOCK_DGRAM:
            await loop.sock_sendall(asking, text)
            return await loop.sock_recv(asking, 4096)
        await loop.sock_sendall(asking, len(text).to_bytes(2, "big") + text)
        found = b""
        while len(found) < 2 or len(found) < 2 + int.from_bytes(found[:2], "big"):
            more = await loop.sock_recv(asking, 65536)
            if not more:
                raise OSError("the connection ended")
            found += more
        return found[2:]


def _records(text: bytes, answer: ReadAnswer) -> Iterator[str]:
    for one in answer.answers:
        yield f"{to_text(one.owner)} {one.ttl} {type_text(one.type)} {data_text(one.type, plain_data(text, one))}"

# SPDX-License-Identifier: Apache-2.0
"""SVN-120, SVN-122: what is asked of an endpoint, and how its answers are told."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.drivers.endpoint_checks.driver import MOST_OPEN, NAMES_QUESTION, WAIT_S, EndpointChecks
from agent.model.services.check import Asked, Outcome


@pytest.fixture
def checks() -> Iterator[EndpointChecks]:
    made = EndpointChecks()
    yield made
    made.close()


def asked(of: socket.socket, protocol: str = "TCP") -> Asked:
    host, port = of.getsockname()[:2]
    return Asked(protocol, socket.inet_pton(of.family, host) + port.to_bytes(2, "big") + b"\0\0")  # type: ignore[arg-type]


def bound(kind: int, host: str = "127.0.0.1") -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
    made.bind((host, 0))
    return made


async def came_to(checks: EndpointChecks, one: Asked, now_s: float = 0.0) -> Outcome:
    checks.begin(one, now_s)
    async with asyncio.timeout(10.0):
        while not (found := checks.ended(now_s)):
            await asyncio.sleep(0)
    assert [who for who, _ in found] == [one]
    assert len(checks) == 0
    return found[0][1]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_listener_is_open_and_a_port_without_one_refuses(checks: EndpointChecks, host: str) -> None:
    with bound(socket.SOCK_STREAM, host) as server:
        assert await came_to(checks, asked(server)) == "refused"
        server.listen()
        assert await came_to(checks, asked(server)) == "open"
        taken, _ = server.accept()
        with taken, pytest.raises(ConnectionResetError):
            taken.recv(1)


async def test_who_says_nothing_is_silent_when_the_time_is_over(checks: EndpointChecks) -> None:
    with bound(socket.SOCK_STREAM) as server, bound(socket.SOCK_STREAM) as first:
        server.listen(0)
        # The kernel answers for a queue that has room; this one has none left.
        first.connect(server.getsockname())
        checks.begin(asked(server), 0.0)
        assert checks.ended(WAIT_S - 0.01) == []
        assert checks.ended(WAIT_S) == [(asked(server), "silent")]
        assert len(checks) == 0


async def test_by_udp_a_host_refuses_and_who_answers_has_answered(checks: EndpointChecks) -> None:
    with bound(socket.SOCK_DGRAM) as server:
        one = asked(server, "UDP")
        checks.begin(one, 0.0)
        data, client = server.recvfrom(100)
        assert data == b""
        assert checks.ended(WAIT_S) == [(one, "silent")]
        checks.begin(one, 1.0)
        _, client = server.recvfrom(100)
        server.sendto(b"x", client)
        assert [outcome for _, outcome in checks.ended(1.0)] == ["answered"]
    assert await came_to(checks, one) == "refused"


def test_a_name_server_is_asked_a_question() -> None:
    """That any of them answers."""
    assert len(NAMES_QUESTION) == 17
    assert NAMES_QUESTION[4:6] == b"\0\1"


async def test_what_this_node_cannot_ask_says_nothing(checks: EndpointChecks) -> None:
    broadcast = Asked("TCP", bytes((255, 255, 255, 255, 0, 80, 0, 0)))

    assert await came_to(checks, broadcast) == "unknown"


def test_open_ones_are_bounded_and_leave_nothing(checks: EndpointChecks) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with bound(socket.SOCK_DGRAM) as server:
        for _ in range(MOST_OPEN + 5):
            checks.begin(asked(server, "UDP"), 0.0)
        assert len(checks) == MOST_OPEN
        assert [outcome for _, outcome in checks.ended(0.0)] == ["unknown"] * 5
        checks.drop()
    assert checks.ended(WAIT_S) == []

    assert len(list(Path("/proc/self/fd").iterdir())) == before

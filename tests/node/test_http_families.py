# SPDX-License-Identifier: Apache-2.0
"""Pages on an unspecified address, in namespaces with and without IPv6."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent.api.http import open_listener
from tests.lab.namespace import Namespace

pytestmark = pytest.mark.node

PORT = 10_256


@pytest.fixture
def space() -> Iterator[Namespace]:
    with Namespace() as made:
        made.run("ip", "link", "set", "lo", "up")
        yield made


def reached(space: Namespace, host: str) -> list[str]:
    """Which addresses lead to a listener on this host."""

    def look() -> list[str]:
        found = []
        with closing(open_listener(f"{host}:{PORT}")):
            for address in ("127.0.0.1", "::1"):
                try:
                    socket.create_connection((address, PORT), 5.0).close()
                except OSError:
                    continue
                found.append(address)
        return found

    return space.call(look)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", ""])
@pytest.mark.parametrize("v6only", [0, 1])
def test_an_unspecified_address_is_both_families(space: Namespace, host: str, v6only: int) -> None:
    """FS-11: balancers that ask by IPv6 saw dead nodes."""
    space.set("net.ipv6.bindv6only", v6only)

    assert reached(space, host) == ["127.0.0.1", "::1"]


@pytest.mark.parametrize(("host", "expected"), [("127.0.0.1", ["127.0.0.1"]), ("[::1]", ["::1"])])
def test_an_address_that_is_given_is_the_only_one(space: Namespace, host: str, expected: list[str]) -> None:
    assert reached(space, host) == expected


def test_a_host_without_ipv6_is_served_all_the_same(space: Namespace) -> None:
    """FS-11."""
    space.set("net.ipv6.conf.all.disable_ipv6", 1)

    assert reached(space, "0.0.0.0") == ["127.0.0.1"]

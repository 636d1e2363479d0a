# SPDX-License-Identifier: Apache-2.0
"""SVN-51: whose addresses no Service may take."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from agent.daemon.services.reserved import reserved_now
from agent.drivers.interfaces.resolvers import resolvers


def packed(text: str) -> bytes:
    return ip_address(text).packed


def test_name_servers_of_this_host_by_its_files(tmp_path: Path) -> None:
    """Also those behind a local one; what is no address names nobody."""
    file, behind = tmp_path / "resolv.conf", tmp_path / "behind"
    file.write_text("# a comment\nsearch nameserver\nnameserver 127.0.0.53\nnameserver\nnameserver fe80::1%eth0\n")
    behind.write_text("nameserver 192.0.2.53 # near\nnameserver wrong\n")

    found = tuple(resolvers((file, behind, tmp_path / "absent")))

    assert found == (packed("127.0.0.53"), packed("fe80::1"), packed("192.0.2.53"))


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://203.0.113.6:6443", {"203.0.113.6"}),
        ("https://[2001:db8::6]:6443/base", {"2001:db8::6"}),
        ("https://localhost:6443", {"127.0.0.1"}),
        ("https://nowhere.invalid:6443", set()),
        ("", set()),
    ],
)
async def test_the_api_server_by_the_url_that_is_in_use(server: str, expected: set[str]) -> None:
    found = {one for one, whose in (await reserved_now(server)).items() if whose == "the API server's address"}

    assert found >= set(map(packed, expected))
    assert bool(found) == bool(expected)

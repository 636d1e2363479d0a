# SPDX-License-Identifier: Apache-2.0
"""What libc does at once, by the ten thousand: no packet of it is lost to connection tracking."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from packages.dns.tests.node.dns_node import ADDRESSES, DnsNode
from packages.dns.tests.node.test_dns import NAME, WEB
from tests.lab.namespace import Namespace
from tests.lab.network import Network

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[4]
PAIRS = 20_000


async def lost(place: Namespace, server: str, count: int) -> int:
    command = place.command(sys.executable, "-m", "packages.dns.tests.node.dns_pairs", server, NAME, str(count))
    asking = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    return int((await asking.communicate())[0])


def refused(place: Namespace) -> int:
    """Entries that connection tracking did not take."""
    counted = place.run("conntrack", "-S")
    return sum(int(one) for one in re.findall(r"insert_failed=(\d+)", counted))


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
async def test_pairs_of_four_clients_at_once_are_all_answered(
    network: Network, tmp_path: Path, family: str, backend: str
) -> None:
    """DNS-20, DNS-27: 20 000 of them, each from a socket of its own; nothing is refused, for nothing is tracked."""
    async with DnsNode(network, tmp_path, backend=backend).running() as dns:
        await dns.tell(WEB)
        node = network.node.namespace
        before = refused(node)
        clients = [network[f"pod{one}"].namespace for one in (1, 2, 3)] + [node]
        server = ADDRESSES["IPv6" if family == "IPv6" else "IPv4"]
        found = await asyncio.gather(*(lost(one, server, PAIRS // len(clients)) for one in clients))

        assert found == [0, 0, 0, 0]
        assert refused(node) == before
        assert dns.tracked() == []

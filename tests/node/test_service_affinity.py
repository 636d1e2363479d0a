# SPDX-License-Identifier: Apache-2.0
"""Two Services share the map of clients, and one of them is flooded."""

import struct
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from ipaddress import ip_address

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.model.services.nft_error import RulesRefused
from agent.model.services.nft_table import CLIENTS, Batch, Family, own_map
from agent.services.nftables.structure import MOST_CLIENTS
from agent.services.run.affinity_keeper import AffinityKeeper
from tests.lab.network import Network
from tests.node.test_services import Cluster, family, off_loop, served
from tests.services.making import make_service, make_slice

__all__ = ("family",)

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

LOUD = {"IPv4": ("10.96.0.99", "10.9.9.9"), "IPv6": ("fd00:96::99", "fd00:9::9")}
NUMBER = sha256(b"shop/loud:http/TCP").digest()[:4]
SIZE = 64


@pytest.fixture
async def cluster(network: Network, family: Family) -> AsyncIterator[Cluster]:
    async with served(Cluster(family, network), network) as made:
        yield made


async def put(cluster: Cluster, clients: str = "") -> None:
    """Both, with affinity."""
    meta = {"annotations": {"kepd.dev/affinity-clients": clients}} if clients else {}
    ip, endpoint = LOUD[cluster.family]
    cluster.intake.put_service(make_service("loud", ip=ip, sessionAffinity="ClientIP", meta=meta))
    cluster.intake.put_slice(make_slice([endpoint], service="loud", family=cluster.family))
    await cluster.put("pod1", "pod2", "far1", sessionAffinity="ClientIP")


async def flood(cluster: Cluster, name: str, count: int) -> None:
    """So many sources, as the chain of the loud Service would remember them."""
    data = bytes(4) + ip_address(LOUD[cluster.family][1]).packed + struct.pack(">HH", 8080, 0)
    width = 4 if cluster.family == "IPv4" else 16
    life = (10_800_000).to_bytes(8, "big")
    for at in range(0, count, 8192):
        some = range(at, min(count, at + 8192))
        sources = [(0x0B000000 + one).to_bytes(width, "big") for one in some]
        await cluster.table.apply(Batch(adds={name: [(one + NUMBER, data + life) for one in sources]}))


async def held(cluster: Cluster) -> int:
    """Clients in the shared map."""
    return await cluster.table.client_count(CLIENTS)


async def test_new_clients_keep_their_endpoint_while_another_service_is_flooded(cluster: Cluster) -> None:
    """FS-14, SVN-101, NF-31: until the next look at the map, and no longer, they have none to come back to."""
    await put(cluster)
    keeper = AffinityKeeper(cluster.plane, SystemClock())
    await flood(cluster, CLIENTS, MOST_CLIENTS)
    without = await off_loop(lambda: cluster.servers("pod3"))
    began_s = time.monotonic()
    await keeper.look(cluster.family)
    took_s, left = time.monotonic() - began_s, await held(cluster)
    first = await off_loop(lambda: cluster.servers("pod3"))
    second = await off_loop(lambda: cluster.servers("client"))
    print(f"{cluster.family}: {MOST_CLIENTS - left} of {MOST_CLIENTS} clients forgotten in {took_s:.2f} s")

    assert len(without) > 1
    assert (len(first), len(second)) == (1, 1)
    assert left < 0.8 * MOST_CLIENTS


async def test_a_service_with_a_map_of_its_own_floods_nobody_else(cluster: Cluster) -> None:
    """FS-14, SVN-101."""
    await put(cluster, clients=str(SIZE))
    name = own_map(NUMBER, SIZE)
    await flood(cluster, name, SIZE)
    with pytest.raises(RulesRefused, match="full"):
        await flood(cluster, name, SIZE + 1)
    servers = await off_loop(lambda: cluster.servers("pod3"))

    assert len(servers) == 1
    assert await held(cluster) == 1


async def test_a_map_of_its_own_brings_clients_back(cluster: Cluster) -> None:
    """SVN-101, TY-7: also after the number of endpoints changed, and after a restart of kepd."""
    meta = {"annotations": {"kepd.dev/affinity-clients": str(SIZE)}}
    await cluster.put("pod1", "pod2", "far1", sessionAffinity="ClientIP", meta=meta)
    first = await off_loop(lambda: cluster.servers("pod3"))
    (kept,) = first
    await cluster.set_endpoints(*sorted({"pod1", "pod2", "far1"} - first)[:1], kept)
    again = await off_loop(lambda: cluster.servers("pod3"))
    cluster.plane.families[cluster.family].disturbed("a test wants everything compared")
    await cluster.settled()

    assert again == first
    assert await off_loop(lambda: cluster.servers("pod3")) == first
    assert await held(cluster) == 0


async def test_clients_of_endpoints_that_left_are_forgotten_in_the_kernel(cluster: Cluster) -> None:
    """NF-33, SVN-102: the clients of others stay."""
    await put(cluster)
    keeper = AffinityKeeper(cluster.plane, SystemClock())
    await flood(cluster, CLIENTS, 20_000)
    await off_loop(lambda: cluster.servers("pod3", count=1))
    cluster.intake.drop_service("shop", "loud")
    await cluster.settled()
    await keeper.look(cluster.family)

    assert await held(cluster) == 1

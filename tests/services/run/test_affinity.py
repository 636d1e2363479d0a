# SPDX-License-Identifier: Apache-2.0
"""Clients that come back: maps of their own, and what happens where many share one."""

import struct
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

import pytest

from agent.model.event import Event
from agent.model.services.nft_table import CLIENTS, AffineClient, Batch
from agent.model.services.service import ServiceKey
from agent.services.objects.node_state import NodeSettings
from agent.services.run import affinity_keeper
from agent.services.run.affinity_keeper import AffinityKeeper
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

SIZE = 1000
HOUR_MS = 3_600_000


class Node:
    """A plane of one family with its keeper, on a kernel in memory."""

    def __init__(self, own_maps: int = 2) -> None:
        self.kernel, self.clock = FakeKernel(), FakeClock()
        self.events: list[Event] = []
        self.table = FakeNft("IPv4", self.kernel)
        self.rules = NftRuleset(self.table)
        settings = NodeSettings(node="here", addresses=("192.168.0.10",), own_maps=own_maps)
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0)
        self.plane = ServicesPlane(self.intake, {"IPv4": self.rules}, clock=self.clock, tell=self.events.append)
        self.keeper = AffinityKeeper(self.plane, self.clock, SIZE)

    async def put(self, *names: str, clients: str = "", ports: int = 1, addresses: int = 2) -> None:
        for name in names:
            meta = {"annotations": {"kepd.dev/affinity-clients": clients}} if clients else {}
            listed = [{"name": f"p{one}", "port": 80 + one, "protocol": "TCP"} for one in range(ports)]
            ip = f"10.96.0.{ord(name[0])}"
            self.intake.put_service(make_service(name, ip=ip, sessionAffinity="ClientIP", meta=meta, ports=listed))
            some = [f"10.1.{ord(name[0])}.{one}" for one in range(1, addresses + 1)]
            self.intake.put_slice(make_slice(some, service=name, ports=listed))
        await self.plane.families["IPv4"].sync()

    def number(self, name: str) -> bytes:
        found = self.rules.mirror.programmed(ServiceKey("shop", name))
        assert found is not None
        return found.slots[0].number

    async def come(self, name: str, count: int, where: str = CLIENTS, endpoint: int = 1) -> None:
        """So many clients of an endpoint, as the chain remembers them; each with less time left."""
        data = bytes(4) + ip_address(f"10.1.{ord(name[0])}.{endpoint}").packed + struct.pack(">HH", 80, 0)
        sources = [struct.pack(">HH", endpoint, one) for one in range(count)]
        some = [AffineClient(one + self.number(name), data, HOUR_MS - at) for at, one in enumerate(sources)]
        await self.table.apply(Batch(adds={where: [one.living(one.life_ms) for one in some]}))

    async def held(self, name: str, where: str = CLIENTS) -> list[int]:
        """Lives of its clients, the longest first."""
        found = await self.table.clients(where)
        return sorted((one.life_ms for one in found if one.key[-4:] == self.number(name)), reverse=True)

    def maps(self) -> set[str]:
        return set(self.kernel.tables["IPv4"].clients) - {CLIENTS}

    def told(self) -> list[tuple[str, str]]:
        return [(one.reason, one.object_name) for one in self.events if one.is_warning]


async def test_each_port_gets_a_map_of_its_own_and_it_goes_with_the_service() -> None:
    """SVN-101."""
    node = Node()
    await node.put("shared")
    await node.put("web", clients="4096", ports=2)
    had = node.maps()
    await node.put("web", clients="4096", ports=2, addresses=3)
    grown = node.maps()
    await node.put("web", clients="64", ports=2)
    smaller = node.maps()
    await node.put("web")

    assert {name.rpartition("_")[2] for name in had} == {"4096"}
    assert (len(had), grown) == (2, had)
    assert {name.rpartition("_")[2] for name in smaller} == {"64"}
    assert node.maps() == set()


async def test_a_restart_keeps_the_maps_that_are_used_and_drops_the_others() -> None:
    """SVN-101."""
    node, again = Node(), Node()
    await node.put("web", "gone", clients="64")
    had = node.maps()
    again.kernel = again.table.kernel = node.kernel
    await again.put("web", clients="64")

    assert len(had) == 2
    assert again.maps() == {f"cl_{again.number('web').hex()}_64"}


async def test_who_comes_too_late_for_a_map_shares_one_and_is_told_so() -> None:
    """SVN-101: until there is one."""
    node = Node(own_maps=2)
    await node.put("a", clients="64", ports=2)
    await node.put("b", clients="64")
    had, told = node.maps(), node.told()
    (finding,) = ServicesView(node.plane, {}, None).service(ServiceKey("shop", "b")).findings  # type: ignore[arg-type]
    route = ServicesView(node.plane, {}, None).route(ServiceKey("shop", "b"))  # type: ignore[arg-type]
    await node.put("a", ports=2)

    assert len(had) == 2
    assert told == [("AffinityCrowded", "b")]
    assert "1 maps for clients do not fit into the 2 of services.ownAffinityMaps" in finding
    assert any("come back for 10800 s, remembered in the map that Services share" in line for line in route)
    assert node.maps() == {f"cl_{node.number('b').hex()}_64"}


async def test_one_service_cannot_crowd_the_map_of_all() -> None:
    """FS-14, SVN-101: half of it at most, and the newest live a minute unless they come back."""
    node = Node()
    await node.put("quiet", "loud")
    await node.come("quiet", 100)
    await node.come("loud", 700)
    assert await node.keeper.look("IPv4") == affinity_keeper.LOOK_S
    await node.keeper.look("IPv4")
    loud = await node.held("loud")

    assert [life for life in loud if life > 60_000] == list(range(HOUR_MS - 200, HOUR_MS - 700, -1))
    assert len(loud) == 700
    assert min(await node.held("quiet")) > 60_000
    assert node.told() == [("AffinityCrowded", "loud")]
    assert node.plane.measures.affinity_clients["IPv4"] == 800
    assert node.plane.measures.affinity_trimmed["IPv4"] == 200


async def test_in_a_full_map_room_is_made_at_once() -> None:
    """FS-14, SVN-101: the newest of the largest go, and whoever has less than they keeps all."""
    node = Node()
    await node.put("quiet", "loud", "other")
    await node.come("quiet", 50)
    await node.come("other", 300)
    await node.come("loud", 650)
    assert await node.keeper.look("IPv4") == affinity_keeper.FULL_LOOK_S

    assert await node.held("loud") == list(range(HOUR_MS - 250, HOUR_MS - 650, -1))
    assert (len(await node.held("quiet")), len(await node.held("other"))) == (50, 300)
    assert node.told() == [("AffinityCrowded", "loud")]


async def test_one_service_alone_may_fill_the_map() -> None:
    """SVN-101: there is nobody to protect."""
    node = Node()
    await node.put("alone")
    await node.put("elsewhere", clients="64")
    await node.come("alone", SIZE)
    await node.keeper.look("IPv4")

    assert len(await node.held("alone")) == SIZE


@pytest.mark.parametrize("clients", ["", "4096"])
async def test_clients_of_an_endpoint_that_left_are_forgotten(clients: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NF-33, SVN-102: in pieces, and one that expired meanwhile holds up none."""
    monkeypatch.setattr(affinity_keeper, "PIECE", 10)
    node = Node()
    await node.put("web", clients=clients)
    where = f"cl_{node.number('web').hex()}_4096" if clients else CLIENTS
    await node.come("web", 100, where, endpoint=2)
    await node.come("web", 20, where)
    node.table.batches.clear()
    real = node.table.clients

    async def hasty(name: str, **options: Any) -> Sequence[AffineClient]:
        found = await real(name, **options)
        if found and not node.table.batches:
            await node.table.apply(Batch(deletes={where: [found[3].key]}))
        return found

    node.table.clients = hasty  # type: ignore[assignment,method-assign]
    await node.put("web", clients=clients, addresses=1)
    await node.keeper.look("IPv4")

    assert len(await node.held("web", where)) == 20
    assert max(len(one.deletes.get(where, ())) for one in node.table.batches) == 10


async def test_a_node_without_affinity_asks_the_kernel_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """SVN-101."""
    node = Node()
    node.intake.put_service(make_service())
    await node.plane.families["IPv4"].sync()
    monkeypatch.setattr(node.table, "client_count", None)

    assert await node.keeper.look("IPv4") == affinity_keeper.LOOK_S

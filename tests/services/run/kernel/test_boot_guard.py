# SPDX-License-Identifier: Apache-2.0
"""SVN-21, SVN-23: the guard's file and its end where nft or the disk refuse; packets are in node/test_boot_guard.py."""

import asyncio
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from agent.model.services.nft_error import NftFailed, RivalFound
from agent.model.services.service import ServiceKey
from agent.services.nftables.guard import guard_text, guarded_in
from agent.services.objects.node_state import NodeSettings
from agent.services.ruleset import SyncReport
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel.boot_guard import REST_S, BootGuard
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service


class Loader:
    """Takes texts, and refuses the first ones."""

    def __init__(self, refusals: int = 0, *, is_guarded: bool = False) -> None:
        self.texts: list[str] = []
        self._is_guarded = is_guarded
        self._refusals = refusals

    async def has_table(self, _name: str) -> bool:
        return self._is_guarded

    async def load(self, text: str) -> None:
        if self._refusals:
            self._refusals -= 1
            raise NftFailed("out of luck")
        self.texts.append(text)


class Node:
    def __init__(self, file: Path, loader: Loader, life_s: int = 300) -> None:
        self.clock = FakeClock()
        settings = NodeSettings(node="here", addresses=("192.168.0.10",), service_ranges=("10.96.0.0/16",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0)
        rules = NftRuleset(FakeNft("IPv4", FakeKernel()))
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=self.clock, tell=lambda _: None)
        tables = {"IPv4": loader}
        self.here: tuple[bytes, ...] = ()

        async def addresses() -> tuple[bytes, ...]:
            return self.here

        self.guard = BootGuard(
            self.plane,
            tables,
            file,
            self.clock,
            life_s=life_s,
            addresses=addresses,  # type: ignore[arg-type]
        )
        self.plane.followers.append(self.guard.follow)
        self.plane.gives_way = self.guard.lift

        self.view = ServicesView(self.plane, {"IPv4": NftRulesView("IPv4", rules)}, addresses, beside=[self.guard])
        self._running: asyncio.Task[None] | None = None

    async def sync(self) -> None:
        await self.plane.families["IPv4"].sync()

    async def turns(self, count: int) -> None:
        self._running = self._running or asyncio.create_task(self.guard.run())
        for _ in range(count):
            await asyncio.sleep(0.05)
            await self.clock.advance(REST_S)


async def test_a_refused_removal_is_tried_again(tmp_path: Path) -> None:
    loader = Loader(refusals=2)
    node = Node(tmp_path / "services" / "guard.nft", loader)
    await node.sync()
    await node.turns(4)

    assert loader.texts == ["add table ip kepd_guard\ndelete table ip kepd_guard\n"]


async def test_each_family_is_lifted_at_once(tmp_path: Path) -> None:
    """SVN-23: the second one does not wait because of the first."""
    loader = Loader()
    node = Node(tmp_path / "guard.nft", loader)
    tables: Any = {"IPv4": loader, "IPv6": loader}
    guard = BootGuard(node.plane, tables, tmp_path / "guard.nft", node.clock, life_s=0, addresses=node.guard._here)
    running = asyncio.create_task(guard.run())
    for count, family in enumerate(("IPv6", "IPv4"), 1):
        guard.follow(family, SyncReport({}, 0, 0.0, is_full=True))  # type: ignore[arg-type]
        async with asyncio.timeout(30):
            while len(loader.texts) < count:
                await asyncio.sleep(0.001)
    running.cancel()

    assert ["kepd_guard" in text for text in loader.texts] == [True, True]


async def test_the_file_follows_addresses_outside_of_the_networks_alone(tmp_path: Path) -> None:
    file = tmp_path / "services" / "guard.nft"
    node = Node(file, Loader())
    await node.sync()
    await node.turns(2)
    first = file.stat()
    node.intake.put_service(make_service("web"))
    await node.sync()
    await node.turns(2)
    same = file.stat()
    node.intake.put_service(make_service("web", externalIPs=["203.0.113.9"]))
    await node.sync()
    await node.turns(2)

    assert (first.st_ino, first.st_mode & 0o777) == (same.st_ino, 0o600)
    assert "203.0.113.9 . tcp . 80 timeout 300s" in file.read_text()
    node.intake.drop_service("shop", "web")
    await node.sync()
    await node.turns(2)
    assert "203.0.113.9" not in file.read_text()


async def test_no_address_of_this_node_or_of_what_it_needs_is_guarded(tmp_path: Path) -> None:
    """SVN-22: whatever Services take it, other programs listen there, and kepd itself needs some."""
    file = tmp_path / "guard.nft"
    node = Node(file, Loader())
    node.here = (ip_address("192.168.50.1").packed,)
    allowed = ("192.168.0.0/16", "203.0.113.0/24")
    settings = NodeSettings(
        node="here", addresses=("192.168.0.10",), service_ranges=("10.96.0.0/16",), external_ips=allowed
    )
    node.intake.apply(settings)
    own = ["192.168.0.10", "192.168.50.1", "203.0.113.5", "203.0.113.9"]
    node.intake.put_service(make_service("web", externalIPs=own))
    await node.sync()
    node.intake.set_reserved({ip_address("203.0.113.5").packed: "the API server's address"})
    await node.sync()
    await node.turns(3)

    guarded = [str(one) for one in guarded_in(file.read_text())]
    assert guarded == ["10.96.0.0/16", "203.0.113.9 . tcp . 80"]


async def test_beside_another_program_that_has_services_here_the_guard_is_lifted(tmp_path: Path) -> None:
    """SVN-23: nothing else would lift it, and its rules are there."""
    file, loader = tmp_path / "guard.nft", Loader()
    node = Node(file, loader)
    node.plane.sync_failed("IPv4", RivalFound("kube-proxy is here"), retry_s=1.0, is_full=True)
    await node.turns(2)

    assert loader.texts == ["add table ip kepd_guard\ndelete table ip kepd_guard\n"]
    assert not file.exists()


async def test_a_disk_that_refuses_is_asked_again(tmp_path: Path) -> None:
    place = tmp_path / "services"
    place.write_text("not a directory")
    node = Node(place / "guard.nft", Loader())
    await node.sync()
    await node.turns(2)
    place.unlink()
    await node.turns(2)

    assert "10.96.0.0/16 timeout 300s" in (place / "guard.nft").read_text()


async def test_switched_off_it_leaves_no_file(tmp_path: Path) -> None:
    file, loader = tmp_path / "guard.nft", Loader()
    file.write_text("table ip kepd_guard { }")
    node = Node(file, loader, life_s=0)
    await node.sync()
    await node.turns(2)

    assert not file.exists()
    assert len(loader.texts) == 1


async def shown(node: Node) -> tuple[list[str], list[str], str]:
    """Of the guard: rows that stand, rows that differ, and what becomes of a packet to a Service."""
    rows = [one.key async for _, one in node.view.rules() if one.map == "kepd_guard"]
    different = [one.actual async for _, one in node.view.differences() if one.map == "kepd_guard"]
    told = await node.view.trace("10.1.0.9", "10.96.0.10", "TCP", 80, in_kernel=True)
    return rows, different, told.verdict


async def test_a_guard_that_stands_is_explained_traced_and_listed(tmp_path: Path) -> None:
    """SVN-20, SVN-22: until the first sync it is as it should be, after that it is a difference until it goes."""
    file = tmp_path / "guard.nft"
    alone = guarded_in("10.96.0.0/16 timeout 1s\n203.0.113.9 . tcp . 80 timeout 1s\n")
    file.write_text(guard_text("IPv4", alone, 300) + guard_text("IPv6", guarded_in("fd00::/64 timeout 1s"), 300))
    node = Node(file, Loader(refusals=1, is_guarded=True))
    node.intake.put_service(make_service("web"))
    await node.guard.begin()
    assert await shown(node) == (["10.96.0.0/16", "203.0.113.9 . tcp . 80"], [], "drop")

    await node.sync()
    rows, different, verdict = await shown(node)
    assert (len(rows), different, verdict) == (2, ["drop", "drop"], "drop")
    assert any("guarded since the boot" in line for line in node.view.route(ServiceKey("shop", "web")))
    await node.turns(4)
    assert await shown(node) == ([], [], "reject")
    assert not any("guarded" in line for line in node.view.route(ServiceKey("shop", "web")))


async def test_without_a_table_nothing_is_guarded(tmp_path: Path) -> None:
    file = tmp_path / "guard.nft"
    file.write_text(guard_text("IPv4", guarded_in("10.96.0.0/16 timeout 1s"), 300))
    node = Node(file, Loader())
    await node.guard.begin()

    assert (await shown(node))[:2] == ([], [])

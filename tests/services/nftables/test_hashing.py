# SPDX-License-Identifier: Apache-2.0
"""Tables of slots as elements (SVN-41 to SVN-43): what is written, and for whom there is room."""

from typing import Any

import pytest

from agent.model.services.service import ServiceKey
from agent.services.nftables.elements import NUMBER
from agent.services.objects.bounds import NO_HASHING
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

WEB = ServiceKey("shop", "web")
BALANCE = "kepd.dev/balance"


class Node:
    def __init__(self, **settings: Any) -> None:
        self.table = FakeNft("IPv4", FakeKernel())
        own = NodeSettings(node="here", addresses=("192.168.0.10",), **settings)
        self.intake = ServiceInputs(own, tell=lambda _: None, started_s=0.0)
        rules = NftRuleset(self.table)
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=FakeClock(), tell=lambda _: None)

        async def addresses() -> tuple[bytes, ...]:
            return ()

        self.view = ServicesView(self.plane, {"IPv4": NftRulesView("IPv4", rules)}, addresses)

    def put(self, *endpoints: int, how: str = "maglev", notes: dict[str, str] | None = None, **spec: Any) -> None:
        meta = {"annotations": {BALANCE: how, **(notes or {})}}
        self.intake.put_service(make_service(meta=meta, **spec))
        self.intake.put_slice(make_slice([f"10.1.{n // 250}.{n % 250}" for n in endpoints]))

    async def sync(self) -> None:
        await self.plane.families["IPv4"].sync()

    async def slots(self) -> dict[int, bytes]:
        state = await self.table.read()
        assert state is not None
        found = state.content["eps"].items()
        return {NUMBER.unpack(key[-4:])[0]: data for key, data in found if isinstance(data, bytes)}

    async def target(self) -> str:
        state = await self.table.read()
        assert state is not None
        (found,) = state.content["services"].values()
        return str(found)

    @property
    def findings(self) -> tuple[str, ...]:
        return self.view.service(WEB).findings


@pytest.mark.parametrize(("how", "chain"), [("maglev", "mc_251"), ("maglev,source", "sc_251")])
async def test_a_port_has_a_table_of_slots(how: str, chain: str) -> None:
    node = Node()
    node.put(1, 2, 3, how=how)
    await node.sync()

    assert await node.target() == chain
    assert sorted(await node.slots()) == list(range(251))
    assert node.findings == ()
    told = await node.view.trace("10.1.0.9", "10.96.0.10", "TCP", 80, in_kernel=False)
    assert (told.verdict, len(told.targets)) == ("dnat", 3)
    assert "by a hash of" in told.steps[-1].found
    assert any("251 slots, up to 12 endpoints" in line for line in node.view.route(WEB))


async def test_a_change_writes_only_slots_of_which_the_owner_changes() -> None:
    """SVN-43."""
    node = Node()
    node.put(1, 2, 3, 4)
    await node.sync()
    before = await node.slots()
    node.put(1, 2, 3)
    await node.sync()
    after = await node.slots()
    changed = [slot for slot in before if before[slot] != after[slot]]

    assert [len(keys) for keys in node.table.batches[-1].deletes.values()] == [len(changed)]
    assert len(changed) < 251 // 4 * 1.5


async def test_a_restart_writes_nothing() -> None:
    """Same input, same table, whatever process."""
    node = Node()
    node.put(1, 2, 3, 4, 5)
    await node.sync()
    other = Node()
    other.table.kernel = node.table.kernel
    other.put(5, 4, 3, 2, 1)
    await other.sync()

    assert not [one for one in other.table.batches if one.size]


async def test_it_may_be_switched_on_and_off_under_way() -> None:
    node = Node()
    for how, count in (("no", 3), ("maglev", 251), ("maglev,source", 251), ("no", 3)):
        node.put(1, 2, 3, how=how)
        await node.sync()
        assert len(await node.slots()) == count


async def test_steps_of_the_size_are_told() -> None:
    """SVN-40."""
    node = Node()
    node.put(*range(1, 14))
    await node.sync()

    assert len(await node.slots()) == 1021
    assert any("1021 slots, up to 50 endpoints; more are hashed anew" in line for line in node.view.route(WEB))


async def test_too_many_endpoints_are_drawn_and_told() -> None:
    node = Node()
    node.put(*range(1, 1002))
    await node.sync()

    assert await node.target() == "c_1001"
    assert "1001 endpoints have no table of slots" in node.findings[0]


@pytest.mark.parametrize(
    ("most", "text"), [(0, "the 0 Services of services.maglevMax"), (NO_HASHING, "needs the backend nftables")]
)
async def test_without_room_or_with_iptables_endpoints_are_drawn(most: int, text: str) -> None:
    """SVN-41."""
    node = Node(maglevs=most)
    node.put(1, 2, 3)
    await node.sync()

    assert await node.target() == "c_3"
    assert text in node.findings[0]


async def test_the_oldest_services_have_the_tables() -> None:
    node = Node(maglevs=1)
    for name, ip, when in (("young", "10.96.0.2", "2030-01-02"), ("old", "10.96.0.1", "2030-01-01")):
        meta = {"annotations": {BALANCE: "maglev"}, "creationTimestamp": f"{when}T00:00:00Z"}
        node.intake.put_service(make_service(name, ip=ip, meta=meta))
        node.intake.put_slice(make_slice(["10.1.0.1"], service=name))
        await node.sync()
    desired = node.plane.families["IPv4"].desired

    assert desired.hash_tables.granted == {ServiceKey("shop", "old")}
    node.intake.drop_service("shop", "old")
    await node.sync()
    assert desired.hash_tables.granted == {ServiceKey("shop", "young")}


async def test_client_affinity_wins() -> None:
    """SVN-43."""
    node = Node()
    node.put(1, 2, sessionAffinity="ClientIP")
    await node.sync()

    assert (await node.target()).startswith("c_2_")
    assert "has no effect beside sessionAffinity: ClientIP" in node.findings[0]


@pytest.mark.parametrize(
    ("spec", "notes", "text"),
    [
        ({"internalTrafficPolicy": "Local"}, {}, "with a Local traffic policy nodes have different endpoints"),
        ({}, {"kepd.dev/topology-keys": "zone,*"}, "with topology keys nodes have different endpoints"),
    ],
)
async def test_lists_that_differ_by_node_are_told(spec: dict[str, Any], notes: dict[str, str], text: str) -> None:
    """SVN-42."""
    node = Node()
    node.put(1, 2, notes=notes, **spec)
    await node.sync()

    assert text in node.findings[0]


async def test_hints_that_make_lists_differ_are_told() -> None:
    """SVN-42."""
    node = Node(labels={"topology.kubernetes.io/zone": "a"})
    node.intake.put_service(make_service(meta={"annotations": {BALANCE: "maglev"}}))
    ends = [{"ip": f"10.1.0.{n}", "hints": {"forZones": [{"name": zone}]}} for n, zone in ((1, "a"), (2, "b"))]
    node.intake.put_slice(make_slice(ends))
    await node.sync()

    assert any("PreferSameZone gives them different endpoints" in line for line in node.view.route(WEB))


async def test_weights_are_turns() -> None:
    node = Node()
    node.put(1, 2, notes={"kepd.dev/endpoint-weights": "10.1.0.1=6,10.1.0.2=2"})
    await node.sync()
    counts = sorted(map(list((await node.slots()).values()).count, set((await node.slots()).values())))

    assert 2.8 < counts[1] / counts[0] < 3.2

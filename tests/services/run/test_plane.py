# SPDX-License-Identifier: Apache-2.0
"""The plane as a whole: what it says of its node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from structlog.testing import capture_logs

from agent.config.document import Configuration
from agent.model.component import Board, State
from agent.model.kube_objects import NodeObject
from agent.model.services.service import ServiceKey
from agent.services.attach.health import ServiceHealth
from agent.services.objects.addresses import address_of
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice


def test_a_node_that_has_not_arrived_yet_is_not_called_incomplete() -> None:
    """IN-17, TY-3: its addresses are missing only once it is here without them."""
    waits_for = ("services", "slices", "node", "interfaces")
    intake = ServiceInputs(NodeSettings(node="n1"), tell=lambda _event: None, started_s=0.0, waits_for=waits_for)
    ServicesPlane(
        intake, {"IPv4": NftRuleset(FakeNft("IPv4", FakeKernel()))}, clock=FakeClock(), tell=lambda _event: None
    )
    with capture_logs() as before:
        intake.set_service_ranges(["10.96.0.0/16"])
    with capture_logs() as after:
        intake.set_node(msgspec.json.decode(b'{"metadata": {"name": "n1"}}', type=NodeObject))

    assert before == []
    assert [line["event"] for line in after] == ["service_node_incomplete"]


def make(kernel: FakeKernel, waits_for: tuple[str, ...] = ("services", "slices", "node")) -> ServicesPlane:
    intake = ServiceInputs(
        NodeSettings(node="n1", detect_mode="NodeCIDR"), tell=lambda _: None, started_s=0.0, waits_for=waits_for
    )
    rules = {"IPv4": NftRuleset(FakeNft("IPv4", kernel))}
    return ServicesPlane(intake, rules, clock=FakeClock(), tell=lambda _event: None)


def node(*ranges: str) -> NodeObject:
    spec = {"podCIDRs": list(ranges)}
    status = {"addresses": [{"type": "InternalIP", "address": "192.168.0.10"}]}
    return msgspec.convert({"metadata": {"name": "n1"}, "spec": spec, "status": status}, type=NodeObject)


@asynccontextmanager
async def running(plane: ServicesPlane) -> AsyncIterator[None]:
    task = asyncio.ensure_future(plane.run(Board(lambda: 0.0).add("services", State.STARTING)))
    await asyncio.sleep(0.01)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def hand_in(plane: ServicesPlane, *ranges: str) -> None:
    plane.intake.put_service(make_service("web"))
    plane.intake.put_slice(make_slice(["10.1.0.1"], service="web"))
    plane.intake.set_node(node(*ranges))
    plane.intake.complete("services")
    plane.intake.complete("slices")


async def settled(plane: ServicesPlane) -> None:
    async with asyncio.timeout(30):
        while not plane.families["IPv4"].is_synced or plane.families["IPv4"].pending_since_s is not None:
            await plane._clock.advance(0.1)


async def test_while_the_first_lists_are_awaited_the_rules_that_stand_decide_about_health() -> None:
    """FS-4: restarts beside a slow API server take no node out of its load balancers, however slow it is."""
    kernel = FakeKernel()
    first = make(kernel)
    async with running(first):
        stood = first.stands
        hand_in(first, "10.1.0.0/16")
        await settled(first)
    again = make(kernel)
    pages = ServiceHealth(again, Configuration, lambda _event: None, has_node_object=True).pages()
    async with running(again):
        again.intake.put_service(make_service("web"))
        await again._clock.advance(3600)
        waiting = [pages[path]({}, {}).status for path in ("/healthz", "/livez")]
        hand_in(again, "10.1.0.0/16")
        await settled(again)
        arrived = [pages[path]({}, {}).status for path in ("/healthz", "/livez")]

    assert not stood
    assert (again.stands, waiting, arrived) == (True, [200, 200], [200, 200])


async def test_a_node_without_rules_gets_no_traffic_before_its_first_lists() -> None:
    """FS-4: it is alive all the same, so that no probe restarts it."""
    plane = make(FakeKernel())
    pages = ServiceHealth(plane, Configuration, lambda _event: None, has_node_object=True).pages()
    async with running(plane):
        plane.intake.put_service(make_service("web"))
        await plane._clock.advance(3600)

        assert [pages[path]({}, {}).status for path in ("/healthz", "/livez")] == [503, 200]


async def test_ranges_of_pods_that_come_late_change_a_set_and_no_table() -> None:
    """FS-10: so that clients keep their endpoints; until then it is said."""
    kernel = FakeKernel()
    plane = make(kernel)
    async with running(plane):
        with capture_logs() as lines:
            hand_in(plane)
            await settled(plane)
        table = kernel.tables["IPv4"].comment
        plane.intake.set_node(node("10.1.0.0/16"))
        with capture_logs() as later:
            await settled(plane)

    assert [line["event"] for line in lines].count("service_node_incomplete") == 1
    assert [line["event"] for line in later if line["event"] == "service_table_replaced"] == []
    assert kernel.tables["IPv4"].comment == table
    assert kernel.tables["IPv4"].content["pod_cidrs"] != {}


async def test_a_node_port_that_answers_nowhere_is_a_finding() -> None:
    """FS-22: and where no Node object names an address, that of the default route serves."""
    kernel = FakeKernel()
    intake = ServiceInputs(NodeSettings(node="n1"), tell=lambda _: None, started_s=0.0)
    rules = {"IPv4": NftRuleset(FakeNft("IPv4", kernel))}
    plane = ServicesPlane(intake, rules, clock=FakeClock(), tell=lambda _event: None)
    view = ServicesView(plane, {}, lambda: asyncio.sleep(0, ()))
    intake.put_service(make_service("web", type="NodePort", ports=[{"port": 80, "nodePort": 30080}]))
    async with running(plane):
        intake.complete("services")
        intake.complete("slices")
        await settled(plane)
        before = view.service(ServiceKey("shop", "web")).findings
        intake.set_default_addresses([address_of(bytes([10, 9, 0, 5]))])
        await settled(plane)
        after = view.service(ServiceKey("shop", "web")).findings

    assert [one for one in before if "answers on no address" in one] == list(before) != []
    assert after == ()
    assert kernel.tables["IPv4"].content["np_addrs"] == {bytes([10, 9, 0, 5]): None}

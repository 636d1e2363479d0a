# SPDX-License-Identifier: Apache-2.0
"""What the plane tells of Services that are not, or not wholly, programmed."""

from ipaddress import ip_address

from agent.model.event import Event
from agent.model.services.service import ServiceKey
from agent.services.attach.unit import service_advice
from agent.services.objects.node_state import NodeSettings
from agent.services.run.intake import ServiceInputs
from agent.services.run.metrics import service_metrics
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice
from tests.services.run.test_family_sync import Picky


class Node:
    """A plane of one family that refuses what has to do with 10.96.0.2, and what it told."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.events: list[Event] = []
        rules = NftRuleset(FakeNft("IPv4", self.kernel))
        rules.table = Picky("IPv4", self.kernel)
        settings = NodeSettings(node="here", addresses=("192.168.0.10",))
        self.intake = ServiceInputs(settings, tell=self.events.append, started_s=0.0)
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=FakeClock(), tell=self.events.append)

    def put(self, name: str, ip: str) -> None:
        self.intake.put_service(make_service(name, ip=ip))
        self.intake.put_slice(make_slice(["10.1.0.1"], service=name))

    async def told(self) -> list[tuple[str, str]]:
        """Reasons and objects, after two syncs: nothing is told twice."""
        for _ in range(2):
            await self.plane.families["IPv4"].sync()
        return [(event.reason, event.object_name) for event in self.events if event.is_warning]


async def test_a_service_whose_address_is_taken_is_told_once() -> None:
    """TY-19, FH-5."""
    node = Node()
    node.put("first", "10.96.0.10")
    node.put("second", "10.96.0.10")

    assert await node.told() == [("AddressConflict", "second")]


async def test_a_service_that_the_kernel_refuses_is_told_once() -> None:
    """SY-6, FH-5."""
    node = Node()
    node.put("good", "10.96.0.10")
    node.put("poisoned", "10.96.0.2")

    assert await node.told() == [("ServiceQuarantined", "poisoned")]


async def test_a_service_without_room_is_told_once_and_shown_wherever_one_asks() -> None:
    """SY-12: the node warns before."""
    node = Node()
    node.intake.apply(NodeSettings(node="here", addresses=("192.168.0.10",), elements=24))
    node.put("s1", "10.96.0.1")
    node.put("s3", "10.96.0.3")
    assert await node.told() == [("ServiceRoomShort", "")]
    node.put("s4", "10.96.0.4")
    assert await node.told() == [("ServiceRoomShort", ""), ("ServiceTooLarge", "s4")]
    view = ServicesView(node.plane, {}, None)  # type: ignore[arg-type]
    key = ServiceKey("shop", "s4")
    assert "9 elements find no room" in view.service(key).findings[0]
    assert not view.service(key).is_programmed
    assert "9 elements find no room" in view.route(key)[-1]
    figures = {
        (one.name, sample.value) for one in service_metrics(node.plane) for sample in one.samples if "room" in one.name
    }
    assert figures == {("kepd_services_room_used", 18.0), ("kepd_services_without_room", 1.0)}


async def test_an_address_that_a_service_may_not_have_is_told_once() -> None:
    """SVN-50."""
    node = Node()
    node.intake.put_service(make_service("taker", ip="10.96.0.10", externalIPs=["192.168.0.10", "203.0.113.9"]))
    node.intake.set_reserved({ip_address("203.0.113.9").packed: "a name server of this node"})

    assert await node.told() == [("ExternalIPRefused", "taker"), ("ExternalIPRefused", "taker")]
    view = ServicesView(node.plane, {}, None)  # type: ignore[arg-type]
    route = view.route(ServiceKey("shop", "taker"))
    assert "192.168.0.10 is an address of this node" in route[-2]
    assert "203.0.113.9 is a name server of this node" in route[-1]


async def test_another_program_that_has_its_services_here_is_told_once() -> None:
    """DS-14, FH-5."""
    node = Node()
    node.put("web", "10.96.0.10")
    node.kernel.rivals.append("table kube-proxy of kube-proxy")

    assert await node.told() == [("BackendConflict", "")]
    assert "table kube-proxy of kube-proxy" in node.events[-1].message


async def test_a_chain_that_drops_what_is_forwarded_is_told_once() -> None:
    """TY-18, FH-5: Services are programmed all the same."""
    node = Node()
    node.put("web", "10.96.0.10")
    node.kernel.forward_drops.append("chain FORWARD of table filter")

    assert await node.told() == [("ForwardingDropped", "")]
    assert node.events[-1].message.startswith("IPv4: chain FORWARD of table filter drops what this node forwards")
    assert node.plane.is_answering


async def test_what_drops_forwarded_packets_is_told_whenever_it_comes() -> None:
    """TY-18: a full sync asks again."""
    node = Node()
    node.put("web", "10.96.0.10")
    assert await node.told() == []
    node.kernel.forward_drops.append("chain FORWARD of table filter")
    node.plane.families["IPv4"].disturbed("a full sync")

    assert [one for one in await node.told() if one[0] != "RulesRepaired"] == [("ForwardingDropped", "")]


async def test_a_service_without_an_address_is_listed_with_the_reason() -> None:
    """FS-21."""
    node = Node()
    node.put("noip", "")
    view = ServicesView(node.plane, {}, None)  # type: ignore[arg-type]
    key = ServiceKey("shop", "noip")

    assert await node.told() == [("InvalidService", "noip")]
    assert view.service(key).findings[0].startswith("spec.clusterIP: none is given")
    assert view.route(key)[-1].startswith("finding: spec.clusterIP: none is given")
    (advice,) = await service_advice(view)
    assert advice.found.startswith("spec.clusterIP: none is given")

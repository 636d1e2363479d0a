# SPDX-License-Identifier: Apache-2.0
"""How connections to endpoints that are gone are ended: sockets first, in small pieces, and not too many."""

import asyncio
import ipaddress
from collections.abc import Iterable

import pytest

from agent.model.refused import Refused
from agent.model.services.flow import Flow, FlowsUnavailable, SocketsUnavailable
from agent.model.services.service import ServiceKey
from agent.services.objects.addresses import read_address
from agent.services.run import connection_ender
from agent.services.run.connection_ender import ConnectionEnder, EndingSettings
from tests.fakes.conntrack import FakeConntrack
from tests.services.making import make_service, make_slice
from tests.services.run.test_metrics import Node

NOTE = {"annotations": {"kepd.dev/terminate-established": "on-endpoint-removal"}}
WEB = ServiceKey("shop", "web")
VIP, STAYS, GOES, HOST, POD = "10.96.0.10", "10.1.0.1", "10.1.0.2", "192.168.0.10", "10.1.0.9"


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


class Sockets:
    def __init__(self, steps: list[str]) -> None:
        self.steps = steps
        self.destroyed: list[Flow] = []
        self.failure = ""

    async def destroy(self, flows: Iterable[Flow]) -> int:
        if self.failure:
            raise SocketsUnavailable(self.failure)
        found = list(flows)
        if found:
            self.steps.append("sockets")
        self.destroyed += found
        return len(found)


class Flows(FakeConntrack):
    def __init__(self, steps: list[str]) -> None:
        super().__init__()
        self.steps = steps
        self.pieces: list[int] = []

    async def delete(self, flows: Iterable[Flow]) -> int:
        doomed = list(flows)
        count = await super().delete(doomed)
        self.pieces.append(count)
        self.steps.append("entries")
        return count


class EndingNode(Node):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.flows, self.sockets = Flows(self.steps), Sockets(self.steps)
        self.settings = EndingSettings()
        self.start()

    def start(self) -> None:
        """A process that knows nothing."""
        self.plane.followers.clear()

        async def addresses() -> list[bytes]:
            return [packed(HOST)]

        self.ender = ConnectionEnder(
            self.plane, self.flows, self.sockets, self.clock,
            settings=lambda: self.settings, addresses=addresses,
        )  # fmt: skip
        self.plane.followers.append(self.ender.follow)

    async def change(self, *endpoints: str, **spec: object) -> None:
        self.intake.put_service(make_service(meta=NOTE, **spec))
        self.intake.put_slice(make_slice(list(endpoints), family="IPv4"))
        await self.clock.advance(60.0)
        await self.sync()

    def begin(self, port: int, source: str = POD, answers: str = GOES) -> Flow:
        return self.flows.begin(Flow("IPv4", "TCP", packed(source), port, packed(VIP), 80, packed(answers), 8080))


@pytest.fixture
async def node() -> EndingNode:
    made = EndingNode()
    await made.change(STAYS, GOES)
    await made.ender.round()
    made.steps.clear()
    return made


async def test_sockets_of_this_host_end_before_their_entries(node: EndingNode) -> None:
    """SVN-2, SVN-3: a pod's own socket is left alone."""
    own, other, stays = node.begin(1, HOST), node.begin(2), node.begin(3, answers=STAYS)
    await node.change(STAYS)
    await node.ender.round()

    assert node.steps == ["sockets", "entries"]
    assert node.sockets.destroyed == [own]
    assert node.flows.deleted == [own, other]
    assert stays in await node.flows.flows("IPv4", ("TCP",))
    assert node.plane.measures.ended == {("IPv4", "entry"): 2, ("IPv4", "socket"): 1}


async def test_a_kernel_that_cannot_end_sockets_still_loses_the_entries(node: EndingNode) -> None:
    """SVN-3: and is asked once."""
    node.sockets.failure = "no such thing"
    flow = node.begin(1, HOST)
    await node.change(STAYS)
    await node.ender.round()

    assert node.flows.deleted == [flow]
    assert node.ender._has_no_sockets


async def test_without_mid_stream_tracking_nothing_is_ended(node: EndingNode) -> None:
    """SVN-4: it would be silence instead of a reset."""
    told: list[str] = []
    node.plane._tell = lambda event: told.append(event.reason)
    node.flows.is_loose = False
    flow = node.begin(1)
    await node.change(STAYS)
    await node.ender.round()
    assert node.flows.deleted == []
    assert told.count("TerminationRefused") == 1
    assert "tcp_loose" in node.ender.refusal
    with pytest.raises(Refused):
        await node.ender.end_connections(WEB, None, 0, dry_run=False)

    node.flows.is_loose = True
    await node.clock.advance(connection_ender.REFUSED_S)
    await node.ender.round()
    assert node.flows.deleted == [flow]


async def test_so_many_in_a_minute_and_the_rest_in_the_next(node: EndingNode) -> None:
    """SVN-6."""
    told: list[str] = []
    node.plane._tell = lambda event: told.append(event.reason)
    node.settings = EndingSettings(most_per_min=3)
    for port in range(1, 6):
        node.begin(port)
    await node.change(STAYS)
    await node.ender.round()
    await node.ender.round()
    assert len(node.flows.deleted) == 3
    assert told.count("TerminationCapped") == 1

    await node.clock.advance(connection_ender.MINUTE_S)
    await node.ender.round()
    assert len(node.flows.deleted) == 5


async def test_many_are_ended_in_pieces(node: EndingNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """SVN-2."""
    monkeypatch.setattr(connection_ender, "SLICE_S", 0.0)
    for port in range(1, 1202):
        node.begin(port)
    await node.change(STAYS)
    await node.ender.round()

    assert node.flows.pieces == [500, 500, 201]


async def test_a_list_that_fails_is_asked_for_again(node: EndingNode) -> None:
    """CT-7."""
    flow = node.begin(1)
    await node.change(STAYS)
    node.flows.failures.append(FlowsUnavailable("busy"))
    await node.ender.round()
    assert node.flows.deleted == []

    await node.clock.advance(connection_ender.RETRY_S)
    await node.ender.round()
    assert node.flows.deleted == [flow]


async def test_what_a_killed_process_left_the_next_one_ends(node: EndingNode) -> None:
    """SVN-5: between the commit and the end of its connections."""
    endpoint = node.begin(1)
    await node.change(STAYS)
    node.start()
    node.plane.families["IPv4"].disturbed("a new process")
    await node.sync()
    await node.ender.round()

    assert node.flows.deleted == [endpoint]


async def test_services_that_go_all_at_once_keep_their_connections(node: EndingNode) -> None:
    """SVN-5: as after a list that lost them."""
    node.begin(1, answers=STAYS)
    node.intake.replace_services(())
    node.intake.replace_slices(())
    await node.clock.advance(60.0)
    await node.sync()
    await node.ender.round()
    node.start()
    node.plane.families["IPv4"].disturbed("a new process")
    await node.sync()
    await node.ender.round()

    assert node.flows.deleted == []


async def test_a_service_without_the_annotation_costs_no_look(node: EndingNode) -> None:
    """SVN-1."""
    node.intake.put_service(make_service("plain", ip="10.96.0.11"))
    node.intake.put_slice(make_slice(["10.1.0.7"], service="plain"))
    await node.clock.advance(60.0)
    await node.sync()

    assert node.ender._indices["IPv4"].due_s == float("inf")


async def test_a_reload_of_the_default_counts_for_services_that_stand(node: EndingNode) -> None:
    node.intake.put_service(make_service("plain", ip="10.96.0.11"))
    await node.clock.advance(60.0)
    await node.sync()
    flow = node.flows.begin(Flow("IPv4", "TCP", packed(POD), 1, packed("10.96.0.11"), 80, packed(GOES), 8080))
    node.settings = EndingSettings(default_s=0)
    node.ender.reloaded()
    await node.ender.round()

    assert node.flows.deleted == [flow]


async def test_by_hand_nothing_ends_before_the_kernel_has_what_was_told(node: EndingNode) -> None:
    """SVN-7: it would begin anew at the endpoint that is gone."""
    gone = node.begin(1)
    node.intake.put_slice(make_slice([STAYS], family="IPv4"))
    ending = asyncio.ensure_future(node.ender.end_connections(WEB, None, 0, dry_run=False))
    await node.clock.advance(1.0)
    assert node.flows.deleted == []
    await node.sync()
    await node.clock.advance(connection_ender.LOOK_S)

    assert (await ending).entries == 1
    assert node.flows.deleted == [gone]


async def test_by_hand_a_kernel_that_takes_nothing_keeps_connections(node: EndingNode) -> None:
    """SVN-7: and it is said."""
    node.begin(1)
    node.intake.put_slice(make_slice([STAYS], family="IPv4"))
    ending = asyncio.ensure_future(node.ender.end_connections(WEB, None, 0, dry_run=False))
    await node.clock.advance(connection_ender.UNWRITTEN_S + connection_ender.LOOK_S)
    with pytest.raises(Refused, match="has not got the last changes"):
        await ending

    assert node.flows.deleted == []


async def test_by_hand(node: EndingNode) -> None:
    """SVN-7: those that are gone, or those to one endpoint; a dry run only lists."""
    gone, stays = node.begin(1, answers="10.1.0.77"), node.begin(2, HOST, STAYS)
    listed = await node.ender.end_connections(WEB, None, 0, dry_run=True)
    assert [one.endpoint for one in listed.connections] == ["10.1.0.77:8080"]
    assert node.flows.deleted == []

    done = await node.ender.end_connections(WEB, read_address(STAYS), 8080, dry_run=False)
    assert (done.total, done.entries, done.sockets) == (1, 1, 1)
    assert node.flows.deleted == [stays]

    await node.ender.end_connections(WEB, None, 0, dry_run=False)
    assert node.flows.deleted == [stays, gone]
    with pytest.raises(KeyError):
        await node.ender.end_connections(ServiceKey("shop", "none"), None, 0, dry_run=True)

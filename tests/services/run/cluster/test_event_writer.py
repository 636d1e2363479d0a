# SPDX-License-Identifier: Apache-2.0
"""SVN-10 to SVN-13: faults of Services as events of the API server."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent.drivers.kube import errors
from agent.model.event import Event
from agent.services.objects.node_state import NodeSettings
from agent.services.run.cluster import event_writer
from agent.services.run.cluster.event_writer import EventWriter
from agent.services.run.intake import ServiceInputs
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from agent.services.view.object_events import MOST_NOTE_BYTES, event_body, event_name
from tests.drivers.kube.fake import FakeKube
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service


def warned(reason: str, name: str, message: str = "x", namespace: str = "s", uid: str = "") -> Event:
    return Event(
        is_warning=True,
        reason=reason,
        message=message,
        plane="services",
        namespace=namespace,
        object_name=name,
        object_uid=uid,
    )


FAULT = warned("InvalidService", "web", "spec.ports: there is none", "shop", "u1")
QUARANTINE = warned("ServiceQuarantined", "web", "refused", "shop", "u1")


class Node:
    """One agent at a server that may be shared."""

    def __init__(self, server: FakeKube, name: str = "n1", luck: Callable[[], float] = lambda: 0.0) -> None:
        self.server, self.clock = server, FakeClock()
        self.passed: list[Event] = []
        self.writer = EventWriter(lambda: server, name, self.clock, self.passed.append, luck)  # type: ignore[arg-type,return-value]

    async def tell(self, *events: Event) -> None:
        for one in events:
            self.writer.tell(one)
        await self.writer.write_due()

    async def later(self, seconds: float) -> None:
        await self.clock.advance(seconds)
        await self.writer.write_due()

    def written(self) -> list[dict[str, Any]]:
        return list(self.server.objects._objects["events"].values())


@pytest.fixture
def node() -> Node:
    return Node(FakeKube())


async def test_an_event_says_what_is_wrong_with_which_object(node: Node) -> None:
    """SVN-10: also in kepd's own list."""
    await node.tell(FAULT)
    (event,) = node.written()

    assert node.passed == [FAULT]
    assert event["regarding"] == {
        "apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "u1",
    }  # fmt: skip
    assert event["metadata"]["namespace"] == "shop"
    told = [event[name] for name in ("type", "reason", "note", "reportingController", "reportingInstance", "action")]
    assert told == ["Warning", "InvalidService", FAULT.message, "kepd.dev/services", "n1", "Program"]
    assert event["eventTime"] == "2023-11-14T22:13:20.000000Z"


async def test_what_concerns_the_node_is_in_the_default_namespace(node: Node) -> None:
    """SVN-10."""
    await node.tell(Event(is_warning=True, reason="BackendConflict", message="kube-proxy", plane="services"))
    (event,) = node.written()

    assert event["metadata"]["namespace"] == "default"
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", "n1")


async def test_other_events_are_told_on_this_node_alone(node: Node) -> None:
    """SVN-10."""
    others = [
        Event(is_warning=False, reason="Starting", message="services", plane="services"),
        Event(is_warning=True, reason="RulesRepaired", message="IPv4: nft", plane="services"),
    ]
    await node.tell(*others)

    assert node.passed == others
    assert node.server.calls == []


async def test_of_what_all_nodes_see_one_writes_an_event() -> None:
    """SVN-11: by one question each, also when both ask at the same time."""
    server = FakeKube()
    first, second = Node(server, "n1", lambda: 0.1), Node(server, "n2", lambda: 0.9)
    for one in (first, second):
        one.writer.tell(FAULT)
    await first.later(event_writer.LONGEST_WAIT_S)
    await second.later(event_writer.LONGEST_WAIT_S)
    assert len(first.written()) == 1
    assert [one.split()[0] for one in server.calls] == ["get", "create", "get"]
    assert (first.writer.outcomes, second.writer.outcomes) == ({"written": 1}, {"known": 1})

    other = Event(
        is_warning=True, reason="InvalidService", message="y", plane="services", namespace="s", object_name="y"
    )
    await asyncio.gather(first.tell(other), second.tell(other))
    await first.later(event_writer.LONGEST_WAIT_S)
    await second.later(event_writer.LONGEST_WAIT_S)
    assert len(first.written()) == 2


async def test_what_only_this_node_sees_is_written_by_each() -> None:
    """SVN-11."""
    server = FakeKube()
    first, second = Node(server, "n1"), Node(server, "n2")
    await first.tell(QUARANTINE)
    await second.tell(QUARANTINE)

    assert len(first.written()) == 2


async def test_repeats_become_a_count_after_ten_minutes(node: Node) -> None:
    """SVN-12."""
    await node.tell(FAULT)
    await node.tell(FAULT, FAULT)
    await node.later(event_writer.REPEAT_S - 1)
    (event,) = node.written()
    assert "series" not in event

    await node.later(1.0)
    (event,) = node.written()
    assert event["series"]["count"] == 3
    assert node.writer.outcomes == {"written": 1, "repeated": 1}


async def test_an_event_that_the_server_forgot_is_written_anew(node: Node) -> None:
    """SVN-12: it keeps them for an hour."""
    await node.tell(QUARANTINE)
    node.server.objects._objects["events"].clear()
    node.writer.tell(QUARANTINE)
    await node.later(event_writer.REPEAT_S)

    assert len(node.written()) == 1


async def test_more_than_a_burst_is_dropped_and_counted(node: Node) -> None:
    """SVN-12."""
    events = [warned("ServiceQuarantined", f"w{number}") for number in range(300)]
    await node.tell(*events)

    assert len(node.written()) == 25
    assert node.writer.outcomes == {"written": 25, "dropped": 275}
    await node.clock.advance(60.0)
    await node.tell(*(warned("ServiceQuarantined", f"z{number}") for number in range(20)))
    assert len(node.written()) == 35


async def test_without_the_right_it_stops_for_ten_minutes(node: Node) -> None:
    """SVN-12."""
    node.server.failures["create"] = errors.Denied("create events.events.k8s.io: 403", 403)
    await node.tell(QUARANTINE)
    calls = len(node.server.calls)
    await node.later(event_writer.DENIED_S - 1)
    assert len(node.server.calls) == calls

    await node.later(1.0)
    assert len(node.written()) == 1


@pytest.mark.parametrize(
    "failure",
    [
        errors.Throttled("429", 429, retry_after_s=3.0),
        errors.Unanswered("no answer in time"),
        errors.Unreachable("connection refused"),
        errors.ServerFailed("500", 500),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_a_server_that_is_away_is_asked_again(node: Node, failure: errors.KubeError) -> None:
    """SVN-12."""
    node.server.failures["create"] = failure
    await node.tell(QUARANTINE)
    assert node.written() == []

    await node.later(event_writer.RETRY_S)
    assert len(node.written()) == 1


async def test_with_a_dead_server_telling_waits_for_nothing_and_keeps_no_more_than_200(node: Node) -> None:
    """SVN-12."""
    node.server.break_off()
    running = asyncio.create_task(node.writer.run())
    for number in range(1000):
        node.writer.tell(Event(is_warning=True, reason="ServiceQuarantined", message=str(number), plane="services"))
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert len(node.passed) == 1000
    assert len(node.writer._waiting) == 200


async def test_an_event_that_the_server_does_not_take_is_not_tried_again(node: Node) -> None:
    node.server.failures["create"] = errors.Unprocessable("422", 422)
    await node.tell(QUARANTINE)
    await node.later(event_writer.DENIED_S)

    assert node.writer.outcomes == {"refused": 1}


def test_notes_are_bounded_and_printable() -> None:
    """SVN-13."""
    long = warned("InvalidService", "w", "\x1b[31m" + "ä" * 2000)
    note = str(event_body(long, "n1", 0.0)["note"])

    assert len(note.encode()) <= MOST_NOTE_BYTES
    assert note.isprintable()
    assert len(event_name(long, "n" * 300)) < 253


@pytest.mark.parametrize(("namespace", "names_it"), [("shop", True), ("bank", False)])
async def test_a_conflict_names_no_service_of_another_namespace(namespace: str, names_it: bool) -> None:
    """SVN-13: kepd's own list, on the node, does."""
    told: list[Event] = []
    intake = ServiceInputs(NodeSettings(node="n"), tell=told.append, started_s=0.0)
    plane = ServicesPlane(
        intake, {"IPv4": NftRuleset(FakeNft("IPv4", FakeKernel()))}, clock=FakeClock(), tell=told.append
    )
    for name, year, its, uid in (("first", 2020, namespace, "a"), ("second", 2021, "shop", "b")):
        meta = {"uid": uid, "creationTimestamp": f"{year}-01-01T00:00:00Z"}
        external = ["203.0.113.1"]
        ip = f"10.96.0.{year - 2019}"
        intake.put_service(make_service(name, namespace=its, ip=ip, externalIPs=external, meta=meta))
    await plane.families["IPv4"].sync()
    (event,) = [one for one in told if one.reason == "AddressConflict"]

    assert (event.object_name, event.object_uid) == ("second", "b")
    assert f"{namespace}/first" in event.message
    assert (f"{namespace}/first" in str(event_body(event, "n", 0.0)["note"])) is names_it

# SPDX-License-Identifier: Apache-2.0
"""Services as an API server tells them, over TLS, with everything that goes wrong on the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.drivers.kube.connection import METADATA
from agent.drivers.kube.reflector import LONGEST_WAIT_S
from agent.model.event import Event
from agent.model.services.service import ServiceKey
from agent.services.objects.bounds import KUBERNETES, Doubts, doubt
from agent.services.objects.node_state import NodeSettings
from agent.services.run.cluster.source import KubeServices
from agent.services.run.intake import ServiceInputs
from tests.drivers.kube.api_server import ApiServer, Seen, serving
from tests.drivers.kube.certificates import Certificates, make_certificates
from tests.drivers.kube.fake_objects import FakeObjects
from tests.drivers.kube.following import QuickClock, client_of, service

WITHIN_S = 30.0
TEN_MINUTES_S = 600.0
FOLLOWED = 4


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
async def server(certificates: Certificates) -> AsyncIterator[ApiServer]:
    async with serving(certificates) as running:
        yield running


def slice_of(name: str, *addresses: str, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"{name}-1",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": name, **labels},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2035-01-01T00:00:00.5Z"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": [one], "conditions": {"ready": True}} for one in addresses],
    }


class Indifferent:
    """IntakeFollower: hears of every change and does nothing but count."""

    node_changes = 0

    def objects_changed(self) -> None: ...

    def node_changed(self) -> None:
        self.node_changes += 1


class Following:
    """A source that runs, and what it handed in."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.intake = ServiceInputs(
            NodeSettings(node="node-a"),
            tell=self.events.append,
            started_s=0.0,
            waits_for=("services", "slices", "node"),
        )
        self.follower = Indifferent()
        self.doubts = Doubts()
        self.intake.follow(self.follower, ("IPv4",))

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                await asyncio.sleep(0.005)

    def addresses(self, name: str) -> list[str]:
        key = ServiceKey("default", name)
        slices = self.intake.fold.slices(key, "IPv4")
        return [backend.address for one in slices for backend in one.endpoints]

    def services(self) -> set[str]:
        return {key.name for key in self.intake.fold.services}


@asynccontextmanager
async def following(
    server: ApiServer, proxy_name: str = "", clock: QuickClock | None = None
) -> AsyncIterator[Following]:
    made = Following()
    async with client_of(server, clock=clock or QuickClock()) as client:
        source = KubeServices(lambda: client, made.intake, "node-a", proxy_name, doubts=lambda: made.doubts)
        running = asyncio.create_task(source.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def fill(server: ApiServer) -> None:
    server.objects.put("services", service("web"))
    foreign = service("foreign")
    foreign["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "x"}
    server.objects.put("services", foreign)
    server.objects.put("services", service("headless", clusterIP="None"))
    server.objects.put("endpointslices", slice_of("web", "10.1.0.1", "10.1.0.2"))
    server.objects.put("endpointslices", slice_of("headless", "10.1.0.9", **{"service.kubernetes.io/headless": ""}))
    node = {"metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "z1"}}}
    status = {"addresses": [{"type": "InternalIP", "address": "192.168.0.10"}]}
    server.objects.put("nodes", {**node, "status": status})
    server.objects.put("servicecidrs", {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.0.0.0/16"]}})


async def test_everything_arrives_before_anything_is_written(server: ApiServer) -> None:
    """SY-1, IN-1: only what is ours, and this node alone."""
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        await found.until(lambda: found.intake.facts("IPv4").node.service_ranges)

    assert found.services() == {"web"}
    assert found.addresses("web") == ["10.1.0.1", "10.1.0.2"]
    facts = found.intake.facts("IPv4").node
    assert (facts.place.zone, facts.addresses[0].text) == ("z1", "192.168.0.10")
    assert facts.service_ranges[0].text == "10.0.0.0/16"


async def test_another_name_selects_exactly_those_services(server: ApiServer) -> None:
    """KEP-3866: two proxies share a node."""
    fill(server)
    async with following(server, "x") as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)

    assert found.services() == {"foreign"}


async def test_changes_follow(server: ApiServer) -> None:
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        server.objects.put("endpointslices", slice_of("web", "10.1.0.7"))
        await found.until(lambda: found.addresses("web") == ["10.1.0.7"])
        server.objects.delete("services", "default", "web")
        await found.until(lambda: found.services() == set())
        server.objects.delete("endpointslices", "default", "web-1")
        await found.until(lambda: found.addresses("web") == [])

    assert found.intake.take_triggers("IPv4", [ServiceKey("default", "web")]) == []


async def test_an_outage_loses_nothing_and_what_happened_meanwhile_is_made_up_for(server: ApiServer) -> None:
    """Rules of a node stay while its API server is away: ten minutes of waiting between refused connections."""
    fill(server)
    clock = QuickClock()
    async with following(server, clock=clock) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        await server.refuse()
        began_s, asked = clock.moved_s, len(clock.slept)
        # Several lists are followed side by side, and each one moves the clock by its own waits.
        await found.until(lambda: clock.moved_s - began_s > FOLLOWED * TEN_MINUTES_S)
        waits = clock.slept[asked:]
        assert found.addresses("web") == ["10.1.0.1", "10.1.0.2"]
        assert max(waits) <= LONGEST_WAIT_S
        assert len(waits) < FOLLOWED * TEN_MINUTES_S / LONGEST_WAIT_S * 4
        server.objects.put("services", service("new", clusterIP="10.0.0.77"))
        server.objects.delete("endpointslices", "default", "web-1")
        server.objects.put("endpointslices", slice_of("new", "10.1.0.5"))
        await server.accept()
        await found.until(lambda: found.addresses("new") == ["10.1.0.5"])
        await found.until(lambda: found.addresses("web") == [])
        await found.until(lambda: found.services() == {"web", "new"})


async def test_an_object_that_cannot_be_read_harms_no_other(server: ApiServer) -> None:
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        server.objects.put("services", service("web", ports="none"))
        server.objects.put("services", service("other", clusterIP="10.0.0.99"))
        await found.until(lambda: "other" in found.services())
        await found.until(lambda: found.events)

    assert found.services() == {"web", "other"}
    assert (found.events[0].reason, found.events[0].object_name) == ("InvalidService", "web")


async def test_objects_without_room_are_kept_when_there_is_some(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SY-12: what was kept stays meanwhile, and nobody else needs to change for it."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.01)
    server.objects.put("services", service("web"))
    server.objects.put("endpointslices", slice_of("web", "10.1.0.1"))
    async with following(server) as found:
        found.intake.apply(NodeSettings(node="node-a", elements=20))
        await found.until(lambda: found.addresses("web"))
        server.objects.put("endpointslices", slice_of("late", "10.1.0.2"))
        await found.until(lambda: found.events)
        assert (found.events[0].reason, found.events[0].object_name) == ("InvalidEndpointSlice", "late-1")
        assert "finds no room: objects of namespace default have 15 of at most 22 entries" in found.events[0].message
        assert found.addresses("late") == []
        server.objects.delete("services", "default", "web")
        await found.until(lambda: found.addresses("late") == ["10.1.0.2"])
        assert found.addresses("web") == ["10.1.0.1"]
        server.objects.put("services", service("more", clusterIP="10.0.0.50"))
        await found.until(lambda: "finds no room" in found.events[-1].message)
        found.intake.apply(NodeSettings(node="node-a", elements=100))
        await found.until(lambda: "more" in found.services())


def restore(server: ApiServer) -> None:
    """From an empty store: what is watched is cut off, and older versions are unknown."""
    server.objects = FakeObjects(resource_version=2_000_000)
    server.objects.compact()
    server.drop_connections()


def doubts(found: Following) -> list[str]:
    return [one.object_name for one in found.events if one.reason == "ListDoubted"]


async def test_a_list_that_lost_everything_takes_nothing_until_it_stays_so(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SVN-110: it is listed again and again meanwhile, told once, and what changes in between counts."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.01)
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        restore(server)
        await found.until(lambda: {"Service", "EndpointSlice"} <= set(doubts(found)))
        asked = len(server.seen)
        await found.until(lambda: len(server.seen) > asked + 10)
        assert (found.services(), found.addresses("web")) == ({"web"}, ["10.1.0.1", "10.1.0.2"])
        assert sorted(doubts(found)) == ["EndpointSlice", "Service"]
        server.objects.put("services", service("new", clusterIP="10.0.0.77"))
        await found.until(lambda: found.services() == {"web", "new"})
        found.doubts = Doubts(time_s=0.0)
        await found.until(lambda: found.services() == {"new"})
        await found.until(lambda: found.addresses("web") == [])
        assert not [key for key in found.intake.findings if key[0] == "List"]


async def test_a_list_that_is_whole_again_is_taken_at_once(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """SVN-110."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.01)
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        restore(server)
        await found.until(lambda: doubts(found))
        fill(server)
        server.objects.put("endpointslices", slice_of("web", "10.1.0.7"))
        await found.until(lambda: found.addresses("web") == ["10.1.0.7"])
        await found.until(lambda: not [key for key in found.intake.findings if key[0] == "List"])


async def test_at_a_start_an_empty_list_takes_no_rules_away(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """SVN-110: nothing counts as arrived, so nothing is written."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.01)
    made = Following()
    async with client_of(server, clock=QuickClock()) as client:
        source = KubeServices(lambda: client, made.intake, "node-a", has_rules=lambda: True)
        running = asyncio.create_task(source.run())
        await made.until(lambda: "Service" in doubts(made))
        assert "services" in made.intake.missing
        server.objects.put("services", service("web"))
        await made.until(lambda: "services" not in made.intake.missing)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert made.services() == {"web"}


async def test_slices_that_are_listed_without_their_endpoints_are_not_there(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SVN-129: an old store has them from before the pods. What a watch says of one counts at once."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.01)
    names = ("web", "a", "b", "c")
    for name in names:
        server.objects.put("endpointslices", slice_of(name, "10.1.0.1"))
    async with following(server) as found:
        await found.until(lambda: all(found.addresses(name) for name in names))
        await server.refuse()
        for name in names[1:]:
            server.objects.put("endpointslices", slice_of(name))
        server.objects.compact()
        await server.accept()
        await found.until(lambda: "EndpointSlice" in doubts(found))
        assert all(found.addresses(name) for name in names)
        server.objects.put("endpointslices", slice_of("web", "10.1.0.9"))
        await found.until(lambda: found.addresses("web") == ["10.1.0.9"])
        found.doubts = Doubts(time_s=0.0)
        await found.until(lambda: not any(map(found.addresses, names[1:])))


class Told:
    """A follower that writes down what it hears."""

    def __init__(self) -> None:
        self.heard_of: list[str] = []
        self.lost_for: list[tuple[str, str]] = []

    def heard(self, kind: str) -> None:
        self.heard_of.append(kind)

    def lost(self, kind: str, why: str) -> None:
        self.lost_for.append((kind, why))

    def doubts(self, kind: str, *, is_doubted: bool) -> None: ...


async def test_a_follower_hears_of_each_failure_and_of_the_first_word_after_it(server: ApiServer) -> None:
    """SVN-125."""
    made, told = Following(), Told()
    async with client_of(server, clock=QuickClock()) as client:
        source = KubeServices(lambda: client, made.intake, "node-a", follower=told)
        running = asyncio.create_task(source.run())
        await made.until(lambda: set(told.heard_of) >= {"Service", "EndpointSlice"})
        await server.refuse()
        await made.until(lambda: [kind for kind, _ in told.lost_for].count("Service") >= 3)
        told.heard_of.clear()
        await server.accept()
        await made.until(lambda: "Service" in told.heard_of)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert all(why for _, why in told.lost_for)
    assert told.heard_of.count("Service") == 1


async def test_at_a_start_a_list_is_compared_with_what_an_earlier_process_knew(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SVN-129."""
    monkeypatch.setattr("agent.services.run.cluster.source.AGAIN_S", 0.01)
    server.objects.put("services", service("web"))
    made = Following()
    made.intake.remembered = {"Service": frozenset(("default", name) for name in ("web", "a", "b", "c"))}
    async with client_of(server, clock=QuickClock()) as client:
        source = KubeServices(lambda: client, made.intake, "node-a", doubts=lambda: made.doubts)
        running = asyncio.create_task(source.run())
        await made.until(lambda: "Service" in doubts(made))
        assert "services" in made.intake.missing
        server.objects.put("services", service("a"))
        await made.until(lambda: "services" not in made.intake.missing)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    assert (made.services(), made.intake.remembered) == ({"web", "a"}, {})


@pytest.mark.parametrize(
    ("known", "listed", "has_rules", "why"),
    [
        ("", "", False, ""),
        ("", "", True, "nothing is listed, and there are rules of Services"),
        ("", "a", True, ""),
        ("abcd", "ab", True, ""),
        ("abcd", "axyz", False, "of 4 that were known 1 are listed"),
        ("k", "abc", False, "default/kubernetes is not listed, which each cluster has"),
        ("kabc", "kab", False, ""),
    ],
)
def test_what_makes_a_list_doubtful(known: str, listed: str, has_rules: bool, why: str) -> None:
    """SVN-110."""
    names = {"k": KUBERNETES, **{one: ("shop", one) for one in "abcdxyz"}}

    assert doubt([names[one] for one in known], [names[one] for one in listed], has_rules=has_rules) == why


async def test_node_labels_are_followed_once_a_service_asks_for_them(server: ApiServer) -> None:
    """SEL-20."""
    fill(server)
    server.objects.put("nodes", {"metadata": {"name": "node-b", "labels": {"rack": "r2"}}})
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        assert "node-b" not in found.intake.facts("IPv4").node.place.labels
        wishing = service("wishing", clusterIP="10.0.0.50")
        wishing["metadata"]["annotations"] = {"kepd.dev/topology-keys": "rack,*"}
        server.objects.put("services", wishing)
        await found.until(lambda: "node-b" in found.intake.facts("IPv4").node.place.labels)

    assert found.intake.facts("IPv4").node.place.labels["node-b"] == {"rack": "r2"}


def choosing(name: str, keys: str) -> dict[str, Any]:
    """A Service that names labels of nodes."""
    made = service(name, clusterIP=f"10.0.0.{50 + len(name)}")
    made["metadata"]["annotations"] = {"kepd.dev/topology-keys": keys}
    return made


def other_nodes(server: ApiServer) -> list[Seen]:
    """Requests for all nodes."""
    return [seen for seen in server.seen if seen.plural == "nodes" and "fieldSelector" not in seen.query]


async def test_other_nodes_are_watched_as_metadata_and_only_while_a_service_names_labels(server: ApiServer) -> None:
    """FS-15, SVN-91."""
    fill(server)
    labels = {"rack": "r2", "row": "7", "topology.kubernetes.io/region": "eu", "of-no-concern": "x"}
    server.objects.put("nodes", {"metadata": {"name": "node-b", "labels": labels}})

    async with following(server) as found:

        def seen_labels() -> object:
            return found.intake.facts("IPv4").node.place.labels.get("node-b")

        server.objects.put("services", choosing("one", "rack,*"))
        region = {"topology.kubernetes.io/region": "eu"}
        await found.until(lambda: seen_labels() == {"rack": "r2", **region})
        server.objects.put("services", choosing("three", "rack,row"))
        await found.until(lambda: seen_labels() == {"rack": "r2", "row": "7", **region})
        server.objects.delete("services", "default", "three")
        server.objects.put("services", choosing("one", "rack"))
        await found.until(lambda: found.services() == {"web", "one"})
        requests = len(other_nodes(server))
        server.objects.put("services", service("one"))
        await found.until(lambda: seen_labels() is None)
        await found.until(lambda: server.watch_count == FOLLOWED)

    assert requests == 2
    assert {seen.headers["Accept"] for seen in other_nodes(server)} == {METADATA}


async def test_a_node_that_changes_in_other_respects_concerns_nobody(server: ApiServer) -> None:
    """FS-15, SVN-91: every node says each five minutes that it lives."""
    fill(server)
    node = {"metadata": {"name": "node-b", "labels": {"rack": "r2"}}}
    server.objects.put("nodes", node)
    async with following(server) as found:
        server.objects.put("services", choosing("one", "rack"))
        await found.until(lambda: "node-b" in found.intake.facts("IPv4").node.place.labels)
        changes = found.follower.node_changes
        server.objects.put("nodes", {**node, "status": {"conditions": []}})
        node["metadata"]["labels"]["of-no-concern"] = "x"
        server.objects.put("nodes", node)
        server.objects.put("nodes", {"metadata": {"name": "node-c"}})
        await found.until(lambda: "node-c" in found.intake.facts("IPv4").node.place.labels)

    assert found.follower.node_changes == changes + 1


async def test_a_server_that_cannot_leave_out_the_rest_is_asked_for_whole_nodes(server: ApiServer) -> None:
    """FS-15, SVN-91."""
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
        await found.until(lambda: server.watch_count == FOLLOWED)
        server.objects.put("nodes", {"metadata": {"name": "node-b"}})
        server.fail_next(406)
        server.objects.put("services", choosing("one", "rack"))
        await found.until(lambda: "node-b" in found.intake.facts("IPv4").node.place.labels)

    assert [seen.headers["Accept"] for seen in other_nodes(server)] == [METADATA, "application/json"]


async def test_times_of_changes_are_taken_once(server: ApiServer) -> None:
    """SY-9."""
    fill(server)
    async with following(server) as found:
        await asyncio.wait_for(found.intake.arrived.wait(), WITHIN_S)
    key = ServiceKey("default", "web")

    assert found.intake.take_triggers("IPv4", [key]) == [2051222400.5]
    assert found.intake.take_triggers("IPv4", [key]) == []


async def test_the_age_of_the_last_word_grows_by_kind(server: ApiServer) -> None:
    """MET-04."""
    fill(server)
    intake = ServiceInputs(NodeSettings(node="node-a"), tell=lambda _: None, started_s=0.0)
    async with client_of(server, clock=QuickClock()) as client:
        source = KubeServices(lambda: client, intake, "node-a")
        running = asyncio.create_task(source.run())
        await asyncio.wait_for(intake.arrived.wait(), WITHIN_S)
        (ages,) = source.families()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    found = {one.labels["kind"]: one.value for one in ages.samples}
    assert {"Service", "EndpointSlice"} <= set(found)
    assert all(0 <= age < WITHIN_S for age in found.values())

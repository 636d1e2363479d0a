# SPDX-License-Identifier: Apache-2.0
"""Services on a node: written, refused, set aside, flushed by others, with flows that lead nowhere any more."""

import asyncio
import ipaddress
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from prometheus_client.core import Metric

from agent.config.document import Configuration
from agent.model.kube_objects import EndpointSlice
from agent.model.services.flow import Flow
from agent.model.services.nft_error import NftFailed
from agent.model.services.nft_table import CLIENTS, AffineClient, Batch
from agent.model.services.service import ServiceKey
from agent.services.attach.health import ServiceHealth
from agent.services.attach.manifests import SERVICE_READING, HintLedger, services_in
from agent.services.objects.node_state import NodeSettings
from agent.services.objects.reading_slice import read_slice
from agent.services.run.affinity_keeper import AffinityKeeper
from agent.services.run.cluster.source import KubeServices
from agent.services.run.flow_cleaner import FlowCleaner
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel_counts import KernelCounts
from agent.services.run.localhost_relay import LocalhostRelay
from agent.services.run.metrics import compatible_metrics, outage_metrics, service_metrics
from agent.services.run.nft_view import NftRulesView
from agent.topology.hints.standalone import HintOptions
from tests.drivers.kube.fake import FakeKube
from tests.drivers.kube.following import service
from tests.fakes.conntrack import FakeConntrack
from tests.lives.figures import Watched, until
from tests.objects.looks import after
from tests.services.attach.test_service_manifests import NODES, SERVICE, slices
from tests.services.making import make_service, make_slice
from tests.services.run.cluster.test_event_writer import FAULT
from tests.services.run.cluster.test_event_writer import Node as WritingNode
from tests.services.run.cluster.test_outage import running as outage_of_a_node
from tests.services.run.cluster.test_service_source import slice_of
from tests.services.run.test_connection_ender import GOES, STAYS, EndingNode
from tests.services.run.test_family_sync import Picky
from tests.services.run.test_metrics import Node

DNS, OLD, NEW = "10.96.0.53", "10.1.0.53", "10.1.0.54"
POISONED = str(ipaddress.ip_address(Picky.poison))
UDP_PORT = {"name": "dns", "protocol": "UDP", "port": 53}


async def services_life(port: int) -> set[str]:
    """What moved. `port` is free on loopback."""
    moved = await asyncio.gather(
        of_nftables(),
        of_iptables(),
        of_the_api_server(),
        of_hints(),
        of_endings(),
        of_the_relay(port),
        of_events(),
        of_an_outage(),
    )
    return set().union(*moved)


async def of_an_outage() -> set[str]:
    """The server goes away, an endpoint dies, and a list that comes back is doubted."""
    async with outage_of_a_node() as one:
        watched = Watched(lambda: outage_metrics(one.keeper))
        watched.look()
        one.world.answers["10.1.0.2"] = "refused"
        one.lose()
        await one.later(15.0)
        one.node.intake.doubted("Service", "of 9 that were known 1 is listed")
        watched.look()
        return watched.moved


async def of_the_relay(port: int) -> set[str]:
    """Somebody on the node asks a node port that has no endpoint."""
    node = Node()
    node.intake.apply(msgspec.structs.replace(node.intake._settings, node_port_addresses=("localhost",)))
    relay = LocalhostRelay(node.plane, node.clock, lambda _: None)
    node.plane.followers.append(relay.follow)
    watched = Watched(lambda: service_metrics(node.plane, relay.counts))
    watched.look()
    running = asyncio.create_task(relay.run())
    wanted = {"name": "http", "protocol": "TCP", "port": 80, "nodePort": port}
    node.intake.put_service(make_service("web", ip="10.96.0.10", type="NodePort", ports=[wanted]))
    await node.sync()
    await until(lambda: list(relay.rows(is_standing=True)))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with suppress(ConnectionResetError):
        await reader.read()
    writer.close()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    watched.look()
    return watched.moved


class LivingNode(Node):
    """With what follows a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.nft.table = Picky("IPv4", self.kernel)
        self.conntrack = FakeConntrack()
        self.cleaner = FlowCleaner(self.plane, self.conntrack)
        self.plane.followers.append(self.cleaner.follow)
        self.health = ServiceHealth(self.plane, Configuration, lambda _: None, has_node_object=False)
        self.counts = KernelCounts(self.plane, {"IPv4": NftRulesView("IPv4", self.nft)}, self.clock, lambda: True)

    def families(self) -> Iterable[Metric]:
        return *service_metrics(self.plane), *self.counts.families(), *compatible_metrics(self.plane)

    async def later(self) -> None:
        """Long enough for every pause between syncs."""
        await self.clock.advance(60.0)
        await self.sync()


async def of_nftables() -> set[str]:
    node = LivingNode()
    watched = Watched(node.families)
    await what_is_written(node, watched)
    await what_is_refused(node, watched)
    await what_others_do(node, watched)
    await flows_that_lead_nowhere(node, watched)
    await clients_that_crowd_a_map(node, watched)
    for page in node.health.pages().values():
        page({}, {})
    watched.look()
    return watched.moved


async def what_is_written(node: LivingNode, watched: Watched) -> None:
    """A whole sync and one of what changed; the endpoints bear the time of their change."""
    node.put(internalTrafficPolicy="Local")
    node.intake.put_service(make_service("dated", namespace="default", ip="10.96.0.30"))
    node.intake.put_slice(read_slice(msgspec.convert(slice_of("dated", "10.1.0.30"), EndpointSlice)))
    await node.clock.advance(1.0)
    watched.look()
    await node.sync()
    node.put("other", "10.96.0.11")
    await node.later()
    key = bytes((10, 96, 0, 11)) + bytes((6, 0, 0, 0)) + bytes((0, 80, 0, 0))
    node.kernel.traffic["services", key] = 40, 2400
    node.kernel.race_drops = 2
    await node.counts.look()
    watched.look()


async def what_is_refused(node: LivingNode, watched: Watched) -> None:
    """By us, for its faults; by the kernel, alone; and by the kernel, altogether."""
    node.intake.put_service(make_service("faulty", ip="no address"))
    node.put("poisoned", POISONED)
    await node.later()
    watched.look()
    node.put("late", "10.96.0.12")
    node.kernel.failures.append(NftFailed("no"))
    await node.later()
    watched.look()
    await node.later()
    # A Service without room.
    settings = node.intake._settings
    node.intake.apply(msgspec.structs.replace(settings, elements=1))
    await node.sync()
    watched.look()
    node.intake.apply(settings)
    await node.sync()


async def what_others_do(node: LivingNode, watched: Watched) -> None:
    node.kernel.flush_by_others()
    node.plane.families["IPv4"].disturbed("nft changed our table")
    await node.later()
    watched.look()


async def flows_that_lead_nowhere(node: LivingNode, watched: Watched) -> None:
    """The endpoint of a UDP Service goes, and the kernel still leads a client to it."""
    cleaning = asyncio.create_task(node.cleaner.run())
    node.intake.put_service(make_service("dns", ip=DNS, ports=[UDP_PORT]))
    node.intake.put_slice(make_slice([OLD], service="dns", ports=[UDP_PORT]))
    await node.later()
    client, there, old = (ipaddress.ip_address(one).packed for one in ("10.1.0.99", DNS, OLD))
    node.conntrack.begin(Flow("IPv4", "UDP", client, 4711, there, 53, old, 53))
    node.intake.put_slice(make_slice([NEW], service="dns", ports=[UDP_PORT]))
    await node.later()
    await until(lambda: node.conntrack.deleted)
    cleaning.cancel()
    watched.look()


async def clients_that_crowd_a_map(node: LivingNode, watched: Watched) -> None:
    """Those of one Service are many; a map of 100 is what they share with another's."""
    for name, ip in (("loud", "10.96.0.40"), ("quiet", "10.96.0.41")):
        node.put(name, ip, sessionAffinity="ClientIP")
    await node.later()
    loud = node.nft.mirror.programmed(ServiceKey("shop", "loud"))
    assert loud is not None
    some = [AffineClient(bytes((11, 0, 0, one)) + loud.slots[0].number, bytes(12), 600_000) for one in range(80)]
    await node.nft.table.apply(Batch(adds={CLIENTS: [one.living(one.life_ms) for one in some]}))
    await AffinityKeeper(node.plane, node.clock, 100).look("IPv4")
    watched.look()


async def of_iptables() -> set[str]:
    node = Node("iptables")
    watched = Watched(lambda: compatible_metrics(node.plane))
    node.put()
    await node.sync()
    node.put("other", "10.96.0.11")
    node.tables.failures.append(NftFailed("no"))
    await node.sync()
    watched.look()
    return watched.moved


async def of_the_api_server() -> set[str]:
    """Its last word grows old."""
    server: Any = FakeKube()
    server.put("services", service("web"))
    intake = ServiceInputs(NodeSettings(node="n"), tell=lambda _: None, started_s=0.0, waits_for={"services", "slices"})
    source = KubeServices(lambda: server, intake, "n")
    watched = Watched(source.families)
    following = asyncio.create_task(source.run())
    await until(intake.arrived.is_set)
    watched.look()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following
    return watched.moved


async def of_hints() -> set[str]:
    """In force while zones have enough endpoints, refused when they have not."""
    ledger = HintLedger()
    watched = Watched(lambda: ledger.families(has_services=True))
    for endpoints in (4, 1):
        files = {"a.yaml": SERVICE, "b.yaml": slices(endpoints), "c.yaml": NODES}
        found = services_in(
            after(SERVICE_READING, {name: text.encode() for name, text in files.items()}), HintOptions(mode="compute")
        )
        ledger.take(found.hints)
        watched.look()
    return watched.moved


async def of_endings() -> set[str]:
    """An endpoint goes, and with it the connection that it had."""
    node = EndingNode()
    watched = Watched(lambda: service_metrics(node.plane))
    await node.change(STAYS, GOES)
    await node.ender.round()
    node.begin(4711)
    await node.change(STAYS)
    await node.ender.round()
    watched.look()
    return watched.moved


async def of_events() -> set[str]:
    """A fault becomes an event of the API server."""
    node = WritingNode(FakeKube())
    watched = Watched(node.writer.families)
    watched.look()
    await node.tell(FAULT)
    watched.look()
    return watched.moved

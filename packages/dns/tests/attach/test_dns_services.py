# SPDX-License-Identifier: Apache-2.0
"""Where the plane for names meets Services: whom to ask, at which addresses, and when a name is told."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.config.document import Configuration
from agent.drivers.clock.driver import SystemClock
from agent.host.joints.dns_services import ClusterNames, OwnNames, ServicesForNames, upstreams_of
from agent.model.event import Event
from agent.model.kube_objects import EndpointSlice, Service
from agent.model.pods.state import Condition, PodState
from agent.model.services.service import ServiceKey
from agent.pods.runtime.network_files import hosts_text, kernel_name
from agent.services.attach.assembly import ServiceParts, ServiceUnit, wire_services
from agent.services.attach.pods import local_pods, pod_choice, slices_of_pods
from agent.services.ruleset import SyncReport
from kepd_dns.attach import unit
from kepd_dns.attach.settings import addresses, dns_faults, pod_servers, process_settings
from kepd_dns.handover.state import ServiceName, Settings, Upstream, read_state
from kepd_dns.run.state_writer import StateWriter
from kepd_dns.wire.names import to_text, to_wire
from kepd_dns.zones.choice import zones_of
from kepd_dns.zones.manifests import service_names
from kepd_dns.zones.own import OwnZone
from tests.kit.inputs import inputs_of
from tests.pods.pods import make_pod
from tests.services.making import make_service, make_slice

KEY = ServiceKey("kube-system", "kube-dns")
PORTS = ({"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 1053})
VIP = "10.96.0.10"
REPORT: Any = SyncReport


def beside_a_cluster(folder: Path, **dns: Any) -> Configuration:
    plain = Configuration()
    return replace(
        plain,
        node=replace(plain.node, name="n1", state_directory=str(folder / "state"), run_directory=str(folder / "run")),
        services=replace(plain.services, source="kubernetes", service_cidrs=("10.96.0.0/12",)),
        dns=replace(plain.dns, enabled=True, directory=str(folder), **dns),
    )


class Cluster:
    def __init__(self, configuration: Configuration, folder: Path) -> None:
        self.events: list[Event] = []
        parts = ServiceParts(clock=SystemClock(), tell=self.events.append, kube=lambda: None)
        self.services: ServiceUnit = wire_services(configuration, parts)
        inputs = inputs_of(configuration, self.events.append)
        self.names = unit.attach(inputs, ServicesForNames(self.services), unit.PodsHere())
        self.plane = self.names.offers.plane
        self.plane.writer.begin(Settings())
        (folder / "state").mkdir()

    def put(self, *endpoints: Any) -> None:
        intake = self.services.plane.intake
        intake.put_service(make_service(KEY.name, namespace=KEY.namespace, ip=VIP, ports=[
            {"name": "dns", "protocol": "UDP", "port": 53}, {"name": "dns-tcp", "protocol": "TCP", "port": 53},
            {"name": "metrics", "protocol": "TCP", "port": 9153},
        ]))  # fmt: skip
        intake.put_slice(make_slice(endpoints, service=KEY.name, namespace=KEY.namespace, ports=PORTS, family="IPv4"))
        self.sync()

    def sync(self) -> None:
        """As after a sync of both families."""
        for family, one in self.services.plane.families.items():
            one.desired.update()
            self.services.plane.followers[-1](family, REPORT)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(beside_a_cluster(tmp_path), tmp_path)
    yield made
    await made.names.close()
    await made.services.close()


async def test_endpoints_are_asked_at_the_port_that_their_slices_name(cluster: Cluster) -> None:
    """DNS-41: by TCP; without any the address of the Service would lead back here."""
    cluster.put("10.244.0.2", "10.244.1.2")
    both = cluster.plane.writer.upstreams
    cluster.put()

    assert both == (Upstream("10.244.0.2", 1053, "any ready one"), Upstream("10.244.1.2", 1053, "any ready one"))
    assert cluster.plane.writer.upstreams == ()
    syncs = cluster.services.plane.families
    by_address = (Upstream(VIP, 53, "by the Service's address"),)
    assert upstreams_of(syncs, KEY, is_intercepted=False) == by_address


async def test_the_address_of_the_clusters_dns_is_taken_over(cluster: Cluster) -> None:
    """DNS-29; and ours lead to its endpoints where no rule matches, at port 53 alone (DNS-21)."""
    before = cluster.plane.addresses_of("IPv4")
    cluster.put("10.244.0.2")
    plan = cluster.services.plane.families["IPv4"].desired.plan_of(KEY)
    assert plan is not None
    ways = {(way.ip.text, way.port) for port in plan.ports for way in port.frontends if way.ip is not None}

    assert before == ("169.254.20.10",)
    assert cluster.plane.addresses_of("IPv4") == ("169.254.20.10", VIP)
    assert ways == {(VIP, 53), (VIP, 9153), ("169.254.20.10", 53)}


async def test_an_address_that_a_rival_holds_is_left_alone(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS-29: said once."""
    (tmp_path / "kube-ipvs0").mkdir()
    monkeypatch.setattr(unit, "LINKS", tmp_path)
    cluster.put("10.244.0.2")
    cluster.sync()

    assert cluster.plane.addresses_of("IPv4") == ("169.254.20.10",)
    assert [one.reason for one in cluster.events if one.plane == "dns"] == ["DnsConflict"]


def service(name: str, **spec: Any) -> Service:
    return msgspec.convert({"metadata": {"name": name, "namespace": "default"}, "spec": spec}, Service)


class Sync:
    def __init__(self) -> None:
        self.desired, self.works = self, False

    def is_written(self, _key: ServiceKey) -> bool:
        return self.works

    def plan_of(self, _key: ServiceKey) -> Any:
        return msgspec.convert(
            {"ports": [{"frontends": [{"ip": {"text": "10.96.0.1"}}, {"ip": {"text": "10.96.0.2"}}]}]}, Plan
        )


class Ip(msgspec.Struct):
    text: str


class Way(msgspec.Struct):
    ip: Ip | None


class PlannedPort(msgspec.Struct):
    frontends: list[Way]


class Plan(msgspec.Struct):
    ports: list[PlannedPort]


def test_a_name_comes_after_its_rules_and_goes_before_them(tmp_path: Path) -> None:
    """DNS-74: headless Services and ExternalNames have no rules to wait for; a new address waits for its own."""
    writer, sync = StateWriter(tmp_path, lambda: 1.0), Sync()
    writer.begin(Settings())
    names = OwnNames(writer, {"IPv4": sync}, lambda: None)  # type: ignore[dict-item]

    def told() -> dict[str, tuple[str, ...]]:
        return {key: one.addresses for key, one in writer.services.items()}

    out = service("out", type="ExternalName", externalName="a.example")
    names.offer([service("web", clusterIP="10.96.0.1"), out], [], [])
    before = told()
    sync.works = True
    names.follow("IPv4", REPORT)
    after = told()
    sync.works = False
    names.offer([service("web", clusterIP="10.96.0.2")], [], [])
    moved = told()
    sync.works = True
    names.follow("IPv4", REPORT)

    assert before == {"default/out": ()}
    assert after == {"default/out": (), "default/web": ("10.96.0.1",)}
    assert moved == {"default/web": ()}
    assert told() == {"default/web": ("10.96.0.2",)}


async def test_names_of_a_clusters_services_are_told_where_that_is_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    """DNS-77, DNS-74: those with an address, once their rules work; a reload begins it."""
    intake, sync, writer = cluster.services.plane.intake, Sync(), cluster.plane.writer
    wanted: list[bool] = []
    syncs: Any = {"IPv4": sync}
    names = ClusterNames(OwnNames(writer, syncs, lambda: None), intake.fold, ("IPv4",), lambda: bool(wanted))

    def told() -> dict[str, tuple[str, ...]]:
        names.follow()
        return {key: one.addresses for key, one in writer.services.items()}

    intake.put_service(make_service("web", ip="10.96.0.1"))
    intake.put_service(make_service("pets", ip="None"))
    unwanted = told()
    wanted.append(True)
    unready = told()
    sync.works = True
    ready = told()
    intake.put_service(make_service("web", ip="10.96.0.2"))
    moved = told()
    intake.drop_service("shop", "web")
    gone = told()

    assert (unwanted, unready) == ({}, {})
    assert (ready, moved) == ({"shop/web": ("10.96.0.1",)}, {"shop/web": ("10.96.0.2",)})
    assert gone == {}
    changed = process_settings(beside_a_cluster(tmp_path, authoritative=True), (), (), ())
    assert (changed.is_authoritative, changed.has_cluster) == (True, True)


def test_names_go_on_while_no_api_server_answers(tmp_path: Path) -> None:
    """SVN-131: answered here, and what was known of the cluster is kept as long as other names, for five seconds at a
    time."""
    plain = beside_a_cluster(tmp_path)
    kept = replace(plain, services=replace(plain.services, outage="keep"))
    never = replace(kept, dns=replace(kept.dns, authoritative=False))
    away, there, off = (
        process_settings(kept, (), (), (), is_alone=True), process_settings(kept, (), (), ()),
        process_settings(plain, (), (), ()),
    )  # fmt: skip
    found = {name: zones_of(one)[0].all[1].bounds for name, one in (("away", away), ("there", there), ("off", off))}

    assert [one.is_authoritative for one in (away, there, off)] == [True, False, False]
    assert not process_settings(never, (), (), (), is_alone=True).is_authoritative
    assert [(one.stale_s, one.stale_ttl_s, one.gives_stale_early) for one in found.values()] == [
        (3600.0, 5, True), (3600.0, 5, False), (30.0, 30, False),
    ]  # fmt: skip


async def test_an_outage_is_told_to_the_process_at_once(cluster: Cluster) -> None:
    """SVN-131."""
    keeper = cluster.services.keeper
    assert len(keeper.followers) == 1
    keeper.lost("Service", "")
    keeper.lost("EndpointSlice", "")
    keeper._silence.look(keeper._clock.now_s() + 3600.0)
    for follower in keeper.followers:
        follower()

    assert cluster.plane._settings().is_alone


def test_many_names_are_one_state(tmp_path: Path) -> None:
    """DNS-3, DNS-77: thousands of Services at the start are not thousands of lines."""
    writer = StateWriter(tmp_path, lambda: 1.0)
    writer.begin(Settings())
    before = writer.number
    many = [ServiceName("default", f"s{number}", (f"10.96.{number // 256}.{number % 256}",)) for number in range(3000)]

    assert [writer.put_all(one) for one in (many, many, many[:3])] == [True, False, False]
    assert writer.number == before + 1
    assert len(read_state((tmp_path / "state.json").read_bytes()).services) == 3000


def test_endpoints_of_headless_services_are_those_that_are_ready() -> None:
    """DNS-71, IN-8, IN-11."""
    item = msgspec.convert(
        {
            "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "pets"}},
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.1.0.1"], "hostname": "rex"},
                {"addresses": ["10.1.0.2"], "conditions": {"ready": False}},
                {"addresses": ["10.1.0.1"], "hostname": "rex"},
            ],
            "ports": [{"name": "http", "port": 80}],
        },
        EndpointSlice,
    )

    (found,) = service_names([service("pets", clusterIP="None")], [item])

    assert [(one.address, one.hostname, one.ports[0].number) for one in found.endpoints] == [("10.1.0.1", "rex", 80)]


def test_settings_that_cannot_work_are_told(tmp_path: Path) -> None:
    """DNS-48: also that nobody is asked by TLS."""
    bad = beside_a_cluster(
        tmp_path, upstream_service="kube-dns", stub_domains={"corp": ("dns.corp",), "x..y": ("10.0.0.1",)},
    )  # fmt: skip
    private = beside_a_cluster(tmp_path, stub_domains={"corp": ("tls://10.0.0.53#dns.corp",)})

    assert [one.path for one in dns_faults(bad)] == [
        "dns.upstreamService", "dns.stubDomains.corp", "dns.stubDomains.x..y",
    ]  # fmt: skip
    assert "asks for TLS, which kepd-dns does not speak" in "".join(one.text for one in dns_faults(private))


def test_pods_get_our_addresses_unless_servers_are_configured(tmp_path: Path) -> None:
    """DNS-75."""
    ours = beside_a_cluster(tmp_path)
    given = replace(ours, pods=replace(ours.pods, cluster_dns=("10.0.0.53",)))
    off = replace(ours, dns=replace(ours.dns, enabled=False))

    assert [pod_servers(one)[:1] for one in (ours, given, off)] == [("169.254.20.10",), ("10.0.0.53",), ()]
    assert addresses(ours, ("IPv4",)) == ("169.254.20.10",)
    assert process_settings(ours, (), ("10.1.0.0/16",), ("10.96.0.0/12",)).reverse_networks == (
        "10.96.0.0/12", "10.1.0.0/16",
    )  # fmt: skip


def test_a_pod_calls_itself_as_others_find_it() -> None:
    """DNS-72: the kernel's name, the file of hosts, the answer to the name and to the address."""
    pod = make_pod(hostname="rex", subdomain="pets", setHostnameAsFQDN=True)
    state = PodState(
        namespace="default", name="web", uid="u1", phase="Running", ip="10.1.0.9",
        conditions=(Condition(type="Ready", is_true=True),),
    )  # fmt: skip
    choice = pod_choice("default", "pets", {"spec": {"selector": {"app": "pets"}}})
    assert choice is not None
    local = [msgspec.structs.replace(one, labels={"app": "pets"}) for one in local_pods([(pod, state)])]
    own = OwnZone("cluster.local")
    for one in service_names(
        [service("pets", clusterIP="None")], slices_of_pods([choice], local, "n1").values()
    ):  # fmt: skip
        own.put(one)
    name = kernel_name(pod, "cluster.local")
    forward, back = own.look(to_wire(name), 1), own.look(to_wire("9.0.1.10.in-addr.arpa"), 12)

    assert name == "rex.pets.default.svc.cluster.local"
    assert f"10.1.0.9\t{name}\trex" in hosts_text(pod, ["10.1.0.9"], "cluster.local", "").splitlines()
    assert [one.data for one in forward.answers] == [bytes((10, 1, 0, 9))]
    assert [to_text(one.data) for one in back.answers] == [f"{name}."]

# SPDX-License-Identifier: Apache-2.0
"""Figures of the services plane: what they count, and that they follow changes instead of walking everything."""

from collections.abc import Iterable, Mapping

import pytest
from prometheus_client.core import Metric

from agent.model.services.iptables_rules import is_ours
from agent.model.services.nft_error import NftFailed
from agent.model.services.service import ServiceKey
from agent.services.objects.node_state import NodeSettings
from agent.services.run import kernel_counts
from agent.services.run.intake import ServiceInputs
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.kernel_counts import KernelCounts
from agent.services.run.metrics import compatible_metrics, service_metrics
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.plane import ServicesPlane
from tests.fakes.clock import FakeClock
from tests.fakes.iptables import FakeIptables, FakeTables
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice

Values = Mapping[tuple[str, ...], float]


class Node:
    """A plane of one family on a kernel in memory."""

    def __init__(self, backend: str = "nftables") -> None:
        self.clock = FakeClock()
        self.kernel, self.tables = FakeKernel(), FakeTables()
        self.table = FakeNft("IPv4", self.kernel)
        self.nft = NftRuleset(self.table)
        chains = IptablesRuleset(FakeIptables("IPv4", self.tables), clock=self.clock)
        settings = NodeSettings(node="here", addresses=("192.168.0.10",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0)
        rules = self.nft if backend == "nftables" else chains
        self.plane = ServicesPlane(self.intake, {"IPv4": rules}, clock=self.clock, tell=lambda _: None)

    async def sync(self) -> None:
        await self.plane.families["IPv4"].sync()

    def put(self, name: str = "web", ip: str = "10.96.0.10", node: str = "there", **spec: object) -> None:
        self.intake.put_service(make_service(name, ip=ip, **spec))
        self.intake.put_slice(make_slice([{"ip": "10.1.0.1", "nodeName": node}], service=name))

    def compatible(self, name: str) -> Values:
        return values(compatible_metrics(self.plane), name)


def values(families: Iterable[Metric], name: str) -> Values:
    """Label values → number, of one sample name."""
    found = {tuple(one.labels.values()): one.value for family in families for one in family.samples if one.name == name}
    assert found, f"no {name}"
    return found


async def test_ports_without_local_endpoints_follow_what_changes() -> None:
    """SEL-9: traffic that must stay here while all endpoints are elsewhere."""
    node = Node()
    name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
    external = {"type": "NodePort", "externalTrafficPolicy": "Local"}
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}]
    node.put(internalTrafficPolicy="Local", ports=ports, **external)
    node.put("other", "10.96.0.11", internalTrafficPolicy="Local")
    await node.sync()
    before = node.compatible(name)
    node.put(node="here", internalTrafficPolicy="Local", ports=ports, **external)
    await node.sync()
    between = node.compatible(name)
    node.intake.drop_service("shop", "other")
    await node.sync()

    assert before == {("internal", "IPv4"): 2, ("external", "IPv4"): 1}
    assert between == {("internal", "IPv4"): 1, ("external", "IPv4"): 0}
    assert node.compatible(name) == {("internal", "IPv4"): 0, ("external", "IPv4"): 0}
    assert values(service_metrics(node.plane), "kepd_services_ports_without_local_endpoints") == {
        ("internal", "IPv4"): 0,
        ("external", "IPv4"): 0,
    }


async def test_changes_are_pending_until_the_kernel_has_them() -> None:
    node = Node()
    name = "kubeproxy_sync_proxy_rules_{}_changes_{}"
    node.put()
    node.put("other", "10.96.0.11")
    told = [node.compatible(name.format(what, "pending"))[()] for what in ("service", "endpoint")]
    node.kernel.failures.append(NftFailed("no"))
    await node.sync()
    after_failure = node.compatible(name.format("service", "pending"))[()]
    await node.clock.advance(60.0)
    await node.sync()
    node.intake.drop_slice("shop", "web-1")

    assert (told, after_failure) == ([2, 2], 2)
    assert [node.compatible(name.format(what, "pending"))[()] for what in ("service", "endpoint")] == [0, 1]
    assert [node.compatible(name.format(what, "total"))[()] for what in ("service", "endpoint")] == [2, 3]


async def test_failures_bear_the_name_of_the_backend() -> None:
    for backend, name in (("nftables", "nftables_sync"), ("iptables", "iptables_restore")):
        node = Node(backend)
        node.put()
        node.kernel.failures.append(NftFailed("no"))
        node.tables.failures.append(NftFailed("no"))
        await node.sync()

        assert node.compatible(f"kubeproxy_sync_proxy_rules_{name}_failures_total") == {("IPv4",): 1}


async def test_a_partial_sync_that_fails_is_counted_beside() -> None:
    node = Node("iptables")
    node.put()
    await node.sync()
    node.put("other", "10.96.0.11")
    node.tables.failures.append(NftFailed("no"))
    await node.sync()

    assert node.compatible("kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total") == {("IPv4",): 1}


async def test_rules_are_counted_as_they_are_written() -> None:
    """The sum that is kept is the number that the tables have, after growing, shrinking and a restart."""
    node = Node("iptables")
    for number in range(1, 6):
        node.put(f"s{number}", f"10.96.0.{number}")
    await node.sync()
    first = node.compatible("kubeproxy_sync_proxy_rules_iptables_last")
    assert node.compatible("kubeproxy_sync_proxy_rules_iptables_total") == owned(node) == first

    node.intake.put_slice(make_slice(["10.1.0.1", "10.1.0.2"], service="s2"))
    node.intake.drop_service("shop", "s3")
    await node.sync()
    assert node.compatible("kubeproxy_sync_proxy_rules_iptables_total") == owned(node)
    assert node.compatible("kubeproxy_sync_proxy_rules_iptables_last")["nat", "IPv4"] < owned(node)["nat", "IPv4"]

    again = Node("iptables")
    again.tables.of("IPv4").update(node.tables.of("IPv4"))
    for number in (1, 2, 4, 5):
        again.put(f"s{number}", f"10.96.0.{number}")
    await again.sync()
    assert again.compatible("kubeproxy_sync_proxy_rules_iptables_total") == owned(again)


def owned(node: Node) -> Values:
    content = node.tables.of("IPv4")
    return {
        (table, "IPv4"): sum(len(rules) for chain, rules in content[table].items() if is_ours(chain))
        for table in ("filter", "nat")
    }


@pytest.fixture
async def counted() -> tuple[Node, KernelCounts]:
    node = Node()
    node.put()
    node.put("busy", "10.96.0.11")
    await node.sync()
    for number, packets in ((10, 3), (11, 40)):
        key = bytes((10, 96, 0, number)) + bytes((6, 0, 0, 0)) + bytes((0, 80, 0, 0))
        assert key in node.kernel.tables["IPv4"].content["services"]
        node.kernel.traffic["services", key] = packets, 60 * packets
    node.kernel.race_drops = 2
    exported = KernelCounts(node.plane, {"IPv4": NftRulesView("IPv4", node.nft)}, node.clock, lambda: True)
    await exported.look()
    return node, exported


async def test_connections_are_exported_by_service_port_and_frontend(counted: tuple[Node, KernelCounts]) -> None:
    """NF-65."""
    _, exported = counted

    assert values(exported.families(), "kepd_service_connections_total") == {
        ("shop", "web", "http", "clusterIP", "IPv4"): 3,
        ("shop", "busy", "http", "clusterIP", "IPv4"): 40,
    }
    assert values(exported.families(), "kepd_services_race_drops_total") == {("IPv4",): 2}


async def test_only_the_busiest_have_a_series_of_their_own(
    counted: tuple[Node, KernelCounts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_counts, "MOST_SERIES", 1)
    _, exported = counted
    await exported.look()

    assert values(exported.families(), "kepd_service_connections_total") == {
        ("shop", "busy", "http", "clusterIP", "IPv4"): 40,
        ("", "", "", "", ""): 3,
    }


async def test_nothing_is_asked_for_single_services_unless_it_is_wanted(counted: tuple[Node, KernelCounts]) -> None:
    node, _ = counted
    plain = KernelCounts(node.plane, {"IPv4": NftRulesView("IPv4", node.nft)}, node.clock, lambda: False)
    await plain.look()

    assert [family.name for family in plain.families()] == ["kepd_services_race_drops"]


async def test_a_table_that_is_gone_is_no_trouble_for_the_figures(counted: tuple[Node, KernelCounts]) -> None:
    node, exported = counted
    node.kernel.tables.clear()
    await exported.look()

    assert exported.race_drops == {"IPv4": 0}
    assert ServiceKey("shop", "web") in node.intake.fold.services

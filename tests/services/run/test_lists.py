# SPDX-License-Identifier: Apache-2.0
"""FX-2: what callers list comes in pages, and each page costs what it shows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.api.services.kinds import ShownKinds
from agent.model.refused import Refused
from agent.services.attach.service_proxy_service import ServiceProxyService
from agent.services.objects.node_state import NodeSettings
from agent.services.ruleset import Ruleset, RulesView
from agent.services.run.intake import ServiceInputs
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.iptables_view import IptablesRulesView
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.nft_view import NftRulesView
from agent.services.run.plane import ServicesPlane
from agent.services.run.view import ServicesView
from agent.wire.kepd.v1 import object_pb2
from agent.wire.kepd.v1 import service_proxy_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.iptables import FakeIptables
from tests.fakes.nft import FakeNft
from tests.services.making import make_service, make_slice
from tests.services.run.test_plane import node, running, settled

PORTS = [{"name": "http", "protocol": "TCP", "port": 80}, {"name": "dns", "protocol": "UDP", "port": 53}]
ENDS = [{"name": "http", "protocol": "TCP", "port": 8080}, {"name": "dns", "protocol": "UDP", "port": 5353}]
NAMES = ("a", "a-b", "b", "b.c")
PAGE = 3


class Counting:
    """Readings of the kernel."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.reads = driver, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    async def read(self) -> Any:
        self.reads += 1
        return await self.driver.read()


@asynccontextmanager
async def listing(backend: str) -> AsyncIterator[tuple[ServiceProxyService, Counting, ServicesView]]:
    rules: Ruleset
    view: RulesView
    if backend == "nftables":
        kernel = Counting(FakeNft("IPv4"))
        rules = nft = NftRuleset(kernel)  # type: ignore[arg-type]
        view = NftRulesView("IPv4", nft)
    else:
        kernel = Counting(FakeIptables("IPv4"))
        rules = chains = IptablesRuleset(kernel, clock=FakeClock())  # type: ignore[arg-type]
        view = IptablesRulesView("IPv4", chains)
    intake = ServiceInputs(NodeSettings(node="n1"), tell=lambda _: None, started_s=0.0)
    plane = ServicesPlane(intake, {"IPv4": rules}, clock=FakeClock(), tell=lambda _event: None)
    shown = ServicesView(plane, {"IPv4": view}, lambda: asyncio.sleep(0, ()))
    for number, name in enumerate(NAMES):
        for namespace in ("shop", "shop-2"):
            ip = f"10.96.{len(namespace)}.{number + 1}"
            intake.put_service(make_service(name, namespace=namespace, ip=ip, ports=PORTS))
            addresses = [f"10.{number}.{len(namespace)}.{one}" for one in range(1, 5)]
            intake.put_slice(make_slice(addresses, service=name, namespace=namespace, ports=ENDS))
    async with running(plane):
        intake.set_node(node())
        intake.complete("services")
        intake.complete("slices")
        await settled(plane)
        kernel.reads = 0
        yield ServiceProxyService(shown), kernel, shown


async def paged(ask: Callable[[Any], Awaitable[Any]], request: Any, field: str) -> list[str]:
    """All pages; what comes after a page goes on where it ended, and no page is larger than asked."""
    found: list[str] = []
    while True:
        answer = await ask(request)
        some = getattr(answer, field)
        assert len(some) <= (request.options.page_size or 1000)
        found += [repr(one) for one in some]
        request.options.page_token = answer.meta.next_page_token
        if not request.options.page_token:
            return found


async def both_ways(ask: Callable[[Any], Awaitable[Any]], request: Any, field: str) -> list[str]:
    whole = await paged(ask, type(request).FromString(request.SerializeToString()), field)
    request.options.page_size = PAGE
    assert await paged(ask, request, field) == whole
    assert len(set(whole)) == len(whole)
    return whole


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
async def test_pages_are_the_list_in_pieces(backend: str) -> None:
    async with listing(backend) as (api, _, _):
        kinds = ShownKinds({pb.DESCRIPTOR.services_by_name["ServiceProxyService"]: api})
        services = await both_ways(kinds.table, object_pb2.TableRequest(kind="services"), "rows")
        endpoints = await both_ways(kinds.table, object_pb2.TableRequest(kind="endpoints", is_wide=True), "rows")
        route = await both_ways(api.explain_route, pb.ExplainRouteRequest(service="shop/a", port="dns"), "endpoints")
        wanted = await both_ways(api.list_rules, pb.ListRulesRequest(desired=True), "rules")
        of_one = await both_ways(api.list_rules, pb.ListRulesRequest(service="shop/a"), "rules")
        standing = await both_ways(api.list_rules, pb.ListRulesRequest(), "rules")

    assert len(services) == 2 * len(NAMES)
    assert len(endpoints) == 2 * len(NAMES) * len(PORTS) * 4
    assert len(route) == 4
    assert 0 < len(of_one) < len(standing)
    assert len(wanted) > len(endpoints)


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
async def test_the_pages_of_a_list_share_one_reading_of_the_kernel(backend: str) -> None:
    async with listing(backend) as (api, kernel, view):
        rules = await paged(api.list_rules, pb.ListRulesRequest(options={"page_size": PAGE}), "rules")
        of_list = kernel.reads
        await paged(api.list_rules, pb.ListRulesRequest(), "rules")
        again = kernel.reads
        kept = [one._found._found for one in view._rules.values()]  # type: ignore[attr-defined]

    assert len(rules) > 10 * PAGE
    assert (of_list, again) == (1, 2)
    assert kept == [()], "at its end a list leaves nothing behind"


async def test_a_page_reports_the_services_that_it_shows() -> None:
    async with listing("nftables") as (api, _, view):
        made = []
        report = view.service
        view.service = lambda key: made.append(key) or report(key)  # type: ignore[method-assign, func-returns-value, assignment, return-value]
        kinds = ShownKinds({pb.DESCRIPTOR.services_by_name["ServiceProxyService"]: api})
        request = object_pb2.TableRequest(kind="services", options={"page_size": 1})
        await paged(kinds.table, request, "rows")

    assert len(made) == 2 * 2 * len(NAMES) - 1, "its own, and the first of the next"


async def test_differences_come_in_pages() -> None:
    async with listing("nftables") as (api, kernel, _):
        none = await api.diff_rules(pb.DiffRulesRequest())
        kernel.driver.kernel.tables["IPv4"].content["eps"].clear()
        found = await both_ways(api.diff_rules, pb.DiffRulesRequest(), "differences")

    assert list(none.differences) == []
    assert len(found) == 2 * len(NAMES) * len(PORTS) * 4


async def test_nothing_is_said_to_be_equal_before_it_is_known() -> None:
    async with listing("nftables") as (api, _, view):
        view._plane.intake._missing.update(("services", "slices"))

        with pytest.raises(Refused, match="not known yet: kepd waits for services, slices; the rules"):
            await api.diff_rules(pb.DiffRulesRequest())


async def test_a_token_of_nowhere_is_a_place_like_any_other() -> None:
    """Whatever callers make of it, it is a text."""
    tokens = ["AA==", "c2hvcAA=", "SVB2NAAAAAAAAA==", "SVB2NABzZXJ2aWNlcwDDqQ==", "fn5-"]
    async with listing("iptables") as (api, _, _):
        for token in tokens:
            await api.list_rules(pb.ListRulesRequest(options={"page_token": token}))
            kinds = ShownKinds({pb.DESCRIPTOR.services_by_name["ServiceProxyService"]: api})
            await kinds.table(object_pb2.TableRequest(kind="endpoints", options={"page_token": token}))


async def test_a_reading_that_is_not_asked_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that is left in the middle would hold it for ever; a page that comes later reads anew."""
    monkeypatch.setattr("agent.services.run.kept.KEPT_S", 0.05)
    async with listing("nftables") as (api, kernel, view):
        request = pb.ListRulesRequest(options={"page_size": PAGE})
        answer = await api.list_rules(request)
        await asyncio.sleep(0.2)
        left = [one._found._found for one in view._rules.values()]  # type: ignore[attr-defined]
        request.options.page_token = answer.meta.next_page_token
        later = await api.list_rules(request)

    assert left == [()]
    assert kernel.reads == 2
    assert len(later.rules) == PAGE
    assert later.rules[0] != answer.rules[-1]


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
async def test_a_trace_names_the_service_that_has_the_address_and_port(backend: str) -> None:
    async with listing(backend) as (_, _, view):
        found = await view.trace("10.0.0.9", "10.96.4.2", "TCP", 80, in_kernel=False)
        nobody = await view.trace("10.0.0.9", "10.96.4.2", "TCP", 81, in_kernel=False)

    assert (found.verdict, found.service) == ("dnat", "shop/a-b")
    assert nobody.service == ""

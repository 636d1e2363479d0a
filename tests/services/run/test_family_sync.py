# SPDX-License-Identifier: Apache-2.0
"""One family's sync on a kernel that refuses what the real one refuses."""

import asyncio
import errno
import importlib
from collections.abc import Sequence
from typing import Any

import pytest

from agent.model.services.nft_error import NftFailed, NotPermitted, OutcomeUnknown, RulesRefused
from agent.model.services.service import ServiceKey
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.node_state import NodeSettings, NodeSight, family_facts
from agent.services.routes.desired import Desired
from agent.services.ruleset import SyncReport
from agent.services.run.family_sync import FamilySync
from agent.services.run.nft_ruleset import NftRuleset
from tests.fakes.clock import FakeClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service, make_slice


class Killed(BaseException):
    """The daemon dies between two of its actions."""


class Watcher:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.reports: list[SyncReport] = []
        self.failures: list[str] = []
        self.set_aside: list[ServiceKey] = []
        self.repairs: list[str] = []

    def synced(self, _family: str, report: SyncReport) -> None:
        self.reports.append(report)

    def sync_failed(self, _family: str, error: NftFailed, *, retry_s: float, is_full: bool) -> None:
        self.failures.append(f"{error} {retry_s:.1f}")

    def quarantined(self, _family: str, key: ServiceKey, _error: NftFailed) -> None:
        self.set_aside.append(key)

    def repaired(self, _family: str, sentence: str, _elements: int) -> None:
        self.repairs.append(sentence)

    def forwarding_dropped(self, _family: str, chains: Sequence[str]) -> None:
        self.failures += chains


class Bench:
    """A family with its kernel."""

    def __init__(self, kernel: FakeKernel | None = None, fold: ServiceIndex | None = None) -> None:
        self.kernel = kernel or FakeKernel()
        self.fold = fold or ServiceIndex()
        self.clock = FakeClock()
        self.watcher = Watcher()
        self.table = FakeNft("IPv4", self.kernel)
        self.facts = family_facts("IPv4", NodeSettings(node="node-a", addresses=("192.168.0.10",)), NodeSight(), ())
        desired = Desired("IPv4", self.facts.node, self.fold)
        self.rules = NftRuleset(self.table)
        self.sync = FamilySync(desired, self.facts, self.rules, self.watcher, clock=self.clock)

    def put(self, count: int = 3) -> None:
        for number in range(1, count + 1):
            self.fold.put_service(make_service(f"s{number}", ip=f"10.96.0.{number}"))
            self.fold.put_slice(make_slice([f"10.1.{number}.1", f"10.1.{number}.2"], service=f"s{number}"))

    def services(self) -> dict[bytes, Any]:
        return self.kernel.tables["IPv4"].content["services"]


async def synced() -> Bench:
    bench = Bench()
    bench.put()
    await bench.sync.sync()
    return bench


async def test_the_first_sync_makes_the_table_and_the_second_writes_nothing() -> None:
    bench = await synced()
    await bench.sync.sync()

    assert len(bench.services()) == 3
    assert [report.elements for report in bench.watcher.reports] == [3 + 6 + 3 + 1, 0]
    assert bench.sync.is_synced


@pytest.mark.parametrize("failing", range(1, 6))
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_fill_that_breaks_off_goes_on_from_what_the_kernel_has(
    failing: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NF-9, SY-5: the portion after it was already being made; what the kernel has is not believed but read."""
    monkeypatch.setattr("agent.services.batches.MOST_SERVICES", 1)
    bench = Bench()
    applied = 0

    class Failing(FakeNft):
        async def apply(self, batch: Any) -> None:
            nonlocal applied
            applied += 1
            if applied != failing:
                await super().apply(batch)
                return
            if is_taken:
                await super().apply(batch)
            raise OutcomeUnknown("no answer in time")

    bench.rules.table = Failing("IPv4", bench.kernel)
    bench.put(5)
    await bench.sync.sync()
    known = len(bench.rules.mirror)
    await bench.clock.advance(1.0)
    await bench.sync.sync()

    assert known == failing - 1
    assert len(bench.services()) == 5
    had = failing - 1 + is_taken
    assert [report.elements for report in bench.watcher.reports] == [5 * 4 + 1 - had * 4 - (had > 0)]


async def test_a_node_without_services_gets_no_table() -> None:
    bench = Bench()
    await bench.sync.sync()

    assert bench.kernel.tables == {}
    assert bench.sync.is_synced


class Counted(FakeNft):
    """How often it was read."""

    reads = 0

    async def read(self) -> Any:
        self.reads += 1
        return await super().read()


async def test_a_family_that_no_service_has_costs_nothing_after_the_first_look() -> None:
    """FS-28: in a cluster of one family each change was a full sync of the other."""
    bench = Bench()
    table = Counted("IPv4", bench.kernel)
    bench.rules.table = table
    await bench.sync.sync()
    for number in range(1, 6):
        bench.fold.put_service(make_service(f"s{number}", ip=f"fd00:96::{number}"))
        bench.fold.put_slice(make_slice([f"fd00:1::{number}"], service=f"s{number}"))
        await bench.sync.sync()
    assert (table.reads, [one.is_full for one in bench.watcher.reports]) == (1, [True, *[False] * 5])
    assert bench.sync.pending_since_s is None

    await bench.clock.advance(3601.0)
    await bench.sync.sync()
    assert (table.reads, bench.watcher.reports[-1].is_full) == (2, True)
    bench.put()
    await bench.sync.sync()
    assert len(bench.services()) == 3


async def test_an_empty_family_looks_again_when_somebody_made_its_table() -> None:
    """FS-28, NF-64."""
    bench = Bench()
    await bench.sync.sync()
    other = Bench(bench.kernel)
    other.put()
    await other.sync.sync()
    bench.sync.disturbed("nft changed our table")
    await bench.sync.sync()

    assert bench.watcher.reports[-1].is_full
    assert not bench.services()


async def test_a_restart_writes_nothing() -> None:
    """SY-13, NF-9."""
    bench = await synced()
    again = Bench(bench.kernel, bench.fold)
    await again.sync.sync()

    assert [report.elements for report in again.watcher.reports] == [0]
    assert again.table.batches == []


async def test_ways_in_that_went_while_we_were_away_are_named_for_their_flows() -> None:
    """FS-6."""
    bench = await synced()
    bench.fold.drop_service(ServiceKey("shop", "s2"))
    again = Bench(bench.kernel, bench.fold)
    await again.sync.sync()
    await again.sync.sync()

    assert [list(report.gone) for report in again.watcher.reports] == [[(bytes([10, 96, 0, 2]), "TCP", 80)], []]


async def test_services_that_went_while_we_were_away_go_at_the_start() -> None:
    bench = await synced()
    bench.fold.drop_service(ServiceKey("shop", "s2"))
    again = Bench(bench.kernel, bench.fold)
    await again.sync.sync()

    assert len(again.services()) == 2


async def test_a_failure_is_told_and_made_good_later() -> None:
    """SY-5: 0.2, 1, 5, 30 s."""
    bench = await synced()
    bench.fold.put_slice(make_slice(["10.1.1.9"], service="s1"))
    for _ in range(5):
        bench.kernel.failures.append(NotPermitted("no right"))
        await bench.sync.sync()
    assert bench.watcher.failures == [f"no right {delay}" for delay in ("0.2", "1.0", "5.0", "30.0", "30.0")]

    await bench.sync.sync()

    assert bench.watcher.reports[-1].is_full
    assert bench.rules.mirror.content() == {
        name: items
        for name, items in bench.kernel.tables["IPv4"].content.items()
        if name in bench.rules.mirror.content()
    }


async def test_what_others_flushed_is_written_again() -> None:
    """NF-64."""
    bench = await synced()
    before = bench.kernel.tables["IPv4"].copy().content
    bench.kernel.flush_by_others()
    bench.sync.disturbed("nft changed our table")
    await bench.sync.sync()

    assert bench.kernel.tables["IPv4"].content == before
    assert bench.watcher.repairs == ["nft changed our table"]


async def test_a_table_of_other_settings_is_replaced_as_a_whole() -> None:
    """NF-10."""
    bench = await synced()
    settings = NodeSettings(node="node-a", addresses=("192.168.0.10",), masquerades_all=True)
    bench.sync.set_facts(family_facts("IPv4", settings, NodeSight(), ()))
    await bench.sync.sync()

    assert len(bench.services()) == 3
    assert "" not in bench.services().values()


class Picky(FakeNft):
    """Refuses everything that has to do with one address."""

    poison = b"\x0a\x60\x00\x02"

    async def apply(self, batch: Any) -> None:
        for name, items in batch.adds.items():
            for key, _ in items:
                if key.startswith(self.poison):
                    raise RulesRefused.by_kernel(22, map=name, key=key)
        await super().apply(batch)


async def test_a_service_that_the_kernel_refuses_stands_alone() -> None:
    """SY-6: all others are programmed, at the start and later."""
    bench = Bench()
    bench.rules.table = Picky("IPv4", bench.kernel)
    bench.put(20)
    await bench.sync.sync()

    assert len(bench.services()) == 19
    assert bench.watcher.set_aside == [ServiceKey("shop", "s2")]
    assert list(bench.sync.quarantine) == [ServiceKey("shop", "s2")]

    bench.fold.put_slice(make_slice(["10.1.9.9"], service="s9"))
    await bench.sync.sync()
    assert not bench.watcher.failures
    assert bench.watcher.set_aside == [ServiceKey("shop", "s2")]


async def test_a_change_releases_a_service_that_was_set_aside() -> None:
    bench = Bench()
    bench.rules.table = Picky("IPv4", bench.kernel)
    bench.put()
    await bench.sync.sync()
    bench.fold.put_service(make_service("s2", ip="10.96.0.22"))
    await bench.sync.sync()

    assert len(bench.services()) == 3
    assert bench.sync.quarantine == {}


async def test_time_releases_a_service_that_was_set_aside() -> None:
    bench = Bench()
    picky = Picky("IPv4", bench.kernel)
    bench.rules.table = picky
    bench.put()
    await bench.sync.sync()
    picky.poison = b"never"
    await bench.clock.advance(301.0)
    await bench.sync.sync()

    assert len(bench.services()) == 3


@pytest.mark.parametrize("failing", range(1, 6))
async def test_a_crash_after_any_write_ends_in_the_same_state(failing: int) -> None:
    """The daemon dies after the n-th change of the kernel and begins again."""
    bench = Bench()
    done = 0

    class Dying(FakeNft):
        async def apply(self, batch: Any) -> None:
            nonlocal done
            await super().apply(batch)
            done += 1
            if done == failing:
                raise Killed

        async def load(self, text: str) -> None:
            nonlocal done
            await super().load(text)
            done += 1
            if done == failing:
                raise Killed

    bench.rules.table = Dying("IPv4", bench.kernel)
    bench.put()
    try:
        await bench.sync.sync()
        for number in range(4):
            bench.fold.put_slice(make_slice([f"10.1.1.{number + 5}", "10.1.1.2"], service="s1"))
            await bench.sync.sync()
    except Killed:
        pass
    for number in range(4):
        bench.fold.put_slice(make_slice([f"10.1.1.{number + 5}", "10.1.1.2"], service="s1"))
    again = Bench(bench.kernel, bench.fold)
    await again.sync.sync()

    whole = again.rules.mirror.content()
    assert {name: items for name, items in bench.kernel.tables["IPv4"].content.items() if items} == {
        name: items for name, items in whole.items() if items
    }
    assert not again.watcher.failures


async def test_beside_kube_proxy_nothing_is_written_until_it_is_gone() -> None:
    """DS-14."""
    bench = Bench()
    bench.kernel.rivals.append("table kube-proxy of kube-proxy")
    bench.put()
    await bench.sync.sync()
    assert bench.kernel.tables == {}
    assert "stop it and remove its rules, or set services.proxyName" in bench.watcher.failures[0]

    bench.kernel.rivals.clear()
    await bench.sync.sync()

    assert len(bench.services()) == 3


async def test_services_that_were_taken_over_stay_so_after_a_restart() -> None:
    """FS-5: rules of a kube-proxy that came back do not end the work of a kepd whose own are in the kernel."""
    bench = await synced()
    bench.kernel.rivals.append("table kube-proxy of kube-proxy")
    again = Bench(bench.kernel, bench.fold)
    again.put(4)
    await again.sync.sync()

    assert again.watcher.failures == []
    assert len(again.services()) == 4


async def test_a_table_without_services_is_no_takeover() -> None:
    """FS-5, DS-14: such a one is there when the last Service went, or kepd stopped before it wrote any."""
    bench = Bench()
    bench.put(1)
    await bench.sync.sync()
    bench.fold.drop_service(ServiceKey("shop", "s1"))
    await bench.sync.sync()
    bench.kernel.rivals.append("table kube-proxy of kube-proxy")
    again = Bench(bench.kernel, bench.fold)
    again.put(2)
    await again.sync.sync()

    assert "another program has its Services here" in again.watcher.failures[0]
    assert len(again.services()) == 0


class Interrupted(FakeNft):
    """Lets something happen while the kernel works."""

    meanwhile: Any = None

    async def apply(self, batch: Any) -> None:
        await super().apply(batch)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()


def picky_bench(bench: Bench) -> Picky:
    table = Picky("IPv4", bench.kernel)
    bench.sync.rules.table = table  # type: ignore[attr-defined]
    return table


def interrupted() -> tuple[Bench, Interrupted]:
    bench = Bench()
    table = Interrupted("IPv4", bench.kernel)
    bench.sync.rules.table = table  # type: ignore[attr-defined]
    bench.put()
    return bench, table


def facts_of(**settings: Any) -> Any:
    given = {"node": "node-a", "addresses": ("192.168.0.10",), **settings}
    return family_facts("IPv4", NodeSettings(**given), NodeSight(), ())


async def test_a_node_that_changes_during_a_write_is_written_next() -> None:
    bench, table = interrupted()
    await bench.sync.sync()
    bench.fold.put_slice(make_slice(["10.1.1.9"], service="s1"))
    table.meanwhile = lambda: bench.sync.set_facts(facts_of(addresses=("192.168.0.77",)))
    await bench.sync.sync()
    await bench.sync.sync()

    assert list(bench.kernel.tables["IPv4"].content["np_addrs"]) == [bytes([192, 168, 0, 77])]


async def test_settings_that_change_rewrite_chains_and_keep_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """NF-9: also during a full sync. A new table would forget who came to which endpoint."""
    bench, table = interrupted()
    table.meanwhile = lambda: bench.sync.set_facts(facts_of(drops_invalid=True))
    await bench.sync.sync()
    before = bench.kernel.tables["IPv4"]
    monkeypatch.setattr(table, "load", None)
    await bench.sync.sync()
    with_more = bench.kernel.tables["IPv4"].bodies()
    bench.sync.set_facts(facts_of(masquerades_all=True))
    await bench.sync.sync()
    after = bench.kernel.tables["IPv4"].bodies()

    assert "invalid" not in before.bodies()
    assert "invalid" in with_more
    assert "invalid" not in after
    assert with_more["dispatch"] != after["dispatch"]
    assert len(bench.services()) == 3
    assert (bench.watcher.failures, bench.watcher.repairs) == ([], [])


async def test_a_flush_during_a_full_sync_is_repaired() -> None:
    bench, table = interrupted()

    def flush() -> None:
        bench.kernel.flush_by_others()
        bench.sync.disturbed("nft changed our table")

    table.meanwhile = flush
    await bench.sync.sync()
    await bench.sync.sync()

    assert len(bench.services()) == 3


async def test_any_failure_is_this_familys_alone_and_no_change_is_lost() -> None:
    """SY-2, SY-7."""
    bench = Bench()
    bench.put()

    def broken(_most: int) -> None:
        raise RuntimeError("a bug")

    bench.sync.desired.update = broken  # type: ignore[method-assign, assignment]
    await bench.sync.sync()
    assert "a bug" in bench.watcher.failures[0]

    del bench.sync.desired.update
    await bench.sync.sync()
    assert len(bench.services()) == 3


@pytest.mark.parametrize("where", ["routes.desired.plan_service", "nftables.mirror.rows_of"])
async def test_a_service_on_which_kepd_fails_is_set_aside(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-9: what it had stays, all others are programmed, and it is tried again."""
    bench = Bench()
    bench.put(2)
    await bench.sync.sync()
    module, _, name = f"agent.services.{where}".rpartition(".")
    real = getattr(importlib.import_module(module), name)

    def fails(one: Any, *rest: Any, **more: Any) -> Any:
        port = one.ports[0].port
        if 81 in (port, getattr(port, "port", 0)):
            raise RuntimeError("a bug")
        return real(one, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.{name}", fails)
        bench.put(3)
        bench.fold.put_service(make_service("s2", ip="10.96.0.2", ports=[{"port": 81}]))
        await bench.sync.sync()
        await bench.sync.sync()
        programmed = len(bench.services())
        aside = dict(bench.sync.quarantine)
    await bench.clock.advance(400.0)
    await bench.sync.sync()

    assert (programmed, list(aside)) == (3, [ServiceKey("shop", "s2")])
    assert "a bug" in aside[ServiceKey("shop", "s2")]
    assert bench.sync.quarantine == {}
    assert sorted(key[-4:] for key in bench.services()) == [b"\0P\0\0", b"\0P\0\0", b"\0Q\0\0"]


async def test_who_was_set_aside_is_tried_again_however_busy_the_node_is() -> None:
    bench = Bench()
    picky = picky_bench(bench)
    bench.put()
    await bench.sync.sync()
    picky.poison = b"never"
    for minute in range(6):
        await bench.clock.advance(60.0)
        bench.fold.put_slice(make_slice([f"10.1.1.{minute + 5}"], service="s1"))
        await bench.sync.sync()

    assert len(bench.services()) == 3


async def test_reports_name_what_was_looked_at_though_no_plan_changed() -> None:
    """CT-3, SY-9: an endpoint that served no more leaves its slice."""
    bench = await synced()
    gone = {"ip": "10.1.1.7", "conditions": {"ready": False, "serving": False}}
    bench.fold.put_slice(make_slice(["10.1.1.1", "10.1.1.2", gone], service="s1"))
    await bench.sync.sync()
    report = bench.watcher.reports[-1]

    assert (list(report.changed), list(report.looked)) == ([], [ServiceKey("shop", "s1")])


async def test_other_weights_are_written_though_the_same_endpoints_serve() -> None:
    """SEL-23: the annotation alone changes."""
    bench = Bench()
    bench.put(1)
    await bench.sync.sync()
    before = len(bench.kernel.tables["IPv4"].content["eps"])
    weights = {"kepd.dev/endpoint-weights": "10.1.1.1=3"}
    bench.fold.put_service(make_service("s1", ip="10.96.0.1", meta={"annotations": weights}))
    await bench.sync.sync()

    assert (before, len(bench.kernel.tables["IPv4"].content["eps"])) == (2, 4)


async def test_chains_that_no_service_needs_any_more_go() -> None:
    """FS-13: a tenant who edits an affinity timeout again and again does not fill the kernel."""
    bench = Bench()
    bench.put(1)
    await bench.sync.sync()
    constant = len(bench.kernel.tables["IPv4"].rules)
    most = 0
    for timeout_s in range(1, 500):
        spec = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout_s}}}
        bench.fold.put_service(make_service("s1", ip="10.96.0.1", **spec))
        await bench.sync.sync()
        most = max(most, len(bench.kernel.tables["IPv4"].rules) - constant)
    again = Bench(bench.kernel, bench.fold)
    await again.sync.sync()

    assert most <= 66
    assert len(bench.kernel.tables["IPv4"].rules) - constant == 1


async def test_rules_that_an_earlier_process_left_are_as_they_should_be() -> None:
    """FS-3: as many as there should be, and one of them refuses every Service."""
    bench = Bench()
    bench.put(20)
    bench.fold.put_slice(make_slice([f"10.1.7.{number}" for number in range(1, 30)], service="s7"))
    await bench.sync.sync()
    before = dict(bench.kernel.tables["IPv4"].rules)
    rules = bench.kernel.tables["IPv4"].rules
    rules["dispatch"] = ("goto rj", *rules["dispatch"][1:])
    rules["c_29"] = ("drop", *rules["c_29"][1:])
    rules["left"] = ("accept",)
    await Bench(bench.kernel, bench.fold).sync.sync()

    assert bench.kernel.tables["IPv4"].rules == before


async def test_chains_of_others_in_our_table_go_though_one_leads_to_another() -> None:
    """FS-3."""
    bench = Bench()
    bench.put(2)
    await bench.sync.sync()
    before = dict(bench.kernel.tables["IPv4"].rules)
    bench.kernel.tables["IPv4"].rules.update(a_target=("accept",), their_entry=("jump a_target",))
    await Bench(bench.kernel, bench.fold).sync.sync()

    assert bench.kernel.tables["IPv4"].rules == before


async def test_until_all_services_are_in_no_address_of_theirs_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-7: what another program has there works on until then."""
    monkeypatch.setattr("agent.services.batches.MOST_SERVICES", 3)
    bench = Bench()
    bench.put(10)
    settings = NodeSettings(node="node-a", addresses=("192.168.0.10",), service_ranges=("10.96.0.0/16",))
    seen: list[tuple[int, int]] = []

    class Watched(FakeNft):
        async def apply(self, batch: Any) -> None:
            await super().apply(batch)
            content = self.kernel.tables["IPv4"].content
            seen.append((len(content["services"]), len(content["svc_cidrs"])))

    bench.rules.table = Watched("IPv4", bench.kernel)
    bench.sync.set_facts(family_facts("IPv4", settings, NodeSight(), ()))
    await bench.sync.sync()

    assert seen == [(3, 0), (6, 0), (9, 0), (10, 1)]


@pytest.mark.parametrize("refused", range(1, 9))
async def test_a_change_of_many_services_is_written_in_portions(refused: int) -> None:
    """FS-17: a late label of a node, for instance; whichever portion is refused for a moment, all ends well."""
    bench = Bench()
    bench.put(10)
    await bench.sync.sync()
    bench.rules._most = 20
    for number in range(1, 11):
        bench.fold.put_slice(make_slice([f"10.2.{number}.{one}" for one in range(1, 4)], service=f"s{number}"))
    bench.table.batches.clear()
    applied = 0

    class Refusing(FakeNft):
        async def apply(self, batch: Any) -> None:
            nonlocal applied
            applied += bool(batch)
            if applied == refused:
                applied += 1
                raise RulesRefused.by_kernel(errno.ENOMEM)
            await super().apply(batch)

    bench.rules.table = table = Refusing("IPv4", bench.kernel)
    for _ in range(3):
        await bench.sync.sync()
        await bench.clock.advance(40.0)
    content = bench.kernel.tables["IPv4"].content

    assert max(batch.size for batch in table.batches) <= 40
    assert len(table.batches) >= 3
    assert {key[:4] for key in content["eps"]} == {bytes([10, 96, 0, number]) for number in range(1, 11)}
    assert {data[1] for data in content["eps"].values()} == {2}
    assert bench.rules.mirror.content()["eps"] == content["eps"]


async def test_a_change_waits_for_one_large_service_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-20: others of a tenant come one by one, with a rest between that delays none but them."""
    monkeypatch.setattr("agent.services.routes.desired.MOST_AT_ONCE", 500)
    bench = Bench()
    bench.put(1)
    await bench.sync.sync()
    for number in (2, 3, 4):
        bench.fold.put_service(make_service(f"s{number}", ip=f"10.96.0.{number}"))
        addresses = [f"10.{number}.{high}.{low}" for high in range(3) for low in range(200)]
        bench.fold.put_slice(make_slice(addresses, service=f"s{number}"))
    bench.fold.put_service(make_service("honest", ip="10.96.0.9"))
    bench.fold.put_slice(make_slice(["10.9.0.1"], service="honest"))
    counts, taken = [], []
    for _ in range(3):
        await bench.sync.sync()
        counts.append(len(bench.services()))
        taken.append(bench.sync.taken[0])
        assert bytes((10, 96, 0, 9)) in {key[:4] for key in bench.services()}
        await bench.clock.advance(2.0)

    assert counts == [3, 4, 5]
    assert taken == [1, 1, 5]
    assert bench.sync.pending_since_s is None


async def test_a_large_service_has_its_turn_without_another_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-20: nothing but time brings the next one."""
    monkeypatch.setattr("agent.services.routes.desired.MOST_AT_ONCE", 2)
    monkeypatch.setattr("agent.services.routes.desired.LARGE", 2)
    bench = Bench()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(bench.sync.run())
        await bench.clock.advance(1.0)
        bench.put(4)
        bench.sync.wake()
        await bench.clock.advance(5.0)
        running.cancel()

    assert len(bench.services()) == 4
    assert bench.sync.desired.large == {}

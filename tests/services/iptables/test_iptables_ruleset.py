# SPDX-License-Identifier: Apache-2.0
"""The same sync on iptables: what is written, what is healed, and who stands alone."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from agent.model.services.iptables_rules import Chains, RulesChange
from agent.model.services.nft_error import LockHeld, OutcomeUnknown
from agent.model.services.service import ServiceKey
from agent.services.objects.fold import ServiceIndex
from agent.services.routes.desired import Desired
from agent.services.run.family_sync import FamilySync
from agent.services.run.iptables_ruleset import IptablesRuleset, Signs
from tests.fakes.clock import FakeClock
from tests.fakes.iptables import FakeIptables, FakeTables
from tests.services.iptables.iptables_cases import facts_for, put
from tests.services.run.test_family_sync import Watcher


class Died(OutcomeUnknown):
    """The process is gone."""


class Mortal(FakeIptables):
    """Lets so many restores happen."""

    def __init__(self, kernel: FakeTables, lives: int) -> None:
        super().__init__("IPv4", kernel)
        self.most_chains = 5
        self.lives = lives

    async def apply(self, change: RulesChange) -> None:
        if not self.lives:
            raise Died("")
        self.lives -= 1
        await super().apply(change)


class Bench:
    """A family on a kernel in memory."""

    def __init__(self, kernel: FakeTables | None = None, fold: ServiceIndex | None = None) -> None:
        self.kernel, self.fold = kernel or FakeTables(), fold or ServiceIndex()
        self.clock, self.watcher = FakeClock(), Watcher()
        self.rules = IptablesRuleset(FakeIptables("IPv4", self.kernel), clock=self.clock)
        facts = facts_for("IPv4")
        desired = Desired("IPv4", facts.node, self.fold)
        self.sync = FamilySync(desired, facts, self.rules, self.watcher, clock=self.clock)

    def put(self, count: int) -> None:
        for number in range(1, count + 1):
            put(self.fold, "IPv4", f"s{number}", number)

    def nat(self) -> dict[str, Any]:
        return self.kernel.of("IPv4")["nat"]

    def choices(self) -> int:
        return sum(name.startswith("KUBE-SVC-") for name in self.nat())


async def test_the_second_sync_and_the_one_after_a_restart_write_nothing() -> None:
    """SY-13."""
    bench = Bench()
    bench.put(3)
    await bench.sync.sync()
    await bench.sync.sync()
    again = Bench(bench.kernel, bench.fold)
    again.sync.desired.changed.update(bench.fold.services)
    await again.sync.sync()

    assert bench.choices() == 3
    assert bench.watcher.reports[1].elements == 0
    assert [report.elements for report in again.watcher.reports] == [0]
    assert bench.kernel.is_loopback_allowed


async def test_a_node_without_services_gets_no_rules() -> None:
    bench = Bench()
    await bench.sync.sync()

    assert bench.kernel.changes == []
    assert bench.sync.is_synced


async def test_one_change_writes_the_chains_that_it_changes() -> None:
    """IP-5, and beyond: also a fixed chain only if its text changes."""
    bench = Bench()
    bench.put(20)
    await bench.sync.sync()
    put(bench.fold, "IPv4", "s7", 7, 3)
    await bench.sync.sync()
    change = bench.kernel.changes[-1]

    assert sorted(name[:9] for name in change.chains["nat"]) == ["KUBE-SEP-", "KUBE-SVC-"]
    assert not change.gone
    assert not change.chains.get("filter")


async def test_a_service_that_is_gone_takes_its_chains_along() -> None:
    bench = Bench()
    bench.put(2)
    await bench.sync.sync()
    bench.fold.drop_service(ServiceKey("shop", "s2"))
    await bench.sync.sync()

    assert bench.choices() == 1
    assert sum(name.startswith("KUBE-SEP-") for name in bench.nat()) == 2


async def test_a_service_that_the_kernel_refuses_stands_alone() -> None:
    """SY-6: nothing of it stays behind, in no table."""
    bench = Bench()
    bench.kernel.without.add("recent")
    bench.put(10)
    put(bench.fold, "IPv4", "s4", 4, 2, sessionAffinity="ClientIP")
    await bench.sync.sync()

    assert bench.choices() == 9
    assert bench.watcher.set_aside == [ServiceKey("shop", "s4")]
    assert not bench.watcher.failures

    put(bench.fold, "IPv4", "s5", 5, 0)
    await bench.sync.sync()
    put(bench.fold, "IPv4", "s5", 5, 2, sessionAffinity="ClientIP")
    await bench.sync.sync()
    refusals = bench.kernel.of("IPv4")["filter"]["KUBE-SERVICES"]
    assert ["shop/s5" in rule for rule in refusals] == [True]
    assert len(bench.watcher.failures) == 1

    await bench.sync.sync()
    assert bench.watcher.set_aside[-1] == ServiceKey("shop", "s5")


async def test_services_that_were_taken_over_stay_so_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-5: beside a table of kube-proxy, which these tables know nothing of."""

    async def rivals(_: FakeIptables) -> list[str]:
        return ["table kube-proxy of kube-proxy"]

    bench = Bench()
    bench.put(2)
    await bench.sync.sync()
    monkeypatch.setattr(FakeIptables, "rivals", rivals)
    again, fresh = Bench(bench.kernel, bench.fold), Bench()
    for one in (again, fresh):
        one.put(3)
        await one.sync.sync()

    assert (again.choices(), again.watcher.failures) == (3, [])
    assert fresh.choices() == 0


async def test_a_lock_that_somebody_holds_is_told_and_waited_for() -> None:
    """IP-10, SY-5."""
    bench = Bench()
    bench.put(2)
    bench.kernel.failures.append(LockHeld("another program holds the lock"))
    await bench.sync.sync()
    assert bench.watcher.failures == ["another program holds the lock 0.2"]

    await bench.sync.sync()
    assert bench.choices() == 2


async def noticed(bench: Bench) -> str:
    """What the ruleset says within a second."""
    async with aclosing(bench.rules.changes()) as sentences:
        asked = asyncio.ensure_future(anext(sentences))
        await asyncio.sleep(0)
        for _ in range(10):
            await bench.clock.advance(0.1)
        assert asked.done()
        sentence = await asked
    bench.sync.disturbed(sentence)
    await bench.sync.sync()
    return sentence


async def test_rules_that_somebody_changed_are_told_and_healed() -> None:
    """IP-8, ASK-12."""
    bench = Bench()
    bench.put(2)
    await bench.sync.sync()
    nat = bench.nat()
    before = dict(nat)
    chain = next(name for name in nat if name.startswith("KUBE-SVC-"))
    nat[chain] = nat[chain][:-1]
    assert await noticed(bench) == f"another program changed {chain}"
    assert bench.nat() == before

    bench.nat()["PREROUTING"] = ()
    assert await noticed(bench) == "another program changed a jump in PREROUTING"
    assert bench.nat() == before

    bench.kernel.flush_by_others("IPv4", "nat")
    assert await noticed(bench) == "another program flushed the tables nat"
    assert bench.nat() == before
    assert len(bench.watcher.repairs) == 3


@pytest.mark.parametrize(("signs_all", "looked"), [(True, 0), (False, 1)], ids=["nft", "legacy"])
async def test_own_writes_are_not_looked_at_and_a_change_without_a_sign_is_found_later(
    monkeypatch: pytest.MonkeyPatch,
    signs_all: bool,
    looked: int,
) -> None:
    """IP-8, FS-27: reading everything costs as much as a change; a legacy table has no count of changes."""
    bench = Bench()
    bench.kernel.signs_all = signs_all
    bench.put(2)
    await bench.sync.sync()
    looks = 0

    async def look(*, at_all: bool) -> str:
        nonlocal looks
        looks += 1
        return ""

    monkeypatch.setattr(bench.rules, "_look", look)
    following = asyncio.ensure_future(anext(bench.rules.changes()))
    await asyncio.sleep(0)
    for number in range(3, 8):
        bench.put(number)
        await bench.sync.sync()
        await bench.clock.advance(1.0)
    assert looks == 0

    await bench.clock.advance(30.0)
    assert looks == looked
    following.cancel()


async def test_what_one_family_writes_is_no_sign_for_the_other_but_what_others_write_is() -> None:
    """FS-27: nft counts the commits of everybody, of both families."""
    kernel, count = FakeTables(), 0

    class Counting(FakeIptables):
        def sign(self) -> bytes:
            return str(count).encode()

        async def apply(self, change: RulesChange, ahead: Iterable[Chains] = ()) -> None:
            nonlocal count
            count += 1
            await super().apply(change, ahead)

    signs: Signs = {}
    one, other = (IptablesRuleset(Counting("IPv4", kernel), clock=FakeClock(), signs=signs) for _ in range(2))
    facts = facts_for("IPv4")
    await one.prepare(facts, is_wanted=True)
    await one.reconcile({}, facts)
    assert signs == {one: b"1", other: b"1"}

    count += 1
    await one.write({}, facts_for("IPv4", addresses=("192.168.0.77",)))
    assert signs == {one: b"1", other: b"1"}


async def test_another_node_address_is_written_at_once() -> None:
    """IN-19."""
    bench = Bench()
    put(bench.fold, "IPv4", "web", 1, type="NodePort", ports=[{"name": "h", "port": 80, "nodePort": 30080}])
    bench.sync.set_facts(facts_for("IPv4", node_port_addresses=("primary",)))
    await bench.sync.sync()
    assert "-d 192.168.0.10/32 " in bench.nat()["KUBE-SERVICES"][-1]

    bench.sync.set_facts(facts_for("IPv4", node_port_addresses=("primary",), addresses=("192.168.0.77",)))
    await bench.sync.sync()
    assert "-d 192.168.0.77/32 " in bench.nat()["KUBE-SERVICES"][-1]


async def test_a_large_change_is_written_in_parts_that_lead_nowhere_yet() -> None:
    """As the nft variant likes it; the frontends come when all that they lead to is there."""
    whole, parts = Bench(), Bench()
    parts.rules.tables.most_chains = 5  # type: ignore[misc]
    for bench in (whole, parts):
        bench.put(10)
        await bench.sync.sync()
    assert len(parts.kernel.changes) > 5
    assert parts.kernel.of("IPv4") == whole.kernel.of("IPv4")
    assert [len(one.chains.get("filter", ())) > 0 for one in parts.kernel.changes].index(True) > 5

    for bench in (whole, parts):
        for number in range(1, 10):
            bench.fold.drop_service(ServiceKey("shop", f"s{number}"))
        await bench.sync.sync()
    assert parts.kernel.of("IPv4") == whole.kernel.of("IPv4")
    assert parts.choices() == 1


async def test_a_large_change_that_is_refused_half_way_leaves_nothing() -> None:
    """SY-6."""
    bench = Bench()
    bench.rules.tables.most_chains = 5  # type: ignore[misc]
    bench.put(1)
    await bench.sync.sync()
    before = {table: dict(chains) for table, chains in bench.kernel.of("IPv4").items()}
    bench.kernel.without.add("recent")
    for number in range(2, 8):
        put(bench.fold, "IPv4", f"s{number}", number, 2, sessionAffinity="ClientIP")
    await bench.sync.sync()

    assert bench.kernel.of("IPv4") == before
    assert len(bench.watcher.failures) == 1


async def test_whatever_restore_was_the_last_the_next_process_ends_in_the_same_rules() -> None:
    """SY-13: also where a change in parts ended half-way; no frontend ever leads to a chain that is not there."""
    whole = Bench()
    whole.put(6)
    await whole.sync.sync()
    for lives in range(20):
        kernel = FakeTables()
        dying, next_one = Bench(kernel), Bench(kernel)
        for bench in (dying, next_one):
            bench.put(6)
        dying.rules.tables = Mortal(kernel, lives)
        with suppress(Died):
            await dying.sync.sync()
        await next_one.sync.sync()

        assert kernel.of("IPv4") == whole.kernel.of("IPv4"), lives


async def test_another_health_port_is_opened_though_nothing_else_changes() -> None:
    """TY-18, HL-4: a balancer without node ports and without an address yet has no way in whose rules would change."""
    bench = Bench()
    spec = {"type": "LoadBalancer", "allocateLoadBalancerNodePorts": False}
    put(bench.fold, "IPv4", "web", 1, **spec)
    await bench.sync.sync()
    for port in (30_001, 30_002):
        local = {"externalTrafficPolicy": "Local", "healthCheckNodePort": port}
        put(bench.fold, "IPv4", "web", 1, **spec, **local)
        await bench.sync.sync()
        open_ports = [rule for rule in bench.kernel.of("IPv4")["filter"]["KUBE-NODEPORTS"] if "health check" in rule]

        assert [rule.split("--dport ")[1] for rule in open_ports] == [f"{port} -j ACCEPT"]
    put(bench.fold, "IPv4", "web", 1, **spec)
    await bench.sync.sync()

    assert not bench.kernel.of("IPv4")["filter"]["KUBE-NODEPORTS"]

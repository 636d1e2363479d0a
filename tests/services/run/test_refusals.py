# SPDX-License-Identifier: Apache-2.0
"""Transactions that the kernel refuses: once or always, at the start, after a restart and later, through each backend.

What holds in every case: after no step is a Service gone that led somewhere before.
"""

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from agent.drivers.iptables.program import failure
from agent.model.services.iptables_rules import Chains, RulesChange
from agent.model.services.nft_error import NftFailed, RulesRefused
from agent.model.services.nft_table import Batch, TableState
from agent.model.services.service import ServiceKey
from agent.services import batches
from agent.services.iptables.trace import trace_rules
from agent.services.nftables.trace import Outcome, Packet, trace
from agent.services.objects.addresses import read_address
from agent.services.objects.fold import ServiceIndex
from agent.services.objects.node_state import FamilyFacts
from agent.services.routes.desired import Desired
from agent.services.run.family_sync import FamilySync
from agent.services.run.iptables_ruleset import IptablesRuleset
from agent.services.run.nft_ruleset import NftRuleset
from tests.fakes.clock import FakeClock
from tests.fakes.iptables import FakeIptables, FakeTables
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.iptables.iptables_cases import facts_for, put, vip
from tests.services.run.test_family_sync import Watcher

PASSING = [errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENOBUFS, errno.EINTR]
BACKENDS = ["nftables", "iptables", "iptables in parts"]
COUNT = 24
GONE = "s24"
CLIENT = read_address("10.1.0.250")


class Kernel:
    """One of either kind that refuses what the test wants, and remembers what was lost after a step."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.nft, self.chains = FakeKernel(), FakeTables()
        self.refusals: dict[int, int] = {}
        """Number of the transaction → errno."""
        self.poison = ""
        """What is always refused: an address of an endpoint."""
        self.poison_code = errno.EINVAL
        self.steps = 0
        self.worked: dict[str, Outcome] = {}
        self.lost: list[tuple[int, str]] = []
        self.given_up: set[str] = set()

    def begin(self, refusals: Mapping[int, int]) -> None:
        self.steps, self.refusals = 0, dict(refusals)

    def refuse(self, text: str) -> None:
        self.steps += 1
        code = self.refusals.pop(self.steps, self.poison_code if self.poison and self.poison in text else 0)
        if code and self.backend == "nftables":
            raise RulesRefused.by_kernel(code, map="services")
        if code:
            raise failure("iptables-nft-restore", 4, f"line 7: RULE_APPEND failed ({os.strerror(code)})", text)

    def look(self, facts: FamilyFacts) -> None:
        """After a step."""
        leads = {name: one for name in map(service_name, range(1, COUNT + 2)) if (one := self.lead(name, facts))}
        self.lost += [(self.steps, name) for name in self.worked if name not in leads and name not in self.given_up]
        self.worked = leads

    def lead(self, name: str, facts: FamilyFacts) -> Outcome | None:
        target = read_address(vip("IPv4", int(name[1:])))
        assert target is not None
        assert CLIENT is not None
        packet = Packet(CLIENT, target, "TCP", 80)
        if self.backend == "nftables":
            table = self.nft.tables.get("IPv4")
            found = trace(table.content if table is not None else {}, facts.table, packet)
        else:
            found = trace_rules(self.chains.of("IPv4"), packet)
        return found if found.verdict == "dnat" else None

    def targets(self, name: str, facts: FamilyFacts) -> set[str]:
        found = self.lead(name, facts)
        return {".".join(map(str, address)) for address, _ in found.targets} if found is not None else set()


def service_name(number: int) -> str:
    return f"s{number}"


class Table(FakeNft):
    def __init__(self, kernel: Kernel, facts: FamilyFacts) -> None:
        super().__init__("IPv4", kernel.nft)
        self.around, self.facts = kernel, facts

    async def apply(self, batch: Batch) -> None:
        if batch:
            added = (data for items in batch.adds.values() for _, data in items)
            self.around.refuse(" ".join(".".join(map(str, one[:4])) for one in added if isinstance(one, bytes)))
        await super().apply(batch)
        self.around.look(self.facts)

    async def load(self, text: str) -> None:
        await super().load(text)
        self.around.look(self.facts)


class ChainsOf(FakeIptables):
    def __init__(self, kernel: Kernel, facts: FamilyFacts, *, most_chains: int) -> None:
        super().__init__("IPv4", kernel.chains)
        self.around, self.facts, self.most_chains = kernel, facts, most_chains

    async def apply(self, change: RulesChange, ahead: Iterable[Chains] = ()) -> None:
        made = list(ahead)
        try:
            self.around.refuse(f"{change} {made}")
        except RulesRefused:
            # A refused restore may have changed the tables before nat.
            earlier = {name: {"filter": part.get("filter", {})} for name, part in parts_of(change).items()}
            await super().apply(RulesChange(**{name: part for name, part in earlier.items() if part["filter"]}))
            self.around.look(self.facts)
            raise
        await super().apply(change, made)
        self.around.look(self.facts)


def parts_of(change: RulesChange) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("chains", "kept", "last")}


class Bench:
    """One process on a kernel."""

    def __init__(self, kernel: Kernel, fold: ServiceIndex) -> None:
        self.kernel, self.fold = kernel, fold
        self.clock, self.watcher = FakeClock(), Watcher()
        self.facts = facts_for("IPv4")
        if kernel.backend == "nftables":
            self.rules: Any = NftRuleset(Table(kernel, self.facts))
        else:
            parts = 5 if kernel.backend == "iptables in parts" else 0
            self.rules = IptablesRuleset(ChainsOf(kernel, self.facts, most_chains=parts), clock=self.clock)
        desired = Desired("IPv4", self.facts.node, fold)
        self.sync = FamilySync(desired, self.facts, self.rules, self.watcher, clock=self.clock)

    async def settle(self) -> None:
        for _ in range(4):
            await self.sync.sync()
            await self.clock.advance(400.0)

    def targets(self, name: str) -> set[str]:
        return self.kernel.targets(name, self.facts)


def change(fold: ServiceIndex, kernel: Kernel) -> None:
    """One goes, one comes, one gets another endpoint, one a node port."""
    kernel.given_up.add(GONE)
    fold.drop_service(ServiceKey("shop", GONE))
    put(fold, "IPv4", "s25", 25)
    put(fold, "IPv4", "s3", 3, 3)
    put(fold, "IPv4", "s4", 4, type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30_080}])


@pytest.fixture(params=BACKENDS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.setattr(batches, "MOST_SERVICES", 10)
    return Kernel(request.param)


async def programmed(kernel: Kernel) -> Bench:
    bench = Bench(kernel, ServiceIndex())
    for number in range(1, COUNT + 1):
        put(bench.fold, "IPv4", service_name(number), number)
    await bench.sync.sync()
    assert len(kernel.worked) == COUNT
    return bench


async def whole(backend: str) -> Kernel:
    """What the same objects make without any refusal."""
    kernel = Kernel(backend)
    bench = await programmed(kernel)
    change(bench.fold, kernel)
    again = Bench(kernel, bench.fold)
    await again.settle()
    return kernel


def has_same(one: Kernel, other: Kernel, bench: Bench) -> bool:
    if one.backend != "nftables":
        return one.chains.of("IPv4") == other.chains.of("IPv4")
    names = map(service_name, range(1, COUNT + 2))
    has_more = bench.rules.mirror.repair(state_of(one)).size
    return not has_more and all(one.targets(name, bench.facts) == other.targets(name, bench.facts) for name in names)


def state_of(kernel: Kernel) -> TableState:
    table = kernel.nft.tables["IPv4"]
    return TableState(table.comment, table.bodies(), table.content)


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EINVAL])
@pytest.mark.parametrize("refused", range(1, 5))
@pytest.mark.parametrize("when", ["start", "restart", "later"])
async def test_a_refused_transaction_takes_nothing_away(kernel: Kernel, when: str, refused: int, code: int) -> None:
    """FS-2: whichever it is and whatever for; when it is taken the rules are those that would be there without."""
    bench = Bench(kernel, ServiceIndex())
    if when == "start":
        for number in range(1, COUNT + 1):
            put(bench.fold, "IPv4", service_name(number), number)
    else:
        bench = await programmed(kernel)
        bench = Bench(kernel, bench.fold) if when == "restart" else bench
    change(bench.fold, kernel)
    if code not in PASSING:
        # What came with the refused change itself may be taken back with it.
        kernel.given_up.add("s25")
    kernel.begin({refused: code})
    await bench.sync.sync()
    aside, failures = list(bench.watcher.set_aside), len(bench.watcher.failures)
    met = not kernel.refusals
    await bench.settle()

    assert kernel.lost == []
    assert (aside == []) or code not in PASSING
    assert failures == 1 or code not in PASSING or not met
    assert bench.sync.quarantine == {}
    assert has_same(kernel, await whole(kernel.backend), bench)


@pytest.mark.parametrize("is_restart", [True, False])
async def test_a_service_whose_new_rules_are_refused_keeps_its_old_ones(kernel: Kernel, *, is_restart: bool) -> None:
    """FS-2, SY-6: through later changes and full syncs; all others are as they should be."""
    bench = await programmed(kernel)
    before = bench.targets("s3")
    kernel.poison = "10.1.0.32"
    change(bench.fold, kernel)
    bench = Bench(kernel, bench.fold) if is_restart else bench
    await bench.sync.sync()
    await bench.clock.advance(1.0)
    await bench.sync.sync()
    seen = [bench.targets("s3")]
    put(bench.fold, "IPv4", "s5", 5, 3)
    await bench.sync.sync()
    seen.append(bench.targets("s3"))
    await bench.clock.advance(3601.0)
    await bench.sync.sync()
    seen.append(bench.targets("s3"))

    assert list(bench.sync.quarantine) == [ServiceKey("shop", "s3")]
    assert seen == [before] * 3
    assert kernel.lost == []
    assert [len(bench.targets(name)) for name in ("s25", "s5", GONE)] == [2, 3, 0]

    kernel.poison = ""
    await bench.settle()
    assert len(bench.targets("s3")) == 3
    assert bench.sync.quarantine == {}
    await bench.clock.advance(3601.0)
    await bench.settle()
    put(bench.fold, "IPv4", "s5", 5)
    await bench.settle()
    assert has_same(kernel, await whole(kernel.backend), bench)


async def test_a_refused_service_that_is_deleted_takes_its_old_rules_along(kernel: Kernel) -> None:
    """FS-2: at once, not with the next full sync."""
    bench = await programmed(kernel)
    kernel.poison = "10.1.0.32"
    change(bench.fold, kernel)
    bench = Bench(kernel, bench.fold)
    await bench.sync.sync()
    kernel.given_up.add("s3")
    bench.fold.drop_service(ServiceKey("shop", "s3"))
    await bench.sync.sync()

    assert bench.targets("s3") == set()
    assert bench.sync.quarantine == {}
    assert kernel.lost == []


@pytest.mark.parametrize("code", PASSING)
def test_a_moment_without_memory_is_no_refusal_of_a_rule(code: int) -> None:
    """FS-2: in the words of iptables-restore, as in the kernel's own."""
    told: NftFailed = failure("iptables-nft-restore", 4, f"line 9: CHAIN_ADD failed ({os.strerror(code)}): chain X", "")

    assert isinstance(told, RulesRefused)
    assert told.is_passing
    assert RulesRefused.by_kernel(code).is_passing
    assert not RulesRefused.by_kernel(errno.EINVAL).is_passing


async def test_a_service_that_always_exhausts_the_kernel_is_isolated_in_the_end(kernel: Kernel) -> None:
    """FS-2: a shortage is waited out, but not for ever: the other Services would never change again."""
    bench = await programmed(kernel)
    kernel.poison, kernel.poison_code = "10.1.0.32", errno.ENOMEM
    change(bench.fold, kernel)
    for _ in range(12):
        await bench.sync.sync()
        await bench.clock.advance(1.0)

    assert list(bench.sync.quarantine) == [ServiceKey("shop", "s3")]
    assert [len(bench.targets(name)) for name in ("s25", GONE)] == [2, 0]
    assert kernel.lost == []

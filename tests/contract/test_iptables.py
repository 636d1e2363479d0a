# SPDX-License-Identifier: Apache-2.0
"""One suite for the fake tables, for iptables-nft and for iptables-legacy: what the services plane may rely on."""

import fcntl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.iptables.driver import IptablesTables
from agent.drivers.iptables.program import Program
from agent.drivers.iptables.sign import sign_of
from agent.model.services.iptables_rules import CANARY, OWNER, Content, RulesChange, Variant, as_saved, is_ours
from agent.model.services.nft_error import ExtensionMissing, LockHeld, NftMissing, OutcomeUnknown, RulesRefused
from agent.model.services.nft_table import Family
from agent.services.iptables.frame import JUMPS
from agent.services.iptables.mirror import IptablesMirror, difference, removal
from agent.services.run.kernel.leftovers import remove_chains
from tests.fakes.iptables import FakeIptables, FakeTables
from tests.lab.namespace import Namespace
from tests.services.iptables.iptables_cases import all_kinds, settings_for

NAMES_PATH = {
    "IPv4": Path("/proc/thread-self/net/ip_tables_names"),
    "IPv6": Path("/proc/thread-self/net/ip6_tables_names"),
}


@dataclass
class Subject:
    """Tables under test, and somebody else who flushes them."""

    family: Family
    tables: Any
    flush: Callable[[str], None]


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param  # type: ignore[no-any-return]


def legacy_names(node: Namespace, family: Family) -> str:
    return node.call(lambda: NAMES_PATH[family].read_text() if NAMES_PATH[family].exists() else "")


def real(family: Family, variant: Variant, node: Namespace) -> Subject:
    tables = IptablesTables(
        family,
        prefix=node.command(),
        variant=variant,
        legacy_tables=lambda of: legacy_names(node, of),
        set_loopback=lambda text: node.set("net.ipv4.conf.all.route_localnet", text),
        sign=lambda *which: node.call(lambda: sign_of(*which)),
    )
    program = f"{'iptables' if family == 'IPv4' else 'ip6tables'}-{variant}"

    def flush(table: str) -> None:
        node.run(program, "-t", table, "-F")
        node.run(program, "-t", table, "-X")

    return Subject(family, tables, flush)


@pytest.fixture(
    params=["fake", pytest.param("nft", marks=pytest.mark.node), pytest.param("legacy", marks=pytest.mark.node)]
)
def subject(request: pytest.FixtureRequest, family: Family) -> Iterator[Subject]:
    if request.param == "fake":
        kernel = FakeTables()
        yield Subject(family, FakeIptables(family, kernel), lambda table: kernel.flush_by_others(family, table))
        return
    if request.param == "legacy" and not NAMES_PATH[family].exists():
        pytest.fail("this kernel is built without the legacy tables (CONFIG_NETFILTER_XTABLES_LEGACY)")
    with Namespace() as node:
        yield real(family, request.param, node)


def staged(family: Family) -> tuple[IptablesMirror, Any]:
    mirror = IptablesMirror()
    plans = all_kinds(family)
    return mirror, mirror.stage(plans, settings_for(family))


def ours(content: Content) -> Content:
    return {table: {name: rules for name, rules in chains.items() if "-" in name} for table, chains in content.items()}


async def test_what_is_written_is_read_back_word_for_word(subject: Subject) -> None:
    """IP-3: so a full sync writes only what somebody changed."""
    mirror, first = staged(subject.family)
    await subject.tables.check()
    change = mirror.repair(await subject.tables.read(), first)
    await subject.tables.apply(change)
    mirror.commit(first)
    found = await subject.tables.read()
    wanted = {
        table: {name: tuple(map(as_saved, rules)) for name, rules in chains.items()}
        for table, chains in mirror.content().items()
    }

    for table, chains in wanted.items():
        assert chains == {name: rules for name, rules in found[table].items() if name in chains}
    again = difference(found, mirror.content(), settings_for(subject.family))
    assert not again, again


async def test_jumps_stand_before_the_rules_of_others_in_their_order(subject: Subject) -> None:
    """IP-7."""
    mirror, first = staged(subject.family)
    await subject.tables.apply(RulesChange(last={"filter": [("INPUT", "-p tcp -m tcp --dport 7 -j ACCEPT")]}))
    await subject.tables.apply(mirror.repair(await subject.tables.read(), first))
    found = await subject.tables.read()
    expected = [as_saved(rule) for chain, rule in JUMPS["filter"] if chain == "INPUT"]

    inputs = [rule for rule in found["filter"]["INPUT"] if "KUBE-FIREWALL" not in rule]
    assert inputs == [*expected, "-p tcp -m tcp --dport 7 -j ACCEPT"]


async def test_chains_may_be_made_while_they_are_written(subject: Subject) -> None:
    """IP-5: what leads to them is written after them, and if making one fails nothing of it stays."""

    def broken() -> Iterator[dict[str, tuple[str, ...]]]:
        yield {"KUBE-SVC-A": ()}
        raise ValueError("no chain")

    frame = RulesChange({"nat": {"KUBE-SERVICES": ("-j KUBE-SVC-A", "-j KUBE-SVC-B")}})
    with pytest.raises(ValueError, match="no chain"):
        await subject.tables.apply(frame, broken())
    assert "KUBE-SVC-A" not in (await subject.tables.read()).get("nat", {})

    await subject.tables.apply(
        frame, iter([{"KUBE-SVC-B": ("-j KUBE-MARK-MASQ",)} | {"KUBE-MARK-MASQ": ()}, {"KUBE-SVC-A": ()}])
    )
    found = (await subject.tables.read())["nat"]
    assert found["KUBE-SERVICES"] == ("-j KUBE-SVC-A", "-j KUBE-SVC-B")
    assert (found["KUBE-SVC-A"], found["KUBE-SVC-B"]) == ((), ("-j KUBE-MARK-MASQ",))


async def test_a_refused_table_is_left_as_it_was(subject: Subject) -> None:
    """IP-5: and those before it are changed, which the ruleset takes back."""
    good = RulesChange({"filter": {OWNER: ()}, "nat": {"KUBE-SVC-A": ("-j RETURN",), CANARY: ()}})
    await subject.tables.apply(good)
    with pytest.raises(RulesRefused):
        await subject.tables.apply(
            RulesChange({"filter": {CANARY: ()}, "nat": {"KUBE-SVC-A": ("-j KUBE-SEP-MISSING",), "KUBE-SVC-B": ()}})
        )
    found = await subject.tables.read()

    assert found["nat"]["KUBE-SVC-A"] == ("-j RETURN",)
    assert "KUBE-SVC-B" not in found["nat"]


async def test_a_chain_goes_with_what_led_to_it(subject: Subject) -> None:
    """IP-5: emptied and removed in the input that rewrites the chain with the jump."""
    before = RulesChange(
        {"nat": {"KUBE-SVC-A": ("-j KUBE-SEP-A", "-j KUBE-SEP-B"), "KUBE-SEP-A": (), "KUBE-SEP-B": ()}}
    )
    await subject.tables.apply(before)
    with pytest.raises(RulesRefused):
        await subject.tables.apply(RulesChange(gone={"nat": ["KUBE-SEP-A"]}))
    await subject.tables.apply(RulesChange({"nat": {"KUBE-SVC-A": ("-j KUBE-SEP-B",)}}, gone={"nat": ["KUBE-SEP-A"]}))
    found = await subject.tables.read()

    assert found["nat"]["KUBE-SVC-A"] == ("-j KUBE-SEP-B",)
    assert "KUBE-SEP-A" not in found["nat"]


async def test_a_name_that_is_too_long_is_refused(subject: Subject) -> None:
    """IP-1."""
    with pytest.raises(RulesRefused):
        await subject.tables.apply(RulesChange({"nat": {"KUBE-SVC-" + "A" * 20: ()}}))


async def test_an_unknown_match_is_named_with_its_rule(subject: Subject) -> None:
    if isinstance(subject.tables, FakeIptables):
        subject.tables.kernel.without.add("unheard")
    rule = '-m comment --comment "shop/web:http" -m unheard --of it -j RETURN'
    with pytest.raises(ExtensionMissing) as caught:
        await subject.tables.apply(RulesChange({"nat": {"KUBE-SVC-A": (rule,)}}))

    assert "shop/web:http" in caught.value.line


async def test_a_flushed_table_is_noticed(subject: Subject) -> None:
    """IP-8: all three of them, beyond kube-proxy."""
    mirror, first = staged(subject.family)
    await subject.tables.apply(mirror.repair(await subject.tables.read(), first))
    assert await subject.tables.missing_canaries() == []
    subject.flush("nat")

    assert await subject.tables.missing_canaries() == ["nat"]


async def test_whatever_somebody_changes_leaves_a_sign(subject: Subject) -> None:
    """IP-8."""
    mirror, first = staged(subject.family)
    await subject.tables.apply(mirror.repair(await subject.tables.read(), first))
    written = subject.tables.sign()
    await subject.tables.read()
    unchanged = subject.tables.sign()
    subject.flush("nat")

    assert unchanged == written != b""
    assert subject.tables.sign() != written


async def test_removal_leaves_what_others_made(subject: Subject) -> None:
    """IP-13."""
    await subject.tables.apply(
        RulesChange({"filter": {"MINE": ("-j RETURN",)}}, last={"filter": [("FORWARD", "-j MINE")]})
    )
    mirror, first = staged(subject.family)
    await subject.tables.apply(mirror.repair(await subject.tables.read(), first))
    await subject.tables.apply(removal(await subject.tables.read()))
    found = await subject.tables.read()

    left = {table: [name for name in chains if "-" in name] for table, chains in found.items()}
    guard = ["KUBE-FIREWALL"] if subject.family == "IPv4" else []
    assert left == {"mangle": ["KUBE-IPTABLES-HINT"], "filter": guard, "nat": []}
    assert found["filter"]["FORWARD"] == ("-j MINE",)
    assert not any(found["nat"].values())


async def test_kube_proxys_chains_are_told_from_ours(subject: Subject) -> None:
    """DS-14."""
    assert list(await subject.tables.rivals()) == []
    await subject.tables.apply(RulesChange({"nat": {"KUBE-SERVICES": ()}}))
    assert list(await subject.tables.rivals()) == []
    await subject.tables.apply(RulesChange({"nat": {"KUBE-SERVICES": ("-j RETURN",)}}))
    assert len(await subject.tables.rivals()) == 1

    await subject.tables.apply(RulesChange({"nat": {OWNER: ()}}))
    assert list(await subject.tables.rivals()) == []


def needs_legacy() -> None:
    if not all(path.exists() for path in NAMES_PATH.values()):
        pytest.fail("this kernel is built without the legacy tables (CONFIG_NETFILTER_XTABLES_LEGACY)")


@pytest.mark.node
async def test_legacy_tables_that_nobody_uses_are_not_touched(family: Family) -> None:
    """IP-11: asking for one creates it, and then every packet passes it."""
    needs_legacy()
    with Namespace() as node:
        tables = real(family, "nft", node).tables
        tables.variant = None
        await tables.check()
        await tables.rivals()
        await tables.read()
        for one in (tables, real(family, "legacy", node).tables):
            assert one.variant == "nft" or not await one.is_in_use()
            await one.missing_canaries()

        assert tables.variant == "nft"
        assert [legacy_names(node, of) for of in NAMES_PATH] == ["", ""]  # type: ignore[arg-type]


@pytest.mark.node
async def test_programs_of_the_other_variant_are_seen(family: Family) -> None:
    """IP-12, DS-14: rules of both apply to every packet."""
    needs_legacy()
    with Namespace() as node:
        legacy, nft = real(family, "legacy", node).tables, real(family, "nft", node).tables
        await nft.apply(RulesChange({"nat": {"KUBE-SERVICES": ("-j RETURN",)}}))

        assert len(await legacy.rivals()) == 1
        assert "nft" in (await legacy.rivals())[0]


@pytest.mark.node
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, "nft"),
        ({"legacy": RulesChange(kept={"mangle": ["KUBE-KUBELET-CANARY"]})}, "legacy"),
        ({"legacy": RulesChange(last={"filter": [("INPUT", "-j ACCEPT")]})}, "legacy"),
        (
            {
                "legacy": RulesChange(last={"filter": [("INPUT", "-j ACCEPT")]}),
                "nft": RulesChange(last={"filter": [("INPUT", "-j ACCEPT")]}),
            },
            "nft",
        ),
        ({"nft": RulesChange(kept={"mangle": ["KUBE-IPTABLES-HINT"]})}, "nft"),
    ],
    ids=["nothing", "kubelet on legacy", "rules on legacy", "rules on both", "hint on nft"],
)
async def test_the_variant_in_use_is_chosen(family: Family, rules: dict[Variant, RulesChange], expected: str) -> None:
    """IP-11."""
    needs_legacy()
    with Namespace() as node:
        for variant, change in rules.items():
            await real(family, variant, node).tables.apply(change)
        tables = real(family, "nft", node).tables
        tables.variant = None
        await tables.check()

        assert tables.variant == expected


@pytest.mark.node
async def test_the_lock_of_the_legacy_variant_is_waited_for_and_told(family: Family, tmp_path: Path) -> None:
    """IP-10: exit code 4 is no refusal of the rules."""
    needs_legacy()
    with Namespace() as node:
        lock = tmp_path / "lock"
        held = lock.open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        tables = real(family, "legacy", node).tables
        tables._program = Program((*node.command(), "env", f"XTABLES_LOCKFILE={lock}"))
        with pytest.raises(LockHeld, match="another program holds the lock"):
            await tables.apply(RulesChange({"nat": {"KUBE-SVC-A": ()}}))
        held.close()

        await tables.apply(RulesChange({"nat": {"KUBE-SVC-A": ()}}))


async def test_a_missing_program_is_named() -> None:
    tables = IptablesTables("IPv4", prefix=(), variant="nft", legacy_tables=lambda _: "")
    tables._program = Program(("/nowhere/env",))
    with pytest.raises(NftMissing, match="install the package iptables, or set services"):
        await tables.check()


@pytest.mark.node
async def test_a_program_that_hangs_is_ended(family: Family) -> None:
    """STY-32: the outcome is unknown, so the rules are read again."""
    with Namespace() as node:
        tables = real(family, "nft", node).tables
        tables._program = Program(("sh", "-c", "exec sleep 60"), 0.2)
        with pytest.raises(OutcomeUnknown, match="gave no answer within"):
            await tables.read()


@pytest.mark.node
async def test_our_rules_of_a_variant_that_is_no_longer_used_are_taken_away(family: Family) -> None:
    """IP-13, SY-14: and those of others are not, nor is a variant asked that nobody uses."""
    needs_legacy()
    with Namespace() as node:
        legacy, nft = real(family, "legacy", node).tables, real(family, "nft", node).tables
        assert [await remove_chains(one) for one in (nft, legacy)] == ["", ""]
        assert legacy_names(node, family) == ""

        await legacy.apply(RulesChange(last={"nat": [("OUTPUT", "-p tcp -m tcp --dport 7 -j ACCEPT")]}))
        mirror, first = staged(family)
        await legacy.apply(mirror.repair(await legacy.read(), first))
        assert [await remove_chains(one) for one in (nft, legacy)] == ["", "the rules of iptables-legacy"]
        assert [await remove_chains(one) for one in (nft, legacy)] == ["", ""]
        found = await legacy.read()

    assert found["nat"]["OUTPUT"] == ("-p tcp -m tcp --dport 7 -j ACCEPT",)
    assert not [name for chains in found.values() for name in chains if is_ours(name)]

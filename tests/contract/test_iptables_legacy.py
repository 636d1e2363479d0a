# SPDX-License-Identifier: Apache-2.0
"""Legacy tables through python-iptables, on the kernel's own: found, told from ours, and cleaned of ours alone."""

import fcntl
from collections.abc import Collection
from pathlib import Path

import pytest

from agent.drivers.iptables.legacy import LegacyTables
from agent.model.services.iptables_rules import CANARY, OWNER, RulesChange
from agent.model.services.nft_error import LockHeld, NftMissing
from agent.model.services.nft_table import Family
from agent.services.iptables.mirror import IptablesMirror
from tests.contract.test_iptables import legacy_names, needs_legacy, real
from tests.lab.namespace import Namespace
from tests.services.iptables.iptables_cases import all_kinds, settings_for

pytestmark = pytest.mark.node


@pytest.fixture(params=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> Family:
    needs_legacy()
    return request.param  # type: ignore[no-any-return]


def is_marked(chains: Collection[str]) -> bool:
    return OWNER in chains


def tables_in(node: Namespace, family: Family, tmp_path: Path) -> LegacyTables:
    return LegacyTables(
        family, inside=node.call, in_use=lambda of: legacy_names(node, of), lock=tmp_path / "xtables.lock"
    )


async def test_a_host_without_legacy_tables_gets_none(family: Family, tmp_path: Path) -> None:
    """IP-11: nothing is opened where nothing is in use, and no other table beside one that is."""
    with Namespace() as node:
        tables = tables_in(node, family, tmp_path)
        assert (await tables.rivals(), await tables.read(), await tables.remove(is_marked)) == ([], {}, [])
        assert legacy_names(node, family) == ""

        await real(family, "legacy", node).tables.apply(RulesChange({"nat": {OWNER: ("-j RETURN",)}}))
        await tables.rivals()
        assert await tables.remove(is_marked) == ["nat"]
        assert legacy_names(node, family).split() == ["nat"]


async def test_another_program_for_services_is_found_by_its_chain(family: Family, tmp_path: Path) -> None:
    """DS-14, IP-12: ours has the same name, and a mark beside it."""
    with Namespace() as node:
        tables, programs = tables_in(node, family, tmp_path), real(family, "legacy", node).tables
        await programs.apply(RulesChange({"nat": {"KUBE-SERVICES": (), "CILIUM_PRE_nat": ("-j RETURN",)}}))
        assert await tables.rivals() == []
        await programs.apply(RulesChange({"nat": {"KUBE-SERVICES": ("-j RETURN",)}}))
        assert await tables.rivals() == [
            f"chain KUBE-SERVICES of kube-proxy in table nat of the legacy tables of {family}"
        ]

        await programs.apply(RulesChange({"nat": {OWNER: ()}}))
        assert await tables.rivals() == []


async def test_what_was_left_behind_goes_and_all_else_stays(family: Family, tmp_path: Path) -> None:
    """IP-13, FS-30: chains of every kind, in all tables; rules of others, the guard and the hint stay as they were."""
    with Namespace() as node:
        programs = real(family, "legacy", node).tables
        mirror = IptablesMirror()
        plans = all_kinds(family)
        staged = mirror.stage(plans, settings_for(family))
        await programs.apply(
            RulesChange(
                {"filter": {"MINE": ("-j RETURN",)}},
                last={"filter": [("FORWARD", "-j MINE"), ("INPUT", "-p tcp -m tcp --dport 7 -j ACCEPT")]},
            )
        )
        await programs.apply(mirror.repair(await programs.read(), staged))
        tables = tables_in(node, family, tmp_path)
        before = await tables.read()
        removed = await tables.remove(is_marked)
        left = await programs.read()

    assert set(removed) == {"mangle", "filter", "nat"}
    assert CANARY in before["mangle"]
    assert any(name.startswith("KUBE-SEP-") for name in before["nat"])
    guard = ["KUBE-FIREWALL"] if family == "IPv4" else []
    assert {table: [name for name in chains if "-" in name] for table, chains in left.items()} == {
        "mangle": ["KUBE-IPTABLES-HINT"],
        "filter": guard,
        "nat": [],
    }
    assert left["filter"]["FORWARD"] == ("-j MINE",)
    assert left["filter"]["MINE"] == ("-j RETURN",)
    assert "-p tcp -m tcp --dport 7 -j ACCEPT" in left["filter"]["INPUT"]
    assert not any(left["nat"].values())


async def test_rules_of_kube_proxy_are_not_ours_to_clean(family: Family, tmp_path: Path) -> None:
    """IP-13: without our mark nothing is taken away."""
    with Namespace() as node:
        programs = real(family, "legacy", node).tables
        await programs.apply(
            RulesChange(
                {"nat": {"KUBE-SERVICES": (), "KUBE-SVC-A": ()}}, first={"nat": [("OUTPUT", "-j KUBE-SERVICES")]}
            )
        )
        before = await programs.read()

        assert await tables_in(node, family, tmp_path).remove(is_marked) == []
        assert await programs.read() == before


async def test_the_lock_of_iptables_is_waited_for_and_told(family: Family, tmp_path: Path) -> None:
    """IP-10."""
    with Namespace() as node:
        programs = real(family, "legacy", node).tables
        await programs.apply(RulesChange({"nat": {OWNER: ()}}))
        tables = tables_in(node, family, tmp_path)
        with (tmp_path / "xtables.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(LockHeld, match="another program holds"):
                await tables.remove(is_marked)
        assert OWNER in (await tables.read())["nat"]

        assert await tables.remove(is_marked) == ["nat"]


async def test_a_missing_library_is_told_where_it_is_needed(family: Family) -> None:
    absent = LegacyTables(family, library=lambda: None, in_use=lambda _: "")
    needed = LegacyTables(family, library=lambda: None, in_use=lambda _: "nat\n")

    assert await absent.rivals() == []
    with pytest.raises(NftMissing, match="python3-iptables"):
        await needed.rivals()

# SPDX-License-Identifier: Apache-2.0
"""Services as iptables rules: their text, and what holds for any Services."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.drivers.iptables.text import parse_save, restore_text
from agent.model.services.iptables_rules import Content, RulesChange, as_saved
from agent.model.services.nft_table import Detection, Family
from agent.model.services.service import ServiceKey
from agent.services.iptables.frame import rule_settings
from agent.services.iptables.mirror import IptablesMirror, difference, ways_in
from agent.services.iptables.rendering import comment
from agent.services.objects.fold import ServiceIndex
from agent.services.routes.frontends import claim_of
from tests.services.iptables.iptables_cases import all_kinds, facts_for, plans_of, put, settings_for
from tests.services.making import make_service, make_slice

GOLDEN = Path(__file__).with_name("rules.iptables")
TARGETS = {"ACCEPT", "DROP", "RETURN", "REJECT", "DNAT", "MASQUERADE", "MARK"}


def content_of(fold: ServiceIndex, family: Family = "IPv4", **options: Any) -> Content:
    plans = plans_of(fold, family, **options)
    mirror = IptablesMirror()
    mirror.commit(mirror.stage(plans, settings_for(family, **options)))
    return mirror.content()


def text_of(content: Content) -> str:
    return restore_text(RulesChange(content))


def test_services_of_every_kind_read_as_reviewed() -> None:
    """IP-1 to IP-4. After a wanted change: write the new text into rules.iptables and read the difference."""
    parts = []
    for family in ("IPv4", "IPv6"):
        mirror = IptablesMirror()
        plans = all_kinds(family)  # type: ignore[arg-type]
        staged = mirror.stage(plans, settings_for(family))  # type: ignore[arg-type]
        parts.append(f"# {family}\n" + restore_text(mirror.repair({}, staged)))

    assert "".join(parts) == GOLDEN.read_text()


def test_names_are_kube_proxys() -> None:
    """IP-1: operators look for the chain of default/kubernetes:https, which is the same in every cluster."""
    fold = ServiceIndex()
    ports = [{"name": "https", "port": 443}]
    fold.put_service(make_service("kubernetes", namespace="default", ports=ports))
    endpoint = [{"name": "https", "protocol": "TCP", "port": 6443}]
    fold.put_slice(make_slice(["10.1.0.1"], service="kubernetes", namespace="default", ports=endpoint))

    assert "KUBE-SVC-NPX46M4PTMTKRN6Y" in content_of(fold)["nat"]


@pytest.mark.parametrize(("count", "first"), [(3, "0.3333333333"), (5, "0.2000000000"), (7, "0.1428571429")])
def test_each_endpoint_gets_its_share(count: int, first: str) -> None:
    """IP-2: p = 1 / those that are left."""
    fold = ServiceIndex()
    put(fold, "IPv4", "web", 1, count)
    chain = next(rules for name, rules in content_of(fold)["nat"].items() if name.startswith("KUBE-SVC-"))
    chosen = [rule for rule in chain if "-j KUBE-SEP-" in rule]
    left, shares = 1.0, []
    for rule in chosen:
        chance = float(rule.partition("--probability ")[2].split()[0]) if "--probability" in rule else 1.0
        shares.append(left * chance)
        left -= shares[-1]

    assert f"--probability {first}" in chosen[0]
    assert shares == pytest.approx([1 / count] * count)


@pytest.mark.parametrize(
    ("given_text", "saved"),
    [("0.3333333333", "0.33333333349"), ("0.2000000000", "0.20000000019"), ("0.1428571429", "0.14285714272")],
)
def test_probabilities_compare_in_the_kernels_form(given_text: str, saved: str) -> None:
    """IP-3."""
    assert as_saved(f"--probability {given_text} -j X") == f"--probability {saved} -j X"


def test_many_endpoints_have_no_comments() -> None:
    """IP-6."""
    fold = ServiceIndex()
    for number in range(1, 12):
        put(fold, "IPv4", f"s{number}", number, 100)
    own = {name: rules for name, rules in content_of(fold)["nat"].items() if name.startswith(("KUBE-SVC", "KUBE-SEP"))}

    assert not any(" -> " in rule for rules in own.values() for rule in rules)
    assert all("cluster IP" in rules[0] for name, rules in own.items() if name.startswith("KUBE-SVC"))


@given(st.text(max_size=300))
def test_nothing_in_a_name_can_end_its_comment(text: str) -> None:
    made = comment(text)
    head, body, tail = made.partition('"')[0], made[made.index('"') + 1 : -1], made[-1]

    assert (head, tail) == ("-m comment --comment ", '"')
    assert not set(body) & set("\"\\\n\r\t\0'`$")
    assert len(body) <= 255


def test_detection_by_interface_and_without_any() -> None:
    """TY-9, TY-10."""
    fold = ServiceIndex()
    put(fold, "IPv4", "web", 1)

    def first(**options: Any) -> str:
        return next(rules[0] for name, rules in content_of(fold, **options)["nat"].items() if "KUBE-SVC-" in name)

    told = '-p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ'
    assert first() == f"! -s 10.1.0.0/16 -d 10.96.0.1/32 {told}"
    assert first(masquerades_all=True) == f"-d 10.96.0.1/32 {told}"
    interface = {"detect_mode": "InterfaceNamePrefix", "interface_prefix": "veth"}
    assert first(**interface) == f"-d 10.96.0.1/32 ! -i veth+ {told}"
    assert "KUBE-MARK-MASQ" not in first(cluster_ranges=())


def test_an_interface_name_that_is_none_detects_nothing() -> None:
    facts = facts_for("IPv4")
    odd = replace(facts.table, detection=Detection("interface", "eth0 -j DROP"))

    assert rule_settings(msgspec.structs.replace(facts, table=odd)).pods == ""


def test_loopback_node_ports_come_with_their_guard() -> None:
    """TY-20, IP-9: IPv4 alone, and only where node ports are served on all addresses."""
    for family, addresses, has_guard in (("IPv4", (), True), ("IPv6", (), False), ("IPv4", ("primary",), False)):
        made = settings_for(family, node_port_addresses=addresses)  # type: ignore[arg-type]
        change = difference({}, {}, made)

        assert ("KUBE-FIREWALL" in change.kept.get("filter", ())) == has_guard
        assert bool(change.last) == has_guard


Drawn = list[dict[str, Any]]

services = st.lists(
    st.fixed_dictionaries(
        {
            "endpoints": st.integers(0, 4),
            "here": st.integers(0, 2),
            "type": st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer"]),
            "externalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
            "internalTrafficPolicy": st.sampled_from(["Cluster", "Local"]),
            "sessionAffinity": st.sampled_from(["None", "ClientIP"]),
        }
    ),
    max_size=6,
)


def folded(drawn: list[dict[str, Any]]) -> ServiceIndex:
    fold = ServiceIndex()
    for number, one in enumerate(drawn, 1):
        fields = dict(one)
        node_port = 30_000 + number if fields["type"] != "ClusterIP" else 0
        put(fold, "IPv4", f"s{number}", number, ports=[{"name": "h", "port": 80, "nodePort": node_port}], **fields)
    return fold


@given(services)
@settings(max_examples=60, deadline=None)
def test_every_jump_has_its_chain_and_every_name_fits(drawn: list[dict[str, Any]]) -> None:
    content = content_of(folded(drawn))
    for table, chains in content.items():
        for name, rules in chains.items():
            assert len(name) <= 28
            for rule in rules:
                target = rule.partition("-j ")[2].split()
                assert not target or target[0] in TARGETS or target[0] in chains, (table, name, rule)


@given(services, services)
@settings(max_examples=60, deadline=None)
def test_steps_lead_to_the_same_rules_as_a_fresh_start(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    """STY-03: also when the change was written on top of what the kernel was read to have."""
    mirror, settings_now = IptablesMirror(), settings_for("IPv4")
    first = plans_of(folded(before), "IPv4")
    staged = mirror.stage(first, settings_now)
    kernel = applied({}, mirror.repair({}, staged))
    mirror.commit(staged)
    second = plans_of(folded(after), "IPv4")
    wanted = {**{ServiceKey("shop", key.name): None for key in first}, **second}
    staged = mirror.stage(wanted, settings_now)
    kernel = applied(kernel, staged.change)
    mirror.commit(staged)

    assert mirror.content() == content_of(folded(after))
    assert not difference(kernel, mirror.content(), settings_now)
    assert not mirror.stage(second, settings_now).change


def applied(have: Content, change: RulesChange) -> Content:
    """The kernel after a restore, by the text that a save of it would have."""
    content: Content = {table: dict(chains) for table, chains in have.items()}
    for table, chains in parse_save(restore_text(change)).items():
        kept = content.setdefault(table, {})
        kept.update(chains)
        kept.update({name: rules + kept.get(name, ()) for name, rules in firsts(change, table).items()})
        for name in change.gone.get(table, ()):
            del kept[name]
    return content


def firsts(change: RulesChange, table: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for name, rule in change.first.get(table, ()):
        found[name] = (*found.get(name, ()), as_saved(rule))
    return found


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_the_ways_in_can_be_read_back_from_the_rules(family: Family) -> None:
    """FS-6: after a restart nothing else is known of Services that are gone."""
    plans = all_kinds(family)
    mirror = IptablesMirror()
    mirror.commit(mirror.stage(plans, settings_for(family)))
    ports = [port for plan in plans.values() if plan for port in plan.ports]
    serving = {claim_of(one) for port in ports for one in port.frontends if not one.verdict}

    assert ways_in(mirror.content()) >= serving

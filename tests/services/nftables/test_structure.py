# SPDX-License-Identifier: Apache-2.0
"""The constant table: what it says, and how a table of an earlier process is recognised."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.model.services.nft_table import LAYOUT, MAPS, ChainBody, Detection, TableSettings, TableState
from agent.services.nftables.structure import (
    layout_text,
    replacement_text,
    static_chains,
    structure_damage,
    structure_text,
)

IPV4 = TableSettings(family="IPv4", detection=Detection("cidrs"))
IPV6 = TableSettings(family="IPv6", detection=Detection("cidrs"))


def chain(text: str, name: str) -> list[str]:
    """The rules of one chain."""
    body = text.split(f"  chain {name} {{\n", 1)[1].split("\n  }", 1)[0]
    return [line.strip() for line in body.splitlines()]


def whole(settings: TableSettings) -> TableState:
    """What the kernel has after the structure was loaded."""
    chains = [line.split()[1] for line in structure_text(settings).splitlines() if line.startswith("  chain ")]
    return TableState(layout_text(settings), dict.fromkeys(chains, ChainBody()), {name: {} for name in MAPS})


def test_every_map_of_the_layout_is_declared() -> None:
    text = structure_text(IPV4)

    assert [name for name in (*MAPS, "clients") if f" {name} {{" not in text] == []


def test_every_choice_falls_back_to_slot_0_and_then_drops() -> None:
    """NF-20: a packet that leaves untranslated binds its whole connection."""
    text = structure_text(IPV6)

    assert chain(text, "nl_3") == [
        "dnat ip6 to meta l4proto . th dport . numgen random mod 3 map @np_eps_local",
        "dnat ip6 to meta l4proto . th dport . numgen random mod 1 map @np_eps_local",
        "counter name race_drops drop",
    ]
    assert len(list(static_chains())) == 64


def test_who_is_no_pod_gets_the_mark_for_masquerading() -> None:
    """TY-9, TY-10: by the pods' addresses, by the interface, or everybody."""
    by_interface = replace(IPV4, detection=Detection("interface", "veth*"))
    nobody = replace(IPV4, detection=Detection())
    mark = "ip daddr @cluster_ips meta mark set meta mark or 0x4000"

    assert chain(structure_text(IPV4), "dispatch")[0] == f"ip saddr != @pod_cidrs {mark}"
    assert chain(structure_text(by_interface), "dispatch")[0] == f'iifname != "veth*" {mark}'
    assert chain(structure_text(nobody), "dispatch")[0] == "ip daddr . meta l4proto . th dport vmap @services"
    assert chain(structure_text(replace(nobody, masquerades_all=True)), "dispatch")[0] == mark


def test_local_pods_and_the_host_reach_all_endpoints_of_a_local_policy() -> None:
    """TY-12: in this order; without detection the first rule does not exist."""
    text = structure_text(IPV4)

    assert chain(text, "x_local") == [
        "ip saddr @pod_cidrs ip daddr . meta l4proto . th dport vmap @svc_cluster",
        "fib saddr type local meta mark set meta mark or 0x4000 ip daddr . meta l4proto . th dport vmap @svc_cluster",
        "ip daddr . meta l4proto . th dport vmap @svc_local",
        "drop",
    ]
    assert len(chain(structure_text(replace(IPV4, detection=Detection())), "n_local")) == 3


def test_node_ports_everywhere_leave_out_loopback() -> None:
    """TY-4."""
    text = structure_text(replace(IPV6, has_node_ports_everywhere=True))

    assert "fib daddr type local ip6 daddr != ::1 meta l4proto . th dport vmap @nodeports" in chain(text, "dispatch")


def test_nothing_is_judged_before_translation_but_what_a_service_of_ours_has() -> None:
    """FS-1: another proxy may have Services in the same network, and chains that come after ours."""
    text = structure_text(IPV4)

    assert [rule for rule in chain(text, "dispatch") if "drop" in rule or "goto" in rule] == []
    assert chain(text, "unserved") == [
        "ip daddr . meta l4proto . th dport @passed return",
        "ip daddr @cluster_ips goto rj",
        "ip daddr @svc_cidrs drop",
    ]
    for name, hook in (("forwarded", "forward"), ("sent", "output")):
        assert chain(text, name) == [
            f"type filter hook {hook} priority 0; policy accept;",
            "ct state new ct status and dnat == 0 jump unserved",
        ]


def test_options_add_and_take_away_rules() -> None:
    """TY-14, CT-9, NF-37."""
    upstream = structure_text(replace(IPV4, rejects_with_reset=False, drops_invalid=True, counts_endpoints=True))

    assert chain(upstream, "rj") == ["reject"]
    assert chain(upstream, "invalid")[1] == "ct state invalid drop"
    assert "th dport; counter; }" in upstream
    assert "chain invalid" not in structure_text(IPV4)


@pytest.mark.parametrize("name", ['a"; flush ruleset; "', "", "*", "veth**", "name-longer-than-15", "a b", "a\n"])
def test_an_interface_name_cannot_inject_rules(name: str) -> None:
    settings = replace(IPV4, detection=Detection("interface", name))

    with pytest.raises(ValueError, match="not an interface name"):
        structure_text(settings)


@pytest.mark.parametrize("mark", [0, 0x4001, -1, 1 << 32])
def test_the_mark_is_one_bit(mark: int) -> None:
    with pytest.raises(ValueError, match="a single bit"):
        structure_text(replace(IPV4, mark=mark))


def test_frontends_drop_until_their_elements_follow() -> None:
    """NF-10: a table that replaces another one lets nothing out untranslated in the meantime."""
    frontend = bytes([10, 96, 0, 1]) + b"\x06\0\0\0" + b"\x01\xbb\0\0"
    text = replacement_text(IPV4, {"services": {frontend: "c_1"}, "nodeports": {b"\x84\0\0\0\x75\x30\0\0": "nc_1"}})

    assert text.startswith("add table ip kepd\ndelete table ip kepd\ntable ip kepd {\n")
    assert "add element ip kepd services {\n  10.96.0.1 . 6 . 443 : drop\n}" in text
    assert "add element ip kepd nodeports {\n  132 . 30000 : drop\n}" in text


def test_the_marker_tells_other_maps_and_nothing_else() -> None:
    """NF-9: chains are compared and mended where they are."""
    same = [
        IPV4,
        replace(IPV4, masquerades_all=True),
        replace(IPV4, has_node_ports_everywhere=True),
        replace(IPV4, rejects_with_reset=False),
        replace(IPV4, drops_invalid=True),
        replace(IPV4, mark=1 << 31),
        replace(IPV4, detection=Detection("interface", "veth*")),
    ]
    texts = [layout_text(settings) for settings in (*same, IPV6, replace(IPV4, counts_endpoints=True))]

    assert len(set(texts)) == 3
    assert len(set(texts[: len(same)])) == 1
    assert max(map(len, texts)) <= 120
    assert f'comment "{texts[0]}"' in chain(structure_text(IPV4), LAYOUT)[0]


def test_a_whole_table_is_kept() -> None:
    assert structure_damage(IPV4, whole(IPV4)) == ""


def test_what_is_wrong_with_a_table_is_said() -> None:
    """NF-9: only what a refresh of all chains cannot mend."""
    state = whole(IPV4)
    without_map = {name: items for name, items in state.content.items() if name != "passed"}

    assert structure_damage(IPV6, state).startswith('its maps are "')
    assert structure_damage(IPV4, replace(state, is_dormant=True)) == "it is dormant"
    assert structure_damage(IPV4, replace(state, content=without_map)) == "map passed is missing"


def test_the_rules_are_those_that_were_reviewed() -> None:
    """STY-53: whoever changes a rule changes the file beside this test. Of the chains per count two of 64 are in it."""
    text = structure_text(IPV4)
    left_out = [f"{prefix}_{count}" for prefix in ("c", "l", "nc", "nl") for count in range(1, 17)]
    for name in left_out:
        if name not in ("c_2", "nl_1"):
            begin = text.index(f"  chain {name} {{\n")
            text = text[:begin] + text[text.index("  }\n", begin) + 4 :]

    assert text == Path(__file__).with_name("rules.nft").read_text("utf-8")

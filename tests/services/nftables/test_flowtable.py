# SPDX-License-Identifier: Apache-2.0
"""The table by which flows skip the rules, as text (SVN-80, SVN-81); packets are in node/test_flowtable.py."""

import pytest

from agent.config.sections.services import FlowtableSection, Services
from agent.model.services.nft_table import Family
from agent.services.nftables.flowtable import (
    MOST_DEVICES,
    MOST_LISTED,
    MOST_STATED,
    Offloaded,
    OffloadedWays,
    addition_text,
    chosen_devices,
    offload_text,
    probe_text,
    removal_text,
    table_change,
)
from agent.services.settings_check import services_faults

WAYS = OffloadedWays(("10.96.0.0/16",), ("192.168.7.1",), (("TCP", 30080), ("UDP", 30053)))
V6 = OffloadedWays(("fd00:96::/112",), (), (("TCP", 30080),))


def test_the_whole_text() -> None:
    assert (
        offload_text("IPv4", ("eth0", "veth1"), WAYS)
        == """add table ip kepd_fast
delete table ip kepd_fast
add table ip kepd_fast
add flowtable ip kepd_fast fast { hook ingress priority 0; devices = { "eth0", "veth1" }; }
table ip kepd_fast {
  set addresses { type ipv4_addr; flags interval; elements = { 10.96.0.0/16 }; }
  set node_addresses { type ipv4_addr; elements = { 192.168.7.1 }; }
  set node_ports { type inet_proto . inet_service; elements = { tcp . 30080, udp . 30053 }; }
  chain forwarded {
    type filter hook forward priority 10; policy accept;
    ct state established ct status dnat ct packets > 20 meta l4proto { tcp, udp } ct original ip daddr @addresses flow add @fast
    ct state established ct status dnat ct packets > 20 meta l4proto { tcp, udp } ct original ip daddr @node_addresses meta l4proto . ct original proto-dst @node_ports flow add @fast
  }
}
"""  # noqa: E501 - as it is loaded
    )


def test_without_node_addresses_no_node_port_is_meant() -> None:
    text = offload_text("IPv6", ("eth0",), V6)

    assert "ct original ip6 daddr @addresses flow add @fast" in text
    assert "@node_ports" not in text


@pytest.mark.parametrize(("devices", "ways"), [((), WAYS), (("eth0",), OffloadedWays())])
def test_nothing_to_do_takes_the_table_away(devices: tuple[str, ...], ways: OffloadedWays) -> None:
    assert offload_text("IPv4", devices, ways) == removal_text("IPv4")


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_a_probe_leaves_nothing(family: Family) -> None:
    lines = probe_text(family).splitlines()

    assert lines[0].startswith("add table")
    assert lines[-1].startswith("delete table")
    assert any("flow add @fast" in line for line in lines)


def test_devices_are_chosen_by_name_and_prefix_without_loopback_and_bridge_ports() -> None:
    present = {"veth2": "cni0", "lo": "", "eth0": "", "veth1": "", "cni0": "", "eth1": ""}
    chosen = chosen_devices(("eth0", "veth*", "l*"), present)

    assert (chosen.names, chosen.ports) == (("eth0", "veth1"), ())
    assert chosen.left_out == ("veth2 is a port of cni0; name that, which forwards, and its ports come with it",)


def test_a_bridge_comes_with_its_ports_and_with_no_others() -> None:
    present = {"eth0": "", "cni0": "", "veth2": "cni0", "veth1": "cni0", "docker0": "", "veth3": "docker0", "veth4": ""}
    chosen = chosen_devices(("eth0", "cni*"), present)

    assert (chosen.names, chosen.ports, chosen.left_out) == (("cni0", "eth0"), ("veth1", "veth2"), ())


@pytest.mark.parametrize("name", ['veth"};x', "veth*", "veth\x1b[2J", "veth\\"])
def test_a_device_with_a_name_that_nft_would_take_for_its_own_is_left_out(name: str) -> None:
    for present in ({"eth0": "", name: ""}, {"eth0": "", name: "cni0"}):
        chosen = chosen_devices(("eth0", "veth*", "cni0"), present)

        assert (chosen.names, chosen.ports) == (("eth0",), ())
        assert chosen.left_out == (f"{name!r} has other characters in its name than [A-Za-z0-9_.:@+-]{{1,15}}",)


def test_there_is_a_most_of_devices() -> None:
    present = {f"veth{n}": "" for n in range(MOST_DEVICES + 3)}
    chosen = chosen_devices(("veth*",), present)

    assert len(chosen.names) == MOST_DEVICES
    assert chosen.left_out == (f"3 devices beyond {MOST_DEVICES}",)
    chosen = chosen_devices(("cni0", "eth0"), {"cni0": "", "eth0": "", **dict.fromkeys(present, "cni0")})
    assert (len(chosen.names), len(chosen.ports)) == (2, MOST_DEVICES - 2)
    assert chosen.left_out == (f"5 devices beyond {MOST_DEVICES}",)


def test_no_statement_has_more_devices_than_a_kernel_takes() -> None:
    lines = addition_text("IPv4", [f"veth{n}" for n in range(MOST_STATED + 1)]).splitlines()

    assert [line.count('"veth') for line in lines] == [MOST_STATED, 1]
    assert "".join(f"{line}\n" for line in lines) in offload_text("IPv4", [f"veth{n}" for n in range(256)], WAYS)


STANDING = Offloaded(WAYS, frozenset({("eth0", 1), ("veth1", 2)}))


@pytest.mark.parametrize(
    ("devices", "present", "added"),
    [
        ({("eth0", 1), ("veth1", 2), ("veth2", 3)}, {1, 2, 3}, ["veth2"]),
        # Gone, gone and come again, and renamed.
        ({("eth0", 1)}, {1}, []),
        ({("eth0", 1), ("veth1", 4)}, {1, 4}, ["veth1"]),
        ({("eth0", 1), ("veth9", 2)}, {1, 2}, ["veth9"]),
        # No more a port of the bridge.
        ({("eth0", 1)}, {1, 2}, None),
        ({(f"veth{n}", n) for n in range(2, MOST_LISTED + 2)}, {1}, None),
    ],
)
def test_new_devices_are_added_and_others_that_are_there_make_it_anew(
    devices: set[tuple[str, int]], present: set[int], added: list[str] | None
) -> None:
    assert STANDING.lacks(Offloaded(WAYS, frozenset(devices)), present) == added
    assert STANDING.lacks(Offloaded(V6, frozenset(devices)), present) is None


def test_a_change_is_the_whole_table_what_is_new_or_nothing() -> None:
    names = ("eth0", "veth1")
    first = table_change("IPv4", None, STANDING, [1, 2])
    assert (first.text, first.added, first.then) == (offload_text("IPv4", names, WAYS), names, STANDING)

    more = Offloaded(WAYS, frozenset({("eth0", 1), ("veth2", 3)}))
    second = table_change("IPv4", first.then, more, [1, 3])
    assert (second.text, second.added) == (addition_text("IPv4", ["veth2"]), ("veth2",))
    assert second.then.devices == STANDING.devices | more.devices, "newer kernels keep what is gone"
    assert table_change("IPv4", second.then, more, [1, 3]).text == ""

    for nothing in (Offloaded(WAYS), Offloaded(OffloadedWays(), STANDING.devices)):
        off = table_change("IPv4", second.then, nothing, [1])
        assert (off.text, off.added, off.then) == (removal_text("IPv4"), (), Offloaded())
        assert table_change("IPv4", off.then, nothing, [1]).text == ""


@pytest.mark.parametrize(
    ("backend", "devices", "fault"),
    [
        ("nftables", ("eth0", "veth*"), ""),
        ("nftables", ("lo",), "forwards nothing"),
        ("nftables", ('eth0" }; }',), "is not a device"),
        ("iptables", ("eth0",), "needs the backend nftables"),
    ],
)
def test_settings_that_cannot_work_are_found(backend: str, devices: tuple[str, ...], fault: str) -> None:
    services = Services(backend=backend, flowtable=FlowtableSection(devices=devices))
    found = [str(one) for one in services_faults(services)]

    assert (fault in found[0]) if fault else found == []

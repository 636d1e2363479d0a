# SPDX-License-Identifier: Apache-2.0
"""CL-9: `kepctl doctor` looks at the node around kepd, and says of each fault what mends it."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.host.checkup import surroundings
from agent.host.checkup.network import leak_advice, list_advice
from agent.host.checkup.surroundings import CheckScope, Surroundings, disk_advice, kernel_clock_state
from agent.model.finding import Advice
from agent.model.services.report import ServiceReport
from agent.services.attach.unit import MOST_NAMED, service_advice
from tests.fakes.cri import FakeCri

LIVE, GONE = "a" * 64, "b" * 64
GOOD: dict[str, Any] = {
    "plugins": [
        {"type": "bridge", "hairpinMode": True, "ipam": {"type": "host-local"}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The root of a node that is well."""
    put(tmp_path, "etc/cni/net.d/10-pods.conflist", json.dumps(GOOD))
    for name in ("bridge", "portmap", "host-local"):
        put(tmp_path, f"opt/cni/bin/{name}", "")
    put(tmp_path, "proc/filesystems", "nodev\toverlay\n\text4\n")
    put(tmp_path, "proc/sys/net/ipv4/ip_forward", "1\n")
    put(tmp_path, "proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")
    return tmp_path


def put(root: Path, place: str, text: str) -> Path:
    path = root / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


async def told(root: Path, cri: FakeCri | None = None, clock: int = 0) -> list[Advice]:
    scope = CheckScope(has_pods=True, has_services=True)
    return list(await Surroundings(cri or FakeCri(), scope, root, lambda: clock).advice())  # type: ignore[arg-type]


async def test_a_node_that_is_well_has_no_findings(node: Path) -> None:
    assert await told(node) == []
    assert kernel_clock_state() in range(6)


async def test_the_list_is_looked_for_where_the_runtime_does(node: Path) -> None:
    cri = FakeCri()
    cri.told_cni_folders = ("/etc/other/net.d", "/opt/other/bin")
    missing = await told(node, cri)
    (node / "etc/other").mkdir()
    (node / "opt/other").mkdir()
    (node / "etc/cni/net.d").rename(node / "etc/other/net.d")
    (node / "opt/cni/bin").rename(node / "opt/other/bin")

    assert [one.wanted for one in missing] == ["a .conflist in /etc/other/net.d"]
    assert await told(node, cri) == []


async def test_what_pods_and_services_want_is_said_once(node: Path) -> None:
    put(node, "proc/sys/net/ipv4/ip_forward", "0\n")

    assert [one.subject for one in await told(node)] == ["net.ipv4.ip_forward"]


async def test_plugins_may_lie_where_debian_has_them(node: Path) -> None:
    (node / "usr/lib").mkdir(parents=True)
    (node / "opt/cni/bin").rename(node / "usr/lib/cni")

    assert await told(node) == []


CHANGES: dict[str, tuple[str, str | None, str, str]] = {
    "no list": ("etc/cni/net.d/10-pods.conflist", None, "pod network", "/etc/cni/net.d"),
    "a list that is no JSON": ("etc/cni/net.d/10-pods.conflist", "{", "/etc/cni/net.d/10-pods.conflist", "json.tool"),
    "a list of another shape": ("etc/cni/net.d/10-pods.conflist", "[]", "/etc/cni/net.d/10-pods.conflist", "json.tool"),
    "a list before it": ("etc/cni/net.d/05.conflist", '{"plugins": []}', "/etc/cni/net.d/05.conflist", "portmap"),
    "no plugin": ("opt/cni/bin/bridge", None, "CNI plugin bridge", "install bridge into /opt/cni/bin"),
    "no address plugin": ("opt/cni/bin/host-local", None, "CNI plugin host-local", "install host-local"),
    "no overlay": ("proc/filesystems", "ext4\n", "kernel module overlay", "modprobe overlay"),
    "no way out": ("proc/sys/net/ipv4/ip_forward", "0\n", "net.ipv4.ip_forward", "sysctl -w net.ipv4.ip_forward=1"),
    "bridged traffic": (
        "proc/sys/net/bridge/bridge-nf-call-iptables", "0", "net.bridge.bridge-nf-call-iptables", "sysctl -w",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("place", "text", "subject", "mend"), CHANGES.values(), ids=CHANGES.keys())
async def test_each_fault_has_a_finding_and_what_mends_it(
    node: Path, place: str, text: str | None, subject: str, mend: str
) -> None:
    if text is None:
        (node / place).unlink()
    else:
        put(node, place, text)
    found = await told(node)

    assert {one.subject for one in found} == {subject}
    assert all(mend in one.mend for one in found)
    assert not any(one.is_note for one in found)


async def test_a_bridge_without_hairpin_and_a_missing_bridge_module(node: Path) -> None:
    (node / "proc/sys/net/bridge/bridge-nf-call-iptables").unlink()
    (node / "sys/class/net/cni0/bridge").mkdir(parents=True)
    bridge = {"plugins": [{**GOOD["plugins"][0], "hairpinMode": False}, GOOD["plugins"][1]]}
    put(node, "etc/cni/net.d/10-pods.conflist", json.dumps(bridge))
    found = await told(node)

    assert [one.found for one in found] == ["bridge without hairpinMode", "not loaded"]
    assert "modprobe br_netfilter" in found[1].mend


async def test_a_clock_that_nobody_sets_is_told(node: Path) -> None:
    assert [one.subject for one in await told(node, clock=surroundings.TIME_ERROR)] == ["clock"]


async def test_a_pause_image_that_is_not_there_is_told_and_pulled_by_what_is_said(node: Path) -> None:
    cri = FakeCri()
    cri.pause_image = "registry.k8s.io/pause:3.10"
    cri.registry.add(cri.pause_image)
    absent = await told(node, cri)
    await cri.pull_image(cri.pause_image)

    assert [one.mend for one in absent] == ["kepctl pull registry.k8s.io/pause:3.10"]
    assert await told(node, cri) == []


async def test_a_runtime_that_is_away_hides_nothing_else(node: Path) -> None:
    cri = FakeCri()
    cri.reachable = False
    put(node, "proc/sys/net/ipv4/ip_forward", "0\n")

    assert {one.subject for one in await told(node, cri)} == {"net.ipv4.ip_forward"}


def test_what_pods_left_is_told_and_what_pods_have_is_not(tmp_path: Path) -> None:
    for address, holder in (("10.0.0.2", LIVE), ("10.0.0.3", GONE), ("fd00::3", GONE)):
        put(tmp_path, f"var/lib/cni/networks/pods/{address}", f"{holder}\r\neth0")
    put(tmp_path, "var/lib/cni/networks/pods/last_reserved_ip.0", GONE)
    put(tmp_path, "var/lib/cni/networks/pods/10.0.0.4", "of another program")
    for holder, name in ((LIVE, "cni-1"), (GONE, "cni-2"), (GONE, "cni-3")):
        result = {"containerId": holder, "netns": f"/var/run/netns/{name}"}
        put(tmp_path, f"var/lib/cni/results/pods-{name}-eth0", json.dumps(result))
    for name in ("cni-1", "cni-2", "cni-unknown", "own"):
        put(tmp_path, f"run/netns/{name}", "")
    leases, spaces = leak_advice(tmp_path, {LIVE})

    assert leases.found == "2 of pods that are gone"
    assert leases.mend == "rm /var/lib/cni/networks/pods/10.0.0.3 /var/lib/cni/networks/pods/fd00::3"
    assert (spaces.found, spaces.mend) == ("1 of pods that are gone", "for each of cni-2: ip netns delete NAME")
    assert list(leak_advice(tmp_path, {LIVE, GONE})) == []


async def test_a_sandbox_that_is_being_made_is_no_leak(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is there before the runtime lists it."""
    monkeypatch.setattr(surroundings, "SECOND_LOOK_S", 0.01)
    put(node, "var/lib/cni/networks/pods/10.0.0.2", LIVE)
    put(node, "var/lib/cni/networks/pods/10.0.0.3", GONE)

    class Making(FakeCri):
        looks = 0

        async def list_sandboxes(self) -> list[Any]:
            self.looks += 1
            if self.looks == 1:
                return []
            put(node, "var/lib/cni/networks/pods/10.0.0.4", "e" * 64)
            return [SimpleNamespace(id=LIVE)]

    found = await told(node, Making())

    assert [(one.subject, one.mend) for one in found] == [("CNI leases", "rm /var/lib/cni/networks/pods/10.0.0.3")]


async def test_a_node_on_which_no_unit_is_enabled_is_noted(node: Path) -> None:
    """The others need not be: two that run the same plane exclude each other."""
    for name in ("kepd", "kepd-cri", "kepd-services"):
        put(node, f"lib/systemd/system/{name}.service", "")
    put(node, "lib/systemd/system/containerd.service", "")
    noted = await told(node)
    put(node, "etc/systemd/system/multi-user.target.wants/kepd.service", "")

    assert [(one.subject, one.is_note) for one in noted] == [("kepd.service", True)]
    assert noted[0].mend == "systemctl enable --now kepd.service"
    assert await told(node) == []


def test_a_disk_that_is_nearly_full_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told_of = SimpleNamespace(f_bavail=5, f_blocks=100, f_favail=50, f_files=100)
    monkeypatch.setattr(surroundings.os, "statvfs", lambda _place: told_of)
    found = list(disk_advice((tmp_path / "not" / "made", tmp_path)))

    assert [(one.found, one.wanted) for one in found] == [("5 % of its space free", "10 %")]


def test_a_node_without_plugins_has_one_finding(tmp_path: Path) -> None:
    assert [one.found for one in list_advice(tmp_path)] == ["no list of CNI"]


class Services:
    def __init__(self, *reports: ServiceReport) -> None:
        self._reports = reports

    async def services(self, after: str = "") -> AsyncGenerator[tuple[str, ServiceReport], None]:
        for one in self._reports:
            yield f"{after}{one.name}", one


async def test_services_with_faults_are_findings() -> None:
    good = ServiceReport(namespace="default", name="a", type="ClusterIP")
    bad = ServiceReport(namespace="default", name="b", type="NodePort", findings=("ports[0]: answers nowhere",))
    unknown = ServiceReport(namespace="default", name="c", type="", is_programmed=False)
    found = await service_advice(Services(good, bad, unknown))

    assert [(one.subject, one.found) for one in found] == [
        ("Service default/b", "ports[0]: answers nowhere"),
        ("Service default/c", "it is not programmed"),
    ]
    assert found[0].mend == "kepctl describe service default/b"


async def test_of_many_services_with_faults_the_first_are_named() -> None:
    bad = [ServiceReport(namespace="n", name=str(one), type="", findings=("x",)) for one in range(500)]
    found = await service_advice(Services(*bad))

    assert len(found) == MOST_NAMED + 1

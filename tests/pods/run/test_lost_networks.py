# SPDX-License-Identifier: Apache-2.0
"""FP-30: addresses of sandboxes that nobody knows after a power cut are given back, and no others."""

import json
import os
from pathlib import Path

import pytest

from agent.pods.run.disk.lost_networks import LostAddresses, lost_networks, release
from agent.wire.cri import runtime_v1_pb2 as pb
from tests.fakes.clock import FakeClock
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import Slow, running

LOST, KNOWN, GOING, OTHERS = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
BOOT_S, NOW_S = 1_000_000.0, 1_000_500.0


class Cni:
    """/var/lib/cni of a node."""

    def __init__(self, root: Path) -> None:
        self.results, self.networks, self.namespaces = root / "results", root / "networks", root / "netns"
        for place in (self.results, self.networks / "kepd", self.namespaces):
            place.mkdir(parents=True)

    def add(self, sandbox_id: str, address: str, *, namespace: str = "", text: str | None = None, is_ours: bool = True,
            network: str = "kepd", at_s: float = BOOT_S - 100) -> None:  # fmt: skip
        result = {
            "kind": "cniCacheV1",
            "cniArgs": [["K8S_POD_INFRA_CONTAINER_ID", sandbox_id]] if is_ours else [],
            "result": {"interfaces": [{"name": "veth"}, {"name": "eth0", "sandbox": namespace}]},
        }
        (self.networks / network).mkdir(exist_ok=True)
        for path, content in (
            (self.results / f"{network}-{sandbox_id}-eth0", json.dumps(result) if text is None else text),
            (self.networks / network / address, f"{sandbox_id}\r\neth0"),
        ):
            path.write_text(content)
            os.utime(path, (at_s, at_s))

    def lost(self) -> dict[str, list[str]]:
        found = lost_networks(self.results, self.networks, {KNOWN}, NOW_S, BOOT_S)
        return {one.sandbox_id: sorted(path.name for path in one.files) for one in found}


@pytest.fixture
def cni(tmp_path: Path) -> Cni:
    found = Cni(tmp_path)
    found.add(KNOWN, "10.85.0.2", namespace=str(found.namespaces / "gone"))
    return found


def test_what_a_lost_sandbox_had_is_found_and_released(cni: Cni) -> None:
    cni.add(LOST, "10.85.0.3", namespace=str(cni.namespaces / "gone"))
    (cni.networks / "kepd/lock").touch()
    (cni.networks / "kepd/last_reserved_ip.0").write_text(LOST)
    (one,) = lost_networks(cni.results, cni.networks, {KNOWN}, NOW_S, BOOT_S)
    release(one)
    release(one)

    assert (one.sandbox_id, one.network) == (LOST, "kepd")
    assert sorted(path.name for path in cni.networks.glob("kepd/*")) == ["10.85.0.2", "last_reserved_ip.0", "lock"]
    assert [path.name for path in cni.results.iterdir()] == [f"kepd-{KNOWN}-eth0"]
    assert cni.lost() == {}


def test_one_that_is_emptied_by_the_cut_is_known_by_its_name(cni: Cni) -> None:
    cni.add(LOST, "10.85.0.3", text="")

    assert cni.lost() == {LOST: ["10.85.0.3", f"kepd-{LOST}-eth0"]}


def test_a_reservation_without_a_result_is_of_the_boot_before(cni: Cni) -> None:
    cni.add(LOST, "10.85.0.3")
    (cni.results / f"kepd-{LOST}-eth0").unlink()
    cni.add(GOING, "10.85.0.4", at_s=BOOT_S + 100)
    (cni.results / f"kepd-{GOING}-eth0").unlink()

    assert cni.lost() == {LOST: ["10.85.0.3"]}


def test_a_sandbox_that_is_being_made_keeps_its_address(cni: Cni) -> None:
    """Its namespace is there, or its result is being written."""
    (cni.namespaces / "new").touch()
    cni.add(GOING, "10.85.0.4", namespace=str(cni.namespaces / "new"), at_s=NOW_S - 1)
    cni.add(LOST, "10.85.0.3", text="", at_s=NOW_S - 1)

    assert cni.lost() == {}


def test_networks_of_other_programs_are_left_alone(cni: Cni) -> None:
    cni.add(OTHERS, "10.4.0.2", is_ours=False, network="podman", namespace=str(cni.namespaces / "gone"))
    (cni.results / "odd name").write_text("{}")
    (cni.results / f"kepd-{LOST}-eth0").symlink_to("/etc/passwd")

    assert cni.lost() == {}


@pytest.mark.parametrize("text", ["[]", '{"cniArgs": 3}', "[" * 5000, '{"result": null}', "\x00"])
def test_rubbish_is_no_reason_to_touch_what_is_known(cni: Cni, text: str) -> None:
    path = cni.results / f"kepd-{KNOWN}-eth0"
    path.write_text(text)

    assert cni.lost() == {}


def test_a_release_that_is_cut_short_is_found_again(cni: Cni) -> None:
    cni.add(LOST, "10.85.0.3", namespace=str(cni.namespaces / "gone"))
    (one,) = lost_networks(cni.results, cni.networks, {KNOWN}, NOW_S, BOOT_S)
    one.files[0].unlink()

    assert cni.lost() == {LOST: ["10.85.0.3"]}


async def test_one_that_the_runtime_forgets_later_loses_them_then(cni: Cni) -> None:
    """A runtime that has no namespace of it removes it without a word to CNI. Nothing else is touched by then."""
    gone = str(cni.namespaces / "gone")
    cni.add(LOST, "10.85.0.3", namespace=gone)
    over, ready = pb.PodSandbox(id=LOST, state=pb.SANDBOX_NOTREADY), pb.PodSandbox(id=KNOWN, state=pb.SANDBOX_READY)
    addresses = LostAddresses(cni.results, FakeClock())
    await addresses.look([over, ready], is_first=True)
    cni.add(GOING, "10.85.0.4", namespace=gone)
    await addresses.look([over, ready], is_first=False)
    assert sorted(cni.lost()) == [LOST, GOING]
    await addresses.look([ready], is_first=False)

    assert sorted(cni.lost()) == [GOING]
    assert sorted(path.name for path in cni.networks.glob("kepd/*")) == ["10.85.0.2", "10.85.0.4"]


async def test_an_address_that_names_nobody_is_released_once_its_network_is_known(
    cni: Cni, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cut that emptied every result: the first pods of the new boot tell whose network it is. One that is being
    written is empty for a moment too."""
    (cni.results / f"kepd-{KNOWN}-eth0").write_text("")
    for address, at_s in (("10.85.0.3", BOOT_S - 100), ("10.85.0.4", BOOT_S - 100), ("10.85.0.5", NOW_S)):
        (cni.networks / "kepd" / address).touch()
        os.utime(cni.networks / "kepd" / address, (at_s, at_s))
    over = pb.PodSandbox(id=LOST, state=pb.SANDBOX_NOTREADY)
    monkeypatch.setattr("agent.pods.run.disk.lost_networks.time.clock_gettime", lambda _: NOW_S - BOOT_S)
    addresses = LostAddresses(cni.results, FakeClock(NOW_S))
    await addresses.look([over], is_first=True)
    assert len([*(cni.networks / "kepd").iterdir()]) == 4
    (cni.namespaces / "new").touch()
    cni.add(GOING, "10.85.0.6", namespace=str(cni.namespaces / "new"), at_s=NOW_S)
    await addresses.look([pb.PodSandbox(id=GOING), pb.PodSandbox(id=KNOWN)], is_first=False)

    assert sorted(path.name for path in cni.networks.glob("kepd/*")) == ["10.85.0.2", "10.85.0.5", "10.85.0.6"]


async def test_the_plane_releases_them_before_it_begins_a_pod(tmp_path: Path) -> None:
    cni = Cni(tmp_path / "cni")
    cni.add(LOST, "10.85.0.3", namespace=str(cni.namespaces / "gone"), at_s=BOOT_S)
    async with running(Slow(), FakeManifestDirectory({}), tmp_path / "logs") as plane:
        await plane.until_ready()

    assert list(cni.results.iterdir()) == []
    assert list((cni.networks / "kepd").iterdir()) == []


async def test_what_cannot_be_released_keeps_no_pod_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("agent.pods.run.disk.lost_networks.release", refused)
    Cni(tmp_path / "cni").add(LOST, "10.85.0.3", namespace="/nowhere")
    async with running(Slow(), FakeManifestDirectory({}), tmp_path / "logs") as plane:
        await plane.until_ready()

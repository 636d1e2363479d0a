# SPDX-License-Identifier: Apache-2.0
"""A kubelet is found wherever its distribution keeps it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent.config.document import Configuration
from agent.config.sections.devices import DeviceManagerSection, DevicePlugins, Devices
from agent.config.sections.images import Images
from agent.drivers.kubelet.places import find_kubelet
from agent.drivers.kubelet.signs import PLACES, kubelet_sign
from agent.images.collect.plan import CollectMode
from agent.images.settings import image_settings
from agent.kit.kubelet_arrival import follow_kubelet, kubelet_beside
from tests.fakes.clock import FakeClock

ID = "0123456789abcdef" * 4
ROOT, OTHER = "Uid:\t0\t0\t0\t0\n", "Uid:\t1000\t1000\t1000\t1000\n"
KUBELET_GROUP = "/system.slice/kubelet.service"


def node(
    root: Path,
    *,
    process: str = "kepd",
    uid: str = ROOT,
    pids: str = "17",
    group: str = KUBELET_GROUP,
    first: str = "/init.scope",
) -> Path:
    for pid, name, status, path in (("1", "systemd", f"{ROOT}NSpid:\t1\n", first), ("17", process, "", group)):
        folder = root / "proc" / pid
        folder.mkdir(parents=True)
        (folder / "comm").write_text(f"{name}\n")
        (folder / "status").write_text(f"Name:\t{name}\n{status or f'{uid}NSpid:{chr(9)}{pids}{chr(10)}'}")
        (folder / "cgroup").write_text(f"0::{path}\n")
    return root


def test_a_bare_node_shows_no_sign(tmp_path: Path) -> None:
    assert kubelet_sign({}, node(tmp_path)) == ""


@pytest.mark.parametrize("place", PLACES)
def test_a_file_of_any_distribution_is_a_sign(tmp_path: Path, place: str) -> None:
    """FI-5: EKS, AKS, GKE, k3s, RKE2, k0s, Talos keep it elsewhere than kubeadm."""
    path = node(tmp_path) / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()

    assert kubelet_sign({}, tmp_path) == f"{path} exists"


@pytest.mark.parametrize(
    ("place", "section"),
    [
        ("pod-resources", {"manager": DeviceManagerSection(enabled=True)}),
        ("pod-resources", {"plugins": DevicePlugins(enabled=True)}),
        ("device-plugins", {"plugins": DevicePlugins(enabled=True)}),
    ],
)
def test_a_socket_that_kepd_serves_itself_is_no_sign(tmp_path: Path, place: str, section: dict[str, Any]) -> None:
    """FI-5: a node by itself that gives devices evicts, also after a power cut that left the socket."""
    path = node(tmp_path) / "var/lib/kubelet" / place / "kubelet.sock"
    path.parent.mkdir(parents=True)
    path.touch()

    assert kubelet_beside(Configuration(devices=Devices(**section)), {}, tmp_path) == ""
    assert kubelet_beside(Configuration(), {}, tmp_path) == f"{path} exists"


@pytest.mark.parametrize("process", ["kubelet", "k3s-server", "kubelite"])
def test_a_running_kubelet_is_a_sign(tmp_path: Path, process: str) -> None:
    """FI-5: its configuration may come from flags alone."""
    assert kubelet_sign({}, node(tmp_path, process=process)) == f"process 17 is a {process}"


def test_who_runs_in_a_pod_has_a_kubelet_beside(tmp_path: Path) -> None:
    """FI-5: without the host's processes and files in sight."""
    sign = kubelet_sign({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, node(tmp_path))

    assert sign == "kepd runs in a pod (KUBERNETES_SERVICE_HOST is set)"


@pytest.mark.parametrize(
    ("has_kubelet", "is_proxied", "expected"),
    [(False, False, "full"), (True, False, "age"), (False, True, "age"), (True, True, "age")],
)
def test_images_are_collected_by_space_on_bare_nodes_only(has_kubelet: bool, is_proxied: bool, expected: str) -> None:
    """FI-5: a proxy stands in front of a kubelet, even if nothing else shows it."""
    settings = image_settings(Images(), has_kubelet=has_kubelet, is_proxied=is_proxied)

    assert settings.collect.mode is CollectMode(expected)
    assert not settings.prefetch.is_for_pods or not is_proxied


@pytest.mark.parametrize(
    "other",
    [
        {"uid": OTHER},
        {"uid": "Uid:\t1000\t0\t0\t0\n"},
        {"pids": "17\t1"},
        {"group": f"/kubepods.slice/kubepods-pod7.slice/cri-containerd-{ID}.scope"},
        {"group": f"/kubepods/burstable/pod7/{ID}"},
        {"group": f"/docker/{ID}", "first": "/"},
        {"group": f"/system.slice/docker-{ID}.scope/init"},
        {"group": f"/kepd/pod7/{ID}"},
    ],
)
def test_what_anybody_may_call_a_kubelet_is_no_sign(tmp_path: Path, other: dict[str, str]) -> None:
    """A container could stop the collection of images, and all eviction, by a name."""
    root = node(tmp_path, process="kubelet", **other)
    (root / "proc/17/cmdline").write_bytes(b"kubelet\0--config=/tmp/evil.yaml\0")

    assert kubelet_sign({}, root) == ""
    with pytest.raises(OSError, match="no kubelet runs in sight"):
        find_kubelet(root)


def test_a_node_that_is_a_container_has_its_own_kubelet(tmp_path: Path) -> None:
    """As kind has it: the first process stands in a container's group, and so does all else."""
    root = node(
        tmp_path,
        process="kubelet",
        group=f"/docker/{ID}/kubelet.slice/kubelet.service",
        first=f"/docker/{ID}/init.scope",
    )

    assert kubelet_sign({}, root) == "process 17 is a kubelet"


async def test_a_kubelet_that_comes_and_goes_is_followed() -> None:
    """FI-5: at the first boot of a node its kubelet is set up while kepd runs; what is gone holds nothing."""
    sign = "process 9 is a kubelet"
    signs = ["", "", sign, "", sign, "", "", "", "", ""]
    clock, heard, told, is_over = FakeClock(), [], [], asyncio.Event()

    def look() -> str:
        if len(signs) == 1:
            is_over.set()
        return signs.pop(0) if signs else ""

    following = follow_kubelet(look, clock, lambda found: heard.append((clock.now_s(), found)), told.append)
    task = asyncio.create_task(following)
    while not is_over.is_set() or len(heard) < 2:
        await asyncio.sleep(0.005)
        await clock.advance(30)
    task.cancel()

    assert [found for _, found in heard] == [sign, ""]
    assert heard[0][0] >= 120
    assert [(one.reason, one.is_warning) for one in told] == [("KubeletArrived", True), ("KubeletGone", True)]
    assert all(sign in one.message for one in told)

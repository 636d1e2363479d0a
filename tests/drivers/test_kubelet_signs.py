# SPDX-License-Identifier: Apache-2.0
"""A kubelet is found wherever its distribution keeps it."""

import asyncio
from pathlib import Path

import pytest

from agent.config.document import Images
from agent.daemon.kubelet_arrival import kubelet_arrival
from agent.drivers.clock.fake import FakeClock
from agent.drivers.kubelet.signs import PLACES, kubelet_sign
from agent.images.collect.plan import CollectMode
from agent.images.settings import image_settings


def node(root: Path, *, process: str = "kepd") -> Path:
    (root / "proc/17").mkdir(parents=True)
    (root / "proc/17/comm").write_text(f"{process}\n")
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


async def test_a_kubelet_that_begins_after_kepd_is_noticed() -> None:
    """FI-5: at the first boot of a node its kubelet is set up while kepd runs already."""
    clock, signs, heard = FakeClock(), ["", "", "process 9 is a kubelet"], []
    task = asyncio.create_task(kubelet_arrival(lambda: signs.pop(0), clock, lambda: heard.append(clock.now_s())))
    while not task.done():
        await asyncio.sleep(0.005)
        await clock.advance(30)

    assert len(heard) == 1
    assert heard[0] >= 120
    assert signs == []

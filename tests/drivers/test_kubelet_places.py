# SPDX-License-Identifier: Apache-2.0
"""The kubelet's configuration as the distributions lay it out, with drop-ins and flags."""

import json
from pathlib import Path

import pytest

from agent.drivers.kubelet.driver import DEFAULT_PLACE, KubeletConfiguration
from agent.drivers.kubelet.places import read_flags
from agent.proxy.gates.kubelet_advice import KubeletSettings, read_kubelet_settings

SERIAL, PARALLEL = "serializeImagePulls: true\n", "serializeImagePulls: false\n"


def lay(root: Path, **files: str) -> None:
    for place, content in files.items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def running(root: Path, *arguments: str) -> None:
    lay(root, **{
        "proc/77/comm": "kubelet\n", "proc/77/cmdline": "\0".join(["/usr/bin/kubelet", *arguments, ""]),
        "proc/77/status": "Uid:\t0\t0\t0\t0\nNSpid:\t77\n", "proc/77/cgroup": "0::/system.slice/kubelet.service\n",
        "proc/1/cgroup": "0::/init.scope\n",
    })  # fmt: skip


async def settings(root: Path, place: str = DEFAULT_PLACE) -> KubeletSettings:
    reader = KubeletConfiguration(place, root)
    content, overlay = await reader.read()
    return read_kubelet_settings(content, reader.place, overlay)


async def test_kubeadm(tmp_path: Path) -> None:
    """FI-13: the kubelet reads one file, and never the other of which kubeadm makes its endpoint."""
    lay(tmp_path, **{
        "var/lib/kubelet/config.yaml": PARALLEL + "containerRuntimeEndpoint: unix:///a.sock\n",
        "var/lib/kubelet/instance-config.yaml": "containerRuntimeEndpoint: unix:///b.sock\n",
    })  # fmt: skip
    found = await settings(tmp_path)

    assert (found.is_serial, found.endpoint, found.source) == (False, "unix:///a.sock", DEFAULT_PLACE)


async def test_eks(tmp_path: Path) -> None:
    """FI-13: `--config-dir` of Amazon Linux 2023, in the order of names, and only `.conf`."""
    folder = "etc/kubernetes/kubelet/config.json.d"
    lay(tmp_path, **{
        "etc/kubernetes/kubelet/config.json": json.dumps({"serializeImagePulls": True, "registryPullQPS": 7}),
        f"{folder}/00-nodeadm.conf": json.dumps({"serializeImagePulls": True}),
        f"{folder}/40-user.conf": json.dumps({"serializeImagePulls": False}),
        f"{folder}/99-user.json": json.dumps({"serializeImagePulls": True}),
    })  # fmt: skip
    at_rest = await settings(tmp_path)
    running(tmp_path, "--config=/etc/kubernetes/kubelet/config.json", "--config-dir", f"/{folder}", "--v=2")
    found = await settings(tmp_path)

    assert (at_rest.is_serial, at_rest.qps) == (found.is_serial, found.qps) == (False, 7)


async def test_k3s(tmp_path: Path) -> None:
    """FI-13: its kubelet shows no flags; it has drop-ins, and flags in the file of k3s."""
    lay(tmp_path, **{
        "proc/5/comm": "k3s-server\n",
        "var/lib/rancher/k3s/agent/etc/kubelet.conf.d/00-k3s-defaults.conf": SERIAL + "registryPullQPS: 9\n",
        "etc/rancher/k3s/config.yaml": "kubelet-arg: [serialize-image-pulls=false, '--max-parallel-image-pulls=4']\n",
    })  # fmt: skip
    found = await settings(tmp_path)

    assert (found.is_serial, found.most_parallel, found.qps) == (False, 4, 9)


async def test_aks(tmp_path: Path) -> None:
    """FI-13: flags alone, and they win over a file."""
    running(tmp_path, "--serialize-image-pulls=false", "--container-runtime-endpoint=unix:///run/c.sock")
    flags = await settings(tmp_path)
    lay(tmp_path, **{"etc/default/kubeletconfig.json": SERIAL})
    running(tmp_path, "--config", "/etc/default/kubeletconfig.json", "--serialize-image-pulls=false")
    both = await settings(tmp_path)

    assert (flags.is_serial, flags.endpoint) == (False, "unix:///run/c.sock")
    assert flags.source == "the command line of process 77"
    assert not both.is_serial


async def test_talos(tmp_path: Path) -> None:
    """FI-13: the kubelet runs in a container, and its paths are those that it sees."""
    running(tmp_path, "--config=/etc/kubernetes/kubelet.yaml")
    lay(tmp_path, **{"proc/77/root/etc/kubernetes/kubelet.yaml": PARALLEL, "etc/kubernetes/kubelet.yaml": SERIAL})

    assert not (await settings(tmp_path)).is_serial


async def test_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    """FI-13."""
    with pytest.raises(OSError, match=r"none of the usual places; set proxy\.kubeletConfig"):
        await settings(tmp_path)
    with pytest.raises(OSError, match="neither the CA nor a token for it; name the kubelet's file instead"):
        await settings(tmp_path, "https://127.0.0.1:1/configz")
    running(tmp_path, "--registry-qps=many")
    with pytest.raises(ValueError, match="--registry-qps=many is not a whole number"):
        await settings(tmp_path)


async def test_a_place_that_is_set_is_read_as_it_is(tmp_path: Path) -> None:
    """FI-13: another path than the default is the user's word."""
    running(tmp_path, "--serialize-image-pulls=false")
    lay(tmp_path, mine=SERIAL)

    assert (await settings(tmp_path, str(tmp_path / "mine"))).is_serial


def test_flags_are_read_as_go_reads_them() -> None:
    assert read_flags(["--a=1", "--b", "2", "--c", "--a=3", "stray"]) == {"a": "3", "b": "2", "c": ""}

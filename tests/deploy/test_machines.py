# SPDX-License-Identifier: Apache-2.0
"""The Vagrantfile and `examples/kind`, as far as they can be checked where neither a machine nor a cluster is made.

The machines of the Vagrantfile are run in tests/vm; a cluster by kind by hand: `scripts/kind node-image`.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.kustomize import render
from tests.host.process import ROOT

VAGRANTFILE = (ROOT / "Vagrantfile").read_text()
SCRIPTS = ROOT / "deploy/vagrant"
EXAMPLE = ROOT / "examples/bare-node"
MACHINES = {"bare", "kubelet"}


def test_ruby_can_read_the_vagrantfile() -> None:
    done = subprocess.run(["ruby", "-c", str(ROOT / "Vagrantfile")], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_every_script_that_the_vagrantfile_names_is_there_and_every_one_there_is_used() -> None:
    named = set(re.findall(r"\{SCRIPTS\}/([a-z]+)\.sh", VAGRANTFILE)) | MACHINES

    assert {path.stem for path in SCRIPTS.glob("*.sh")} == named
    assert all(f'"{machine}" =>' in VAGRANTFILE for machine in MACHINES)


def test_the_machines_use_what_the_package_puts_there() -> None:
    listed = subprocess.run(
        [str(ROOT / "scripts/install"), "--list"], capture_output=True, text=True, check=True,
        env={**os.environ, "SHARE": "/usr/share/kepd"},
    )  # fmt: skip
    used = {path for one in SCRIPTS.glob("*.sh") for path in re.findall(r"/usr/share/kepd/\S+", one.read_text())}

    assert used
    assert used <= set(listed.stdout.split())


def test_a_bare_node_is_made_by_kepd_and_not_by_hand() -> None:
    """What a script writes, nobody else gets."""
    words = (EXAMPLE / "setup.sh").read_text() + (SCRIPTS / "bare.sh").read_text() + (SCRIPTS / "kepd.sh").read_text()

    assert "kepd setup --yes --now" in words
    assert not re.search(r"<<|/etc/|systemctl|modprobe|sysctl", words)


def test_the_cluster_of_kind_has_three_zones_and_the_networks_that_the_overlay_says() -> None:
    cluster = yaml.safe_load((ROOT / "examples/kind/cluster.yaml").read_text())
    data = render(ROOT / "deploy/overlays/kind")["ConfigMap", "kepd"]["data"]
    zones = [node.get("labels", {}).get("topology.kubernetes.io/zone") for node in cluster["nodes"]]

    assert [zone for zone in zones if zone] == ["a", "b", "c"]
    assert cluster["networking"]["kubeProxyMode"] == "none"
    assert yaml.safe_load(data["KEPD_SERVICES__DETECT_LOCAL__CLUSTER_CIDRS"]) == [cluster["networking"]["podSubnet"]]
    assert f"//{cluster['name']}-control-plane:6443" in data["KEPD_KUBERNETES__SERVERS"]


@pytest.mark.parametrize("name", ["zones", "fallback", "node_port", "restart"])
def test_the_scenarios_of_kind_are_all_asked_for(name: str) -> None:
    script = (ROOT / "scripts/kind").read_text()
    check = script[script.index("check() {") :]

    assert f"\n{name}() {{" in script
    assert f"\n    {name}\n" in check


def test_the_services_of_kind_are_told_apart_by_hints() -> None:
    services = {
        one["metadata"]["name"]: one["spec"]
        for one in yaml.safe_load_all((ROOT / "examples/kind/echo.yaml").read_text())
        if one["kind"] == "Service"
    }

    assert services["near"]["trafficDistribution"] == "PreferSameZone"
    assert "trafficDistribution" not in services["anywhere"]
    assert services["outside"]["ports"][0]["nodePort"] == 30080


STUB = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
case "$*" in *"rollout status daemonset kepd"*) exit "$READY" ;; *"get clusters"*) exit 1 ;; esac
"""


@pytest.mark.parametrize(
    ("words", "variables", "said", "last"),
    [
        ("up", {}, "", "kubectl --context kind-kepd rollout status daemonset client --timeout=5m"),
        ("up", {"READY": "1"}, "what kepd said last", "kind delete cluster --name kepd"),
        ("up", {"KEPD_BACKEND": "ipvs"}, "KEPD_BACKEND is ipvs; expected nftables or iptables\n", ""),
        ("proxy", {}, "proxy takes a node of scripts/kind node-image\n", ""),
        ("", {}, "usage: scripts/kind node-image|up|test|proxy|down\n", ""),
    ],
)
def test_kind_is_asked_as_it_says_and_refuses_the_rest(
    tmp_path: Path, words: str, variables: dict[str, str], said: str, last: str
) -> None:
    """With an engine, kind and kubectl that only write down how they were called."""
    for name in ("docker", "kind", "kubectl"):
        (tmp_path / name).write_text(STUB)
        (tmp_path / name).chmod(0o755)
    path, log = f"{tmp_path}:{os.environ['PATH']}", tmp_path / "log"
    own = {"PATH": path, "LOG": str(log), "READY": "0", "KEPD_KIND_CACHE": str(tmp_path), **variables}
    command = [str(ROOT / "scripts/kind"), *words.split()]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=False)
    calls = log.read_text().splitlines() if log.exists() else [""]

    assert (done.returncode == 0, said in done.stderr, calls[-1]) == (not said, True, last)
    assert not last or "kind create cluster --config examples/kind/cluster.yaml" in calls

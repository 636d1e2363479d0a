# SPDX-License-Identifier: Apache-2.0
"""A kube-proxy that runs is one that can write this node's rules, not any process of that name."""

from pathlib import Path

from agent.services.run.kernel.takeover import running_kube_proxies

ALL, NONE = "CapEff:\t000001ffffffffff\n", "CapEff:\t0000000000000000\n"


def process(proc: Path, pid: int, name: str, status: str, network: str) -> None:
    folder = proc / str(pid)
    (folder / "ns").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "status").write_text(f"Name:\t{name}\n{status}")
    (folder / "ns/net").hardlink_to(proc / network)


def test_only_what_may_write_the_rules_of_this_network_counts(tmp_path: Path) -> None:
    """Its sibling; a name in a pod kept kepd from taking over."""
    for network in ("host", "pod"):
        (tmp_path / network).touch()
    (tmp_path / "self").mkdir()
    process(tmp_path, 10, "kube-proxy", ALL, "host")
    process(tmp_path, 11, "kube-proxy", ALL, "pod")
    process(tmp_path, 12, "kube-proxy", NONE, "host")
    process(tmp_path, 13, "sleep", ALL, "host")
    (tmp_path / "self/ns").mkdir()
    (tmp_path / "self/ns/net").hardlink_to(tmp_path / "host")

    assert running_kube_proxies(tmp_path) == [10]

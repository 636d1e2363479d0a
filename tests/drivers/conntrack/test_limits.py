# SPDX-License-Identifier: Apache-2.0
"""CT-8: what is set at start, what is left alone, and that nothing of it can keep the node from starting."""

from pathlib import Path

import pytest
import structlog

from agent.config.sections.services import ConntrackSection
from agent.drivers.conntrack.limits import WantedLimit, apply_limits, wanted_limits
from tests.lab.namespace import Namespace

SYSCTLS = "proc/sys/net/netfilter"
BUCKETS = "sys/module/nf_conntrack/parameters/hashsize"


@pytest.mark.parametrize(
    ("cores", "flows"), [(1, 131_072), (4, 131_072), (8, 262_144), (32, 1_048_576), (256, 1_048_576)]
)
def test_the_table_grows_with_the_cores_between_two_bounds(cores: int, flows: int) -> None:
    assert next(wanted_limits(ConntrackSection(), cores)) == WantedLimit("nf_conntrack_max", flows, only_raises=True)


def test_zero_leaves_a_value_as_it_is() -> None:
    nothing = ConntrackSection(max_per_core=0, tcp_established_timeout=0, tcp_close_wait_timeout=0)

    assert list(wanted_limits(nothing, 8)) == []


def test_defaults_and_options_are_told_apart() -> None:
    chosen = ConntrackSection(tcp_be_liberal=True, udp_timeout=30, udp_stream_timeout=120)

    assert [(one.name, one.value) for one in wanted_limits(ConntrackSection(), 1)][1:] == [
        ("nf_conntrack_tcp_timeout_established", 86_400),
        ("nf_conntrack_tcp_timeout_close_wait", 3_600),
    ]
    assert {("nf_conntrack_tcp_be_liberal", 1), ("nf_conntrack_udp_timeout", 30)} < {
        (one.name, one.value) for one in wanted_limits(chosen, 1)
    }


def tree(root: Path, **values: int) -> Path:
    """Files as the kernel has them."""
    (root / SYSCTLS).mkdir(parents=True)
    (root / BUCKETS).parent.mkdir(parents=True)
    standard = {"max": 65_536, "tcp_timeout_established": 432_000, "tcp_timeout_close_wait": 60}
    for name, value in (standard | values).items():
        if name != "hashsize":
            (root / SYSCTLS / f"nf_conntrack_{name}").write_text(f"{value}\n")
    (root / BUCKETS).write_text(f"{values.get('hashsize', 16_384)}\n")
    return root


def value(root: Path, name: str) -> int:
    path = root / BUCKETS if name == "hashsize" else root / SYSCTLS / f"nf_conntrack_{name}"
    return int(path.read_text())


def test_what_differs_is_set(tmp_path: Path) -> None:
    root = tree(tmp_path)
    apply_limits(ConntrackSection(), 8, root)

    assert [value(root, name) for name in ("max", "hashsize", "tcp_timeout_established", "tcp_timeout_close_wait")] == [
        262_144, 65_536, 86_400, 3_600,
    ]  # fmt: skip


def test_a_larger_table_is_never_made_smaller(tmp_path: Path) -> None:
    root = tree(tmp_path, max=2_000_000, hashsize=600_000)
    apply_limits(ConntrackSection(), 8, root)

    assert (value(root, "max"), value(root, "hashsize")) == (2_000_000, 600_000)


def test_what_cannot_be_set_is_told_and_the_rest_is_set(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / SYSCTLS / "nf_conntrack_tcp_timeout_established").unlink()
    with structlog.testing.capture_logs() as logs:
        apply_limits(ConntrackSection(), 8, root)

    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["conntrack_limit_unknown"]
    assert value(root, "tcp_timeout_close_wait") == 3_600


@pytest.mark.node
def test_the_kernel_takes_the_times() -> None:
    """In a namespace of its own; the table's size belongs to the first one, and is only told here."""
    name = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait")
    with Namespace() as node, structlog.testing.capture_logs() as logs:
        node.call(lambda: apply_limits(ConntrackSection(max_per_core=0, tcp_close_wait_timeout=1234), 2))
        found = node.call(name.read_text)

    assert int(found) == 1234
    assert "conntrack_limit_set" in {line["event"] for line in logs}

# SPDX-License-Identifier: Apache-2.0
"""`kepctl doctor`: its exit code says whether something has to change, and notes do not."""

from contextlib import nullcontext

import pytest
from click.testing import CliRunner

from agent.cli.commands.node import node
from agent.cli.session import Session
from agent.wire.kepd.v1 import node_pb2

MEND = "sysctl -w x=1"
FINDING = node_pb2.Finding(subject="kubelet", found="true", wanted="false", text="it pulls one by one", mend=MEND)
NOTE = node_pb2.Finding(subject="snapshotter stargz", found="pulls lazily", text="bytes are unknown", is_note=True)


@pytest.mark.parametrize(
    ("findings", "exit_code"), [([], 0), ([NOTE], 0), ([FINDING], 1), ([NOTE, FINDING], 1)], ids=str
)
def test_only_what_has_to_change_makes_it_fail(
    monkeypatch: pytest.MonkeyPatch, findings: list[node_pb2.Finding], exit_code: int
) -> None:
    monkeypatch.setattr(node, "connected", lambda _session: nullcontext())
    monkeypatch.setattr(node, "diagnosed", lambda _daemon: findings)
    done = CliRunner().invoke(node.doctor, obj=Session(endpoint=None, timeout_s=1.0))

    assert done.exit_code == exit_code, done.output
    assert all(one.subject in done.output and one.text in done.output for one in findings)
    assert (MEND in done.output) == (FINDING in findings)
    assert ("as it is" in done.output) == (NOTE in findings)

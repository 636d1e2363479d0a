# SPDX-License-Identifier: Apache-2.0
"""What kepd makes wait can be seen, and let go on, by one word for all of it."""

from pathlib import Path

from agent.model.runtime.proxy_report import HoldReport
from tests.cli.node_in_process import Node, running_node

WHY = "unexpected status from HEAD request to https://r.io/v2/x/manifests/1: 429 Too Many Requests"


def fill(node: Node) -> None:
    node.pulls.held = [HoldReport(id="r.io", method="PullImage", reason="registry", held_s=5, ends_in_s=55, why=WHY)]


def test_what_is_held_is_listed_with_its_reason_and_let_go_by_its_id(short_path: Path) -> None:
    with running_node(short_path, fill) as node:
        shown = node.ctl("get", "holds")
        wrong = node.ctl("release", "hold", "other.io")
        released = node.out("release", "hold", "r.io")
        after = node.out("get", "holds")

    assert "r.io" in shown.stdout
    assert "55.0 s" in shown.stdout
    assert WHY[:40] in shown.stdout
    assert "kepctl release hold ID lets one go on" in shown.stderr
    assert (wrong.returncode, 'no pull is held by "other.io"' in wrong.stderr) == (3, True)
    assert released == "hold r.io is released\n"
    assert after == ""

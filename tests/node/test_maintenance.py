# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a node on real containers: a reason, a choice, replacements, and budgets that hold a drain."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.host.process import Kepd
from tests.lab import Image, Lab
from tests.node.pods import pods_daemon
from tests.node.test_workloads import DEPLOYMENT, apply, is_rolled_out, names, ready

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]

BUDGET = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: guard}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
"""


@pytest.fixture
def kepd(lab: Lab, short_path: Path, free_port: int) -> Iterator[Kepd]:
    with pods_daemon(lab, short_path, free_port) as daemon:
        yield daemon


def test_a_drain_replaces_holds_and_is_forced(kepd: Kepd, lab: Lab) -> None:
    """WL-27, WL-28."""
    image = lab.push(Image(name="node/maintenance"))
    apply(kepd, DEPLOYMENT + "---\n" + BUDGET, image, REPLICAS=2, NUMBER=1)
    kepd.wait(lambda: is_rolled_out(kepd, 2), "two are available")
    before = names(kepd)
    assert "guard" in kepd.ctl("get", "pdb").stdout
    assert "May End Now:       0" in kepd.ctl("describe", "pdb", "guard").stdout

    done = kepd.ctl("drain", "--reason", "new disk", "--selector", "app=web", "--surge")
    assert done.returncode == 0, done.stderr
    assert ready(kepd) == 2
    assert not names(kepd) & before
    told = kepd.ctl("status").stdout
    assert "new disk; of app=web all pods have ended; kepctl uncordon ends it" in told, told
    assert "drains the node: new disk" in kepd.ctl("events").stdout
    assert kepd.ctl("uncordon").returncode == 0

    kept = kepd.ctl("drain", "--reason", "new disk")
    assert kept.returncode == 1
    assert "stays: PodDisruptionBudget default/guard wants 2 healthy pods, and there are 2" in kept.stderr
    assert ready(kepd) == 2
    forced = kepd.ctl("drain", "--force")
    assert forced.returncode == 0, forced.stderr
    assert ready(kepd) == 0
    assert "it ends although PodDisruptionBudget default/guard" in kepd.ctl("events").stdout

# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own suite for container runtimes, direct and through the proxy: the same cases pass and fail.

Only where one is given: KEPD_CRITEST names the program, KEPD_CRITEST_FLAGS has more flags, such as a file of images
that this machine can pull.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.host.process import Kepd
from tests.lab import Lab

CRITEST = os.environ.get("KEPD_CRITEST") or shutil.which("critest")
FLAGS = shlex.split(os.environ.get("KEPD_CRITEST_FLAGS", ""))
LONGEST_S = 1800
pytestmark = [
    pytest.mark.node,
    pytest.mark.timeout(2 * LONGEST_S),
    pytest.mark.skipif(not CRITEST, reason="KEPD_CRITEST names no critest"),
]


def outcomes(socket: Path, report: Path) -> dict[str, str]:
    """What became of each case, by its name."""
    endpoints = [f"--{kind}-endpoint=unix://{socket}" for kind in ("runtime", "image")]
    command = [str(CRITEST), *endpoints, f"--ginkgo.junit-report={report}", *FLAGS]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LONGEST_S)
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    cases = ET.parse(report).iter("testcase")
    return {case.get("name", ""): case.get("status", "") for case in cases}


def test_what_passes_direct_passes_through_the_proxy(lab: Lab, short_path: Path, free_port: int) -> None:
    """PRX-20, PRX-25."""
    with Kepd(short_path, free_port, endpoint=lab.endpoint) as kepd:
        kepd.start("--planes", "proxy").wait_ready()
        direct = outcomes(lab.place.containerd_socket, short_path / "direct.xml")
        through = outcomes(short_path / "run" / "cri" / "kubelet.sock", short_path / "through.xml")

    assert direct
    assert through == direct

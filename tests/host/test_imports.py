# SPDX-License-Identifier: Apache-2.0
"""What a node without a cluster does not pay for: a client of HTTP, which is a fifth of the start and 25 MiB."""

import subprocess
import sys

import pytest

PLANES = ("devices", "dns", "images", "observe", "pods", "proxy", "services")


@pytest.mark.parametrize("plane", PLANES)
def test_no_plane_costs_aiohttp_before_it_meets_a_cluster(plane: str) -> None:
    code = f"import sys, agent.{plane}.attach.unit; sys.exit('aiohttp' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

# SPDX-License-Identifier: Apache-2.0
"""What a node does not pay for that has no use of it: a client of HTTP, a fifth of the start and 25 MiB; gRPC."""

import subprocess
import sys

import pytest

PLANES = (
    "agent.images", "agent.observe", "agent.pods", "agent.policies", "agent.proxy", "agent.services", "kepd_devices",
    "kepd_dns",
)  # fmt: skip


@pytest.mark.parametrize("plane", PLANES)
def test_no_plane_costs_aiohttp_before_it_meets_a_cluster(plane: str) -> None:
    code = f"import sys, {plane}.attach.unit; sys.exit('aiohttp' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", ["agent.host.compose", "agent.services.attach.unit", "kepd_dns.attach.unit"])
def test_a_process_without_runtime_and_callers_costs_no_grpc(module: str) -> None:
    """Its servers come with the first caller, its clients with the runtime."""
    code = f"import sys, {module}; sys.exit('grpc' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

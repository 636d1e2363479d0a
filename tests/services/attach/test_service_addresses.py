# SPDX-License-Identifier: Apache-2.0
"""When a services plane has to know the addresses of its host: they cost a library that most nodes can do without."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from agent.config.document import Configuration
from agent.services.attach.settings import needs_interfaces

PLAIN = Configuration()


def configured(**services: Any) -> Configuration:
    return replace(PLAIN, services=replace(PLAIN.services, **services))


@pytest.mark.parametrize(
    ("services", "is_needed"),
    [
        ({}, False),
        ({"node_port_addresses": ("primary",)}, False),
        ({"node_port_addresses": ("192.0.2.0/24",)}, True),
        ({"node_port_addresses": ("localhost",)}, False),
        ({"node_port_addresses": ("primary", "localhost")}, False),
        ({"node_port_addresses": ("localhost", "192.0.2.0/24")}, True),
        ({"backend": "iptables"}, True),
        ({"backend": "iptables", "node_port_addresses": ("primary",)}, False),
    ],
)
def test_addresses_are_needed_where_node_ports_are_not_on_the_primary_ones_alone(
    services: dict[str, Any], is_needed: bool
) -> None:
    """TY-2."""
    assert needs_interfaces(configured(**services)) is is_needed


def test_the_library_is_not_loaded_with_the_plane() -> None:
    code = "import sys, agent.services.attach.unit; print('pyroute2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"

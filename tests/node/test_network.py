# SPDX-License-Identifier: Apache-2.0
"""The network that packet tests run in: it works without any rule, and two of them do not disturb each other."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.network import Network

pytestmark = pytest.mark.node

WITHIN_S = 40.0


def held_namespaces() -> list[str]:
    """Namespaces that this process keeps by a descriptor."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return sorted(target for target in found if target.startswith("net:"))


def test_nothing_is_left_behind() -> None:
    """No link on the machine, no namespace: so the server's process has ended, too."""
    before = held_namespaces()
    links = sorted(path.name for path in Path("/sys/class/net").iterdir())
    with Network(pods=1, far_pods=1) as network:
        held = held_namespaces()
        process = network.servers.pid

    assert len(held) > len(before)
    assert held_namespaces() == before
    assert sorted(path.name for path in Path("/sys/class/net").iterdir()) == links
    assert not Path(f"/proc/{process}").exists()

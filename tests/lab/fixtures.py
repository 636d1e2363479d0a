# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures over a lab and a network, for a conftest to import.

Owns: one lab per test session, started at first use, and the throttle's return to its first state after each test; one
network per module, and the node's return to one without rules after each test, however that ended.
Never: skips; a lab that can't start is a failure with the reason. Who has no root is left out by marker elsewhere.
"""

from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab
from tests.lab.network import Network
from tests.lab.throttle import Throttle

__all__ = ["lab", "network", "network_of_module", "throttle"]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The session's lab. Tests remove the pods they start and name their images so that no other test has them."""
    with Lab.start() as running:
        yield running


@pytest.fixture
def throttle(lab: Lab) -> Iterator[Throttle]:
    """The lab's throttle without limits, faults or records."""
    lab.throttle.reset()
    yield lab.throttle
    lab.throttle.reset()


@pytest.fixture(scope="module")
def network_of_module() -> Iterator[Network]:
    with Network() as built:
        yield built


@pytest.fixture
def network(network_of_module: Network) -> Iterator[Network]:
    """Namespaces whose node has neither rules nor connections of earlier tests."""
    yield network_of_module
    network_of_module.clear()

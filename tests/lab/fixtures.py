# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures over a lab, for a conftest to import.

Owns: one lab per test session, started at first use, and the throttle's return to its first state after each test.
Never: skips; a lab that can't start is a failure with the reason. Who has no root is left out by marker elsewhere.
"""

from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab
from tests.lab.throttle import Throttle

__all__ = ["lab", "throttle"]


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

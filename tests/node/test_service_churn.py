# SPDX-License-Identifier: Apache-2.0
"""50 000 random changes of Services: what is gone takes no memory, and the table is that of a fresh start."""

import pytest

from tests.services.objects.test_room import crowd

pytestmark = [pytest.mark.node, pytest.mark.timeout(400)]


def test_fifty_thousand_changes_leave_nothing_behind() -> None:
    """SY-12: chains of every number of seconds and of endpoints came and went."""
    seen = crowd("50000", "churn")

    assert seen["differs"] == {}
    assert seen["grown_mib"] < 3, seen["top"]

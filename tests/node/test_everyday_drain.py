# SPDX-License-Identifier: Apache-2.0
"""What people do with a whole node: it ends all pods, so it has a daemon of its own."""

import pytest

from tests.node.everyday_tasks import EMPTYING
from tests.node.test_everyday import Shell, check, kepd, shell  # noqa: F401  # fixtures

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


def test_a_node_is_emptied_and_takes_pods_again(shell: Shell) -> None:  # noqa: F811
    for one in EMPTYING:
        check(shell, one)

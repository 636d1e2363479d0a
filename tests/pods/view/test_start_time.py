# SPDX-License-Identifier: Apache-2.0
"""How long a start took by what the node itself does."""

import pytest

from agent.pods.plan.remembered import Moment
from agent.pods.view.timeline import own_start_s


def moments(*told: tuple[float, str, str]) -> list[Moment]:
    return [Moment(at_s=at_s, kind=kind, container=name) for at_s, kind, name in told]


PULLED = ((1.0, "pull_started", "a"), (4.0, "pull_finished", "a"))


@pytest.mark.parametrize(
    ("told", "own_s"),
    [
        ((), 10.0),
        (PULLED, 7.0),
        ((*PULLED, (5.0, "pull_started", "a"), (6.0, "pull_failed", "a")), 6.0),
        # Two at once are left out once.
        ((*PULLED, (2.0, "pull_started", "b"), (5.0, "pull_finished", "b")), 6.0),
        (((2.0, "started", "init"), (5.0, "exit", "init")), 7.0),
        (((2.0, "started", "main"), (5.0, "exit", "main")), 10.0),
        # One that began before the pod was seen, one that ends after it runs, and one whose end is missing.
        (((-5.0, "pull_started", "a"), (2.0, "pull_finished", "a")), 8.0),
        (((9.0, "pull_started", "a"), (20.0, "pull_finished", "a")), 9.0),
        (((1.0, "pull_started", "a"),), 10.0),
    ],
)  # fmt: skip
def test_pulls_and_init_containers_are_left_out(told: tuple[tuple[float, str, str], ...], own_s: float) -> None:
    """DUR-03."""
    assert own_start_s(moments(*told), ["init"], 0.0, 10.0) == own_s

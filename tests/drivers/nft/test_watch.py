# SPDX-License-Identifier: Apache-2.0
"""What counts as somebody else's while nobody listens."""

from contextlib import ExitStack
from typing import cast

import pytest

from agent.drivers.nft.watch import MonitorSocket, OwnSockets

MANY = 10_000


class Told:
    """An ear that only notes."""

    def __init__(self) -> None:
        self.lost = 0

    def is_listening(self, listens: bool) -> None:
        """Nothing to join."""

    def tell_lost(self) -> None:
        self.lost += 1


@pytest.mark.parametrize(
    ("commits", "program", "lost"),
    [(1, "", 0), (2, "", 1), (2, "before", 0), (2, "within", 0), (3, "before", 1), (3, "within", 1)],
)
def test_only_commits_of_others_are_called_so(commits: int, program: str, lost: int) -> None:
    """NF-64: a program of ours may load the other family's table in the meantime."""
    own_sockets, told, generations = OwnSockets(), Told(), iter((7, 7 + commits))
    own_sockets.add_monitor(cast("MonitorSocket", told))
    with ExitStack() as programs:
        if program == "before":
            programs.enter_context(own_sockets.program())
        with own_sockets.transaction(MANY, lambda: next(generations)):
            if program == "within":
                programs.enter_context(own_sockets.program())

    assert told.lost == lost

# SPDX-License-Identifier: Apache-2.0
"""Figures are scraped, some are left out, and something cannot be read."""

import errno
from pathlib import Path

from agent.observe.run.pages import PageSettings
from tests.lives.figures import Watched
from tests.observe.test_collector import Observed


async def observation_life(folder: Path) -> set[str]:
    """What moved."""
    node = Observed(folder)
    watched = Watched(node.pages.metrics.families)
    node.runtime.add_pod("web", tuple(f"c{number}" for number in range(30)))
    node.files.refusals = {"memory.stat": errno.EIO}
    node.settings = PageSettings(most_series=100)
    node.book.kills += 1
    await node.pages.cadvisor({})
    watched.look()
    node.close()
    return watched.moved

# SPDX-License-Identifier: Apache-2.0
"""Figures are scraped, some are left out, and something cannot be read."""

import errno
from pathlib import Path

from agent.observe.run.pages import PageSettings
from tests.lives.figures import Watched
from tests.observe.test_collector import Observed
from tests.observe.test_file_systems import ONE, Disks, Runtime, answers_of


async def observation_life(folder: Path) -> set[str]:
    """What moved."""
    node = Observed(folder)
    answers = answers_of(Runtime(), Disks({"/state": ONE, "/images/a": ONE}), node.clock, ("node", "/state"))
    watched = Watched(lambda: (*node.pages.metrics.families(), *answers.families()))
    node.runtime.add_pod("web", tuple(f"c{number}" for number in range(30)))
    node.files.refusals = {"memory.stat": errno.EIO}
    node.settings = PageSettings(most_series=100)
    node.book.kills += 1
    await node.pages.cadvisor({})
    await answers.reports()
    watched.look()
    node.close()
    return watched.moved

# SPDX-License-Identifier: Apache-2.0
"""Every word of the reference that people look up: metrics move by something that happens, events are in a test."""

import asyncio
import re
from pathlib import Path

import pytest

from packages.devices.tests.life import devices_life
from packages.dns.tests.life import dns_life
from scripts.vocabulary import EVENTS, metrics
from tests.lives.images import images_life
from tests.lives.observation import observation_life
from tests.lives.pods import pods_life
from tests.lives.policies import policies_life
from tests.lives.process import process_life
from tests.lives.proxy import proxy_life
from tests.lives.services import services_life
from tests.lives.traces import traces_life

HERE = Path(__file__).parent
# These hold lists of words against each other; nothing happens in them.
OF_VOCABULARY = {"test_vocabulary.py", Path(__file__).name}


@pytest.mark.timeout(180)
async def test_something_that_happens_moves_every_metric_of_the_reference(short_path: Path, free_port: int) -> None:
    """FH-5: a figure that nothing moves looks like a node without trouble."""
    for name in ("images", "daemon", "proxy", "devices", "dns", "observation"):
        (short_path / name).mkdir()
    lives = await asyncio.gather(
        images_life(short_path / "images"),
        pods_life(short_path / "pods"),
        proxy_life(short_path / "proxy"),
        services_life(free_port),
        devices_life(short_path / "devices"),
        observation_life(short_path / "observation"),
        dns_life(short_path / "dns"),
        policies_life(),
        traces_life(),
    )
    # It measures what the process uses, so nobody else lives meanwhile.
    moved = set().union(*lives, await process_life(short_path / "daemon", free_port))

    assert sorted({one.name for one in await metrics()} - moved) == []


@pytest.fixture(scope="module")
def words_of_tests() -> frozenset[str]:
    """Strings that are one word, as an event's reason is where a test compares it."""
    found = [*HERE.rglob("*.py"), *HERE.parent.glob("packages/*/tests/**/*.py")]
    paths = [path for path in found if path.name not in OF_VOCABULARY]
    return frozenset(word for path in paths for word in re.findall(r'"([A-Z][A-Za-z]+)"', path.read_text("utf-8")))


@pytest.mark.parametrize("reason", sorted(EVENTS))
def test_every_reason_of_an_event_is_in_a_test(reason: str, words_of_tests: frozenset[str]) -> None:
    """FH-5."""
    assert reason in words_of_tests

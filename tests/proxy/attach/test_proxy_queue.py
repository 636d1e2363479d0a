# SPDX-License-Identifier: Apache-2.0
"""The pull queue as the proxy sees it: whether an image that shall go is on its way."""

import asyncio
from types import SimpleNamespace

import pytest

from agent.host.joints.proxy_images import QueueForProxy
from agent.model.images.state import PullStage
from tests.fakes.clock import FakeClock
from tests.fakes.cri import FakeCri

IMAGE = "registry.example/team/app:1"


@pytest.mark.parametrize("is_by_id", [True, False])
async def test_an_image_is_known_by_its_id_and_by_its_names(is_by_id: bool) -> None:
    """IMG-G15: a kubelet's collection names ids."""
    clock, cri = FakeClock(), FakeCri()
    cri.registry.add(IMAGE)
    image_id = await cri.pull_image(IMAGE)
    items = {"1": SimpleNamespace(image=IMAGE, stage=PullStage.DOWNLOADING)}
    queue = QueueForProxy(SimpleNamespace(pulls=SimpleNamespace(items=items)), cri, clock)  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(queue.settled(image_id if is_by_id else IMAGE, 60.0))
    await clock.advance(5)
    was_waiting, was_busy = not waiting.done(), queue.is_busy
    items["1"] = SimpleNamespace(image=IMAGE, stage=PullStage.DONE)
    await clock.advance(1)

    assert (was_waiting, was_busy) == (True, True)
    assert (waiting.done(), queue.is_busy) == (True, False)


async def test_a_pull_that_takes_too_long_is_not_waited_for() -> None:
    clock = FakeClock()
    items = {"1": SimpleNamespace(image=IMAGE, stage=PullStage.DOWNLOADING)}
    queue = QueueForProxy(SimpleNamespace(pulls=SimpleNamespace(items=items)), FakeCri(), clock)  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(queue.settled(IMAGE, 30.0))
    await clock.advance(31)

    assert waiting.done()

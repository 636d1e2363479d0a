# SPDX-License-Identifier: Apache-2.0
"""Whether a pod takes tasks."""

import asyncio
from types import SimpleNamespace

import pytest

from agent.pods.plan.work import Launching
from agent.pods.run.one_pod.run_state import LivePod


class Quiet(LivePod):
    """A run without its pod."""

    def __init__(self) -> None:
        self.pod = SimpleNamespace(key="default/web")
        self.tasks = {}
        self._group = None
        self.trace = None

    def ring(self) -> None: ...


async def test_a_pod_takes_no_task_from_the_moment_one_of_its_own_has_failed() -> None:
    """FP-10: before the keeper hears of it, news of the runtime may come; a closed group would end the whole plane."""
    run, seen = Quiet(), []

    async def fail() -> None:
        # What comes next in the loop comes before the keeper is resumed.
        asyncio.get_running_loop().call_soon(lambda: asyncio.get_running_loop().call_soon(look))
        raise OSError("disk")

    def look() -> None:
        seen.append(run.is_kept)

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            run.enter(group)
            run.spawn(Launching("app"), fail())
            await asyncio.sleep(1)

    assert seen
    assert not any(seen)

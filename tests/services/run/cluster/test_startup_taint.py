# SPDX-License-Identifier: Apache-2.0
"""The startup taint (DS-10): lifted once Services answer, again when it comes back, and never another's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.drivers.kube import errors
from agent.drivers.kube.resource import NODES, Changed, Replaced
from agent.model.kube_objects import NodeTaint
from agent.services.run.cluster.startup_taint import LONGEST_RETRY_S, STARTUP_TAINT, StartupTaint, lifting
from tests.drivers.kube.fake import FakeKube
from tests.drivers.kube.following import QuickClock

WITHIN_S = 40.0
OURS = {"key": STARTUP_TAINT, "effect": "NoSchedule"}
OTHER = {"key": "example.com/gpu", "value": "a", "effect": "NoSchedule"}
LATER = {"key": STARTUP_TAINT, "effect": "NoExecute", "timeAdded": "2030-01-01T00:00:00Z"}
FORBIDDEN = 'nodes "n" is forbidden'


class Cluster:
    """A fake server with one node, and the taint's keeper that follows it."""

    def __init__(self) -> None:
        self.server = FakeKube()
        self.clock = QuickClock()
        self.is_answering = True
        self.taint = StartupTaint(lambda: self.server, "n", self.clock, lambda: self.is_answering)  # type: ignore[arg-type,return-value]

    def put(self, *taints: dict[str, str]) -> None:
        self.server.put("nodes", {"metadata": {"name": "n"}, "spec": {"taints": list(taints)}})

    def taints(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.server.objects.get("nodes", "", "n")["spec"].get("taints", [])
        return found

    async def watch(self) -> None:
        async for news in self.server.follow(NODES):
            match news:
                case Replaced(items=[node]) | Changed(object=node):
                    self.taint.saw(node)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def patches(self) -> int:
        return len([one for one in self.server.calls if one.startswith("patch")])


@asynccontextmanager
async def cluster(*taints: dict[str, str], is_answering: bool = True) -> AsyncIterator[Cluster]:
    made = Cluster()
    made.is_answering = is_answering
    made.put(*taints)
    tasks = [asyncio.create_task(made.watch()), asyncio.create_task(made.taint.run())]
    try:
        yield made
    finally:
        for one in tasks:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one


async def test_it_stays_until_services_answer() -> None:
    async with cluster(OTHER, OURS, is_answering=False) as found:
        await asyncio.sleep(0.01)
        assert found.patches == 0
        found.is_answering = True
        found.taint.follow("IPv4", None)  # type: ignore[arg-type]
        await found.until(lambda: found.taints() == [OTHER])

    assert found.patches == 1


async def test_it_goes_again_when_it_comes_later() -> None:
    async with cluster(OURS) as found:
        await found.until(lambda: found.taints() == [])
        found.put(LATER, OTHER, OURS)
        await found.until(lambda: found.taints() == [OTHER])


async def test_a_node_without_it_is_not_written() -> None:
    async with cluster(OTHER) as found:
        found.taint.follow("IPv4", None)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)

    assert found.patches == 0


@pytest.mark.parametrize("error", [errors.Unreachable("away"), errors.Denied(FORBIDDEN, 403)])
async def test_a_refusal_is_told_and_tried_again(error: errors.KubeError) -> None:
    async with cluster(OURS) as found:
        found.server.failures["patch"] = error
        await found.until(lambda: found.taints() == [])

    assert found.patches == len(found.clock.slept) + 1


async def test_pauses_grow_to_a_minute() -> None:
    async with cluster(OURS) as found:
        found.server.failures = Always(errors.Unreachable("away"))
        await found.until(lambda: len(found.clock.slept) > 9)

    assert found.clock.slept[:7] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_RETRY_S]


class Always(dict[str, errors.KubeError]):
    """The same failure for every call."""

    def __init__(self, error: errors.KubeError) -> None:
        super().__init__()
        self._error = error

    def pop(self, *_: Any) -> Any:
        return self._error


TAINTS = st.lists(
    st.builds(NodeTaint, key=st.sampled_from((STARTUP_TAINT, "a", "")), effect=st.sampled_from(("NoSchedule", "x")))
)


@given(TAINTS)
def test_the_patch_leaves_exactly_the_others(taints: list[NodeTaint]) -> None:
    stored = FakeKube()
    stored.put(
        "nodes",
        {"metadata": {"name": "n"}, "spec": {"taints": [{"key": one.key, "effect": one.effect} for one in taints]}},
    )
    steps = lifting(taints)
    if steps:
        stored.objects.patch("nodes", "", "n", steps, "application/json-patch+json")

    left = [one["key"] for one in stored.objects.get("nodes", "", "n")["spec"].get("taints", [])]
    assert left == [one.key for one in taints if one.key != STARTUP_TAINT]

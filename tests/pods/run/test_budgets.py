# SPDX-License-Identifier: Apache-2.0
"""Budgets, reasons, choice and replacements where the node is drained, a pod is evicted, or the node is short."""

import asyncio
from pathlib import Path

import pytest

from agent.model.nodes.drain import NodeDrain
from agent.model.nodes.use import Amount
from agent.model.refused import Refused
from agent.objects.run.writer import take_out
from agent.pods.plan.drain import ShutdownRules
from agent.pods.plan.evict import EvictionRules, Threshold
from agent.pods.run.commands import PodCommands
from agent.pods.run.draining import Drainer
from tests.fakes.manifests import FakeManifestDirectory
from tests.pods.plane import FakeNode, Plane, Slow, running
from tests.pods.run.test_workloads import deployment, pods, ready, until_ready

BY = "root (uid 0)"


def budget(spec: str = "minAvailable: 1") -> bytes:
    head = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n"
    return f"{head}spec: {{{spec}, selector: {{matchLabels: {{app: web}}}}}}\n".encode()


@pytest.fixture
def given() -> FakeManifestDirectory:
    return FakeManifestDirectory({"/m/w.yaml": deployment(2), "/m/b.yaml": budget()})


def commands_of(plane: Plane) -> PodCommands:
    context = plane.runner._context
    return PodCommands(plane.runner, Drainer(plane.runner, context), context, take_out)


def wish(**more: object) -> NodeDrain:
    return NodeDrain(by=BY, began_at_s=0.0, **more)  # type: ignore[arg-type]


def told(plane: Plane) -> list[tuple[str, str]]:
    return [(one.reason, one.message) for one in plane.events]


def forced(plane: Plane) -> list[str]:
    return [one.message for one in plane.events if one.reason == "DisruptionForced"]


async def test_a_drain_leaves_whom_a_budget_keeps_and_goes_on_when_it_is_gone(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """WL-27"""
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await until_ready(plane, 2)
        ended, kept = await commands.drain(wish(reason="new disk"))
        assert (len(ended), len(kept), ready(plane)) == (1, 1, 1)
        assert kept[0].why == "PodDisruptionBudget default/guard wants 1 healthy pod, and there are 1"
        drained = plane.runner.drained
        assert drained is not None
        assert (drained.reason, drained.kept, drained.waits_for) == ("new disk", kept, (kept[0].pod,))
        assert ("NodeNotSchedulable", f"{BY} drains the node: new disk") in told(plane)
        with pytest.raises(Refused, match="a drain of all pods is under way; wait for it, or end it"):
            await commands.drain(wish(selector="app=db"))
        given.put("/m/b.yaml", None)
        await plane.until(lambda: ready(plane) == 0, "the last one ends")
        assert not forced(plane)


async def test_force_ends_it_and_is_told(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """WL-27: also while a drain without force waits."""
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await until_ready(plane, 2)
        await commands.drain(wish())
        ended, kept = await commands.drain(wish(is_forced=True))
        assert (len(ended), kept, ready(plane)) == (2, (), 0)

    assert forced(plane) == ["it ends although PodDisruptionBudget default/guard wants 1 healthy pod, and there are 1"]


async def test_a_shutdown_ends_guarded_pods_last_and_tells_it(given: FakeManifestDirectory, tmp_path: Path) -> None:
    """WL-27"""
    async with running(Slow(), given, tmp_path) as plane:
        await until_ready(plane, 2)
        context = plane.runner._context
        await Drainer(plane.runner, context).drain_before_shutdown(ShutdownRules(longest_s=20.0))
        assert ready(plane) == 0

    assert len(forced(plane)) == 1


async def test_an_eviction_is_refused_where_a_budget_keeps_the_pod(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """WL-27: two at once do not spend it twice."""
    given.put("/m/b.yaml", budget("minAvailable: 2"))
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await until_ready(plane, 2)
        names = [one.name for one in pods(plane)]
        with pytest.raises(Refused, match="it may not be evicted: PodDisruptionBudget default/guard wants 2 healthy"):
            await commands.delete("default", names[0], None, evicts=True)
        given.put("/m/b.yaml", budget("maxUnavailable: 1"))
        status = plane.runner.workloads.status
        await plane.until(
            lambda: (now := status(("PodDisruptionBudget", "default", "guard"))) and now["disruptionsAllowed"] == 1,
            "it allows one",
        )
        asked = [commands.delete("default", name, None, evicts=True) for name in names]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(one, Refused) for one in answers] == [False, True]
        await until_ready(plane, 2)
        await commands.delete("default", names[1], None)


async def test_a_selector_chooses_who_ends_and_no_pod_begins_meanwhile(tmp_path: Path) -> None:
    other = deployment(1).replace(b"web", b"db")
    given = FakeManifestDirectory({"/m/a.yaml": deployment(1), "/m/b.yaml": other})
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await until_ready(plane, 2)
        ended, _ = await commands.drain(wish(selector="app=db"))
        assert [one.split("-")[0] for one in ended] == ["default/db"]
        assert [one.name.split("-")[0] for one in pods(plane) if one.phase == "Running"] == ["web"]
        with pytest.raises(Refused, match="is no part of a label selector"):
            await commands.drain(wish(selector="app in db"))
        rest, _ = await commands.drain(wish())
        assert [one.split("-")[0] for one in rest] == ["default/web"]
        ended += rest
        assert await commands.uncordon() == sorted(ended)
        assert ("NodeSchedulable", "the node takes pods again") in told(plane)
        await until_ready(plane, 2)


async def test_with_surge_a_replacement_is_ready_before_a_pod_ends(
    given: FakeManifestDirectory, tmp_path: Path
) -> None:
    """WL-28: nobody is missing, whatever the budget; the replacements run on, over a restart of kepd too."""
    least = []
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await until_ready(plane, 2)
        before = {one.uid for one in pods(plane)}
        put = plane.runner.pods.put
        plane.runner.pods.put = lambda key, pod: (put(key, pod), least.append(ready(plane)))  # type: ignore[method-assign]
        ended, kept = await commands.drain(wish(surges=True))
        assert (len(ended), kept) == (2, ())
        await until_ready(plane, 2)
        after = {one.uid for one in pods(plane)}
        assert not before & after
        assert min(least) >= 2
        drained = plane.runner.drained
        assert drained is not None
        assert drained.waits_for == ()
    async with running(Slow(), given, tmp_path) as plane:
        commands = commands_of(plane)
        await plane.until(lambda: plane.runner.drained is not None, "it is still drained")
        await commands.resume_drain()
        await plane.rounds()
        assert {one.uid for one in pods(plane)} == after
        assert not [one for one in plane.runner.pods.items.values() if one.is_terminating]


async def test_without_room_for_a_replacement_pods_end_as_they_would(tmp_path: Path) -> None:
    """WL-28"""
    given = FakeManifestDirectory({"/m/w.yaml": deployment(2)})
    async with running(Slow(), given, tmp_path, max_pods=2) as plane:
        commands = commands_of(plane)
        await until_ready(plane, 2)
        ended, _ = await commands.drain(wish(surges=True))
        assert len(ended) == 2

    assert [one.message for one in plane.events if one.reason == "NoReplacement"]


async def test_a_node_that_is_short_takes_unguarded_pods_first_and_tells_whom_it_took_against_a_budget(
    tmp_path: Path,
) -> None:
    """WL-27"""
    other = deployment(1).replace(b"web", b"db")
    given = FakeManifestDirectory({"/m/w.yaml": deployment(1), "/m/d.yaml": other, "/m/b.yaml": budget()})
    node = FakeNode()
    rules = EvictionRules(thresholds=(Threshold(signal="pid.available", quantity=10),), period_s=0.02)
    async with running(Slow(), given, tmp_path, node=node, eviction=rules) as plane:
        await until_ready(plane, 2)
        node.amounts = {"pid.available": Amount(available=1, capacity=100)}
        await plane.until(lambda: any(one.reason == "Evicted" for one in plane.events), "one is evicted")
        evicted = [one.object_name for one in plane.events if one.reason == "Evicted"]
        assert evicted[0].startswith("db-")
        assert not forced(plane)
        await plane.until(lambda: forced(plane), "the other one too")

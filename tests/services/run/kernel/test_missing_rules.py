# SPDX-License-Identifier: Apache-2.0
"""The taint that comes back (SVN-60 to SVN-64): the API server and the kernel are fakes, a boot is a file."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.drivers.kube import errors
from agent.drivers.kube.resource import NODES, Changed, Replaced
from agent.model.kube_objects import NodeTaint
from agent.model.services.nft_error import NftFailed, RivalFound
from agent.services.objects.node_state import NodeSettings
from agent.services.run.cluster.startup_taint import (
    EFFECT,
    STARTUP_TAINT,
    TAINT,
    StartupTaint,
    TaintWork,
    adding,
    lift_taint,
)
from agent.services.run.intake import ServiceInputs
from agent.services.run.kernel.missing_rules import FIRST_REST_S, LONGEST_REST_S, FlapGuard, MissingRules
from agent.services.run.nft_ruleset import NftRuleset
from agent.services.run.plane import ServicesPlane
from tests.drivers.kube.fake import FakeKube
from tests.drivers.kube.following import QuickClock
from tests.fakes.nft import FakeKernel, FakeNft
from tests.services.making import make_service

WITHIN_S = 40.0
TINY_S = 1e-6
OURS = {"key": STARTUP_TAINT, "effect": EFFECT}
OTHER = {"key": "example.com/gpu", "value": "a", "effect": "NoSchedule"}


class Node:
    """What outlives a kepd: the object of the node, the kernel, the state directory."""

    def __init__(self, folder: Path, *taints: dict[str, str]) -> None:
        self.server = FakeKube()
        self.boot_id = folder / "boot_id"
        self.file = folder / "state" / "boot-id"
        self.put(*taints)
        self.boot("one")

    def put(self, *taints: dict[str, str]) -> None:
        self.server.put("nodes", {"metadata": {"name": "n"}, "spec": {"taints": list(taints)} if taints else {}})

    def boot(self, name: str) -> None:
        """Rules do not outlive it."""
        self.boot_id.write_text(f"{name}\n")
        self.kernel = FakeKernel()

    def taints(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.server.objects.get("nodes", "", "n")["spec"].get("taints", [])
        return found

    @property
    def patches(self) -> int:
        return len([one for one in self.server.calls if one.startswith("patch")])


class Process:
    """One kepd on the node, without the loops of its plane: a test syncs."""

    def __init__(self, node: Node, mode: str = "boot") -> None:
        self.node = node
        self.clock = QuickClock()
        self.goes_down = False
        waits_for = {"services", "slices", TAINT}
        settings = NodeSettings(node="n", service_ranges=("10.96.0.0/16",))
        self.intake = ServiceInputs(settings, tell=lambda _: None, started_s=0.0, waits_for=waits_for)
        self.table = FakeNft("IPv4", node.kernel)
        self.plane = ServicesPlane(self.intake, {"IPv4": NftRuleset(self.table)}, clock=self.clock, tell=lambda _: None)
        self.missing = MissingRules(
            self.plane,
            node.file,
            self.clock,
            boot_id=node.boot_id,
            sees_losses=mode == "stop",
            is_going_down=self._is_going_down,
        )
        self.taint = StartupTaint(
            lambda: node.server,  # type: ignore[arg-type,return-value]
            "n",
            self.clock,
            lambda: self.plane.is_answering,
            self.missing,
        )
        self.plane.followers += [self.missing.follow, self.taint.follow]
        self.work = TaintWork(self.taint, self.missing, self.intake)

    async def _is_going_down(self) -> bool:
        return self.goes_down

    async def sync(self) -> None:
        self.intake.put_service(make_service("web"))
        self.plane.objects_changed()
        await self.plane.families["IPv4"].sync()

    def fail(self, error: NftFailed) -> None:
        self.plane.sync_failed("IPv4", error, retry_s=1.0, is_full=True)

    async def watch(self) -> None:
        async for news in self.node.server.follow(NODES):
            match news:
                case Replaced(items=[node]) | Changed(object=node):
                    self.taint.saw(node)


async def until(condition: Any) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def process(node: Node, mode: str = "boot", *, syncs: bool = True) -> AsyncIterator[Process]:
    """A kepd that has seen its node, and has synced if it could."""
    made = Process(node, mode)
    await made.work.begin()
    tasks = [asyncio.create_task(made.work.run()), asyncio.create_task(made.watch())]
    try:
        await until(lambda: TAINT not in made.intake.missing)
        if syncs:
            await made.sync()
            await until(lambda: OURS not in node.taints())
            await until(node.file.exists)
        yield made
    finally:
        for one in tasks:
            one.cancel()
            with suppress(asyncio.CancelledError):
                await one


async def test_a_boot_without_rules_puts_it_on_before_the_first_sync(tmp_path: Path) -> None:
    """SVN-60, SVN-64."""
    node = Node(tmp_path, OTHER)
    async with process(node, syncs=False) as kepd:
        assert node.taints() == [OTHER, OURS]
        await kepd.sync()
        await until(lambda: node.taints() == [OTHER])

    assert node.patches == 2


async def test_a_boot_with_rules_changes_nothing(tmp_path: Path) -> None:
    """SVN-60: what is in the kernel works, whatever the file says."""
    node = Node(tmp_path)
    async with process(node):
        pass
    node.boot_id.write_text("two\n")
    before = node.patches
    async with process(node):
        pass

    assert node.patches == before


async def test_two_restarts_without_a_boot_change_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(3):
        async with process(node, "stop") as kepd:
            await kepd.work.end()

    assert node.patches == 2


async def test_another_boot_puts_it_on_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with process(node):
        pass
    node.boot("two")
    async with process(node, syncs=False):
        assert node.taints() == [OURS]
    # It ended before there were rules: still the same boot, and the taint stands already.
    async with process(node):
        pass

    assert node.taints() == []
    assert node.patches == 4


async def test_a_conflict_reads_the_node_again(tmp_path: Path) -> None:
    """SVN-62: somebody else's taint came between reading and writing."""
    node = Node(tmp_path)
    kepd = Process(node)
    await kepd.missing.begin()
    async for news in node.server.follow(NODES):
        if isinstance(news, Replaced):
            kepd.taint.saw(news.items[0])
            break
    node.put(OTHER)
    assert not await kepd.taint.change()
    assert node.taints() == [OTHER]
    async with process(node, syncs=False):
        assert node.taints() == [OTHER, OURS]


async def test_a_refusal_holds_nothing_up(tmp_path: Path) -> None:
    """SVN-62: 403, then a server that is away; the first sync waits for neither."""
    node = Node(tmp_path)
    node.server.failures["patch"] = errors.Denied('nodes "n" is forbidden', 403)
    async with process(node, syncs=False) as kepd:
        assert TAINT not in kepd.intake.missing
        await until(lambda: node.taints() == [OURS])

    node.boot("two")
    node.put()
    node.server.failures = {"patch": errors.Unreachable("away")}
    async with process(node, syncs=False) as kepd:
        assert TAINT not in kepd.intake.missing


async def test_rules_that_are_lost_for_half_a_minute_put_it_on(tmp_path: Path) -> None:
    """SVN-61."""
    node = Node(tmp_path)
    async with process(node, "stop") as kepd:
        before = node.patches
        kepd.table.kernel.tables.clear()
        kepd.fail(NftFailed("out of luck"))
        failed_s = kepd.clock.moved_s
        await until(lambda: node.taints() == [OURS])
        assert kepd.clock.moved_s - failed_s >= 30.0
        assert node.patches == before + 1

        await kepd.sync()
        await until(lambda: node.taints() == [])


async def test_failures_with_rules_in_place_are_no_reason(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with process(node, "stop") as kepd:
        before = node.patches
        kepd.fail(NftFailed("out of luck"))
        later_s = kepd.clock.moved_s + 100.0
        await until(lambda: kepd.clock.moved_s > later_s)
        kepd.table.kernel.tables.clear()
        kepd.fail(RivalFound("another program has its Services here"))
        later_s = kepd.clock.moved_s + 100.0
        await until(lambda: kepd.clock.moved_s > later_s)

        assert node.patches == before


async def test_a_family_of_which_all_is_refused_has_no_rules(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with process(node, "stop") as kepd:
        (sync,) = kepd.plane.families.values()
        (key,) = kepd.intake.fold.services
        sync.quarantine[key] = "refused"
        assert await kepd.plane.lacking(30.0) == []
        kepd.intake.drop_service(*key)
        await sync.sync()
        sync.quarantine[key] = "refused"

        assert await kepd.plane.lacking(30.0) == ["IPv4"]


async def test_a_flapping_table_changes_the_node_ever_more_rarely(tmp_path: Path) -> None:
    """SVN-61."""
    node = Node(tmp_path)
    changes: list[float] = []
    async with process(node, "stop") as kepd:
        for _ in range(5):
            kepd.table.kernel.tables.clear()
            kepd.fail(NftFailed("out of luck"))
            await until(lambda: node.taints() == [OURS])
            changes.append(kepd.clock.moved_s)
            await kepd.sync()
            await until(lambda: node.taints() == [])
            changes.append(kepd.clock.moved_s)

    apart = [after - before for before, after in pairwise(changes)]
    assert all(one >= FIRST_REST_S for one in apart)
    assert all(one >= LONGEST_REST_S for one in apart[4:])


@given(st.lists(st.floats(0, 2000), max_size=30))
def test_the_pause_is_between_a_minute_and_ten(steps: Sequence[float]) -> None:
    guard, now_s = FlapGuard(), 0.0
    for step_s in steps:
        now_s += guard.rest_s(now_s) + step_s
        assert guard.rest_s(now_s) <= TINY_S
        guard.changed(now_s)

        assert FIRST_REST_S - TINY_S <= guard.rest_s(now_s) <= LONGEST_REST_S + TINY_S


async def test_the_end_of_the_node_puts_it_on_and_that_of_kepd_does_not(tmp_path: Path) -> None:
    """SVN-60."""
    node = Node(tmp_path)
    async with process(node, "boot") as kepd:
        kepd.goes_down = True
        await kepd.work.end()
        assert node.taints() == []
    async with process(node, "stop") as kepd:
        await kepd.work.end()
        assert node.taints() == []
        kepd.goes_down = True
        await kepd.work.end()
        assert node.taints() == [OURS]


async def test_a_cleanup_takes_it_off(tmp_path: Path) -> None:
    """SVN-64."""
    node = Node(tmp_path, OTHER, OURS)

    assert await lift_taint(node.server, "n", is_dry=True)  # type: ignore[arg-type]
    assert node.patches == 0
    assert await lift_taint(node.server, "n", is_dry=False)  # type: ignore[arg-type]
    assert node.taints() == [OTHER]
    assert not await lift_taint(node.server, "n", is_dry=False)  # type: ignore[arg-type]


TAINTS = st.lists(
    st.builds(NodeTaint, key=st.sampled_from((STARTUP_TAINT, "a", "")), effect=st.sampled_from((EFFECT, "x")))
)


@given(TAINTS)
def test_the_patch_adds_it_once_and_keeps_all_others(taints: list[NodeTaint]) -> None:
    """SVN-62."""
    stored = FakeKube()
    given_ = [{"key": one.key, "effect": one.effect} for one in taints]
    stored.put("nodes", {"metadata": {"name": "n"}, "spec": {"taints": given_} if taints else {}})
    steps = adding(taints)
    if steps:
        stored.objects.patch("nodes", "", "n", steps, "application/json-patch+json")

    left = stored.objects.get("nodes", "", "n")["spec"]["taints"]
    assert left == given_ if OURS in given_ else left == [*given_, OURS]

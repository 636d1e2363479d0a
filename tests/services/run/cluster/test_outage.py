# SPDX-License-Identifier: Apache-2.0
"""SVN-120 to SVN-126: a plane whose server goes away, loses endpoints meanwhile, and gets its server back."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agent.model.event import Event
from agent.model.services.check import Asked, Outcome
from agent.model.services.service import ServiceKey
from agent.services.outage.silence import KINDS
from agent.services.run.cluster.outage import GATHER_S, TELL_S, OutageKeeper, OutageSettings
from tests.fakes.jumping import jumps
from tests.services.making import make_service, make_slice
from tests.services.run.test_metrics import Node

__all__ = ["jumps"]

WEB = ServiceKey("shop", "web")
AFTER_S = 10.0
ENDS = ("10.1.0.1", "10.1.0.2", "10.1.0.3")


class World:
    """Answers checks at once: `open` but for those that are named."""

    def __init__(self) -> None:
        self.answers: dict[str, Outcome] = {}
        self.everything: Outcome = "open"
        self.asked: list[Asked] = []
        self._done: list[tuple[Asked, Outcome]] = []
        self.is_closed = False

    def begin(self, asked: Asked, now_s: float) -> None:
        address = ".".join(map(str, asked.data[:4]))
        self.asked.append(asked)
        self._done.append((asked, self.answers.get(address, self.everything)))

    def ended(self, now_s: float) -> Sequence[tuple[Asked, Outcome]]:
        done, self._done = self._done, []
        return done

    def drop(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Ends:
    """A runtime that is told what to say."""

    def __init__(self) -> None:
        self.gone: dict[bytes, str] = {}
        self.bell = asyncio.Event()
        self.fails = 0

    def ended(self) -> Mapping[bytes, str]:
        return self.gone

    async def changes(self) -> AsyncIterator[None]:
        while True:
            if self.fails:
                self.fails -= 1
                raise ValueError("no such thing")
            await self.bell.wait()
            self.bell.clear()
            yield


class Outage:
    def __init__(self, mode: str = "judge") -> None:
        self.node, self.world, self.ends = Node(), World(), Ends()
        self.events: list[Event] = []
        self.keeper = OutageKeeper(
            self.node.plane,
            self.node.clock,
            self.events.append,
            lambda: OutageSettings(mode, AFTER_S),
            lambda: self.world,
            ends=self.ends,
            luck=random.Random(1).random,
        )
        for kind in KINDS:
            self.keeper.heard(kind)

    def put(self, name: str = "web", ip: str = "10.96.0.10", ends: Sequence[object] = ENDS, **spec: Any) -> None:
        self.node.intake.put_service(make_service(name, ip=ip, **spec))
        self.node.intake.put_slice(make_slice(ends, service=name))  # type: ignore[arg-type]
        self.node.intake.complete("services")
        self.node.intake.complete("slices")

    def lose(self) -> None:
        for kind in KINDS:
            self.keeper.lost(kind, f"{kind}: 403 \x1b[2Jforbidden")

    def hear(self) -> None:
        for kind in KINDS:
            self.keeper.heard(kind)

    async def later(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            await self.node.clock.advance(0.1)
        await self.node.sync()

    @property
    def used(self) -> list[str]:
        plan = self.node.plane.families["IPv4"].desired.plan_of(WEB)
        assert plan is not None
        return [one.address for one in plan.ports[0].selection.everyone]

    @property
    def reasons(self) -> list[str]:
        return [one.reason for one in self.events]


@asynccontextmanager
async def running(mode: str = "judge", **spec: Any) -> AsyncIterator[Outage]:
    made = Outage(mode)
    made.put(**spec)
    await made.node.sync()
    task = asyncio.create_task(made.keeper.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_dead_endpoint_gets_no_traffic_while_alone_and_all_of_it_when_the_server_is_back() -> None:
    """SVN-120, SVN-126."""
    async with running() as one:
        fresh = one.node.kernel.tables["IPv4"].copy().content
        one.lose()
        await one.later(AFTER_S + 1)
        one.world.answers["10.1.0.2"] = "refused"
        await one.later(3.0)
        assert one.used == ["10.1.0.1", "10.1.0.3"]
        assert one.reasons == ["ServersSilent", "EndpointsJudged"]
        report = one.keeper.report()
        assert (report.phase, report.checked, report.dead_total) == ("alone", 3, 1)
        assert (report.dead[0].endpoint, report.dead[0].why) == ("10.1.0.2:8080", "it refuses connections")
        assert report.since_s == one.node.clock.wall_s() - (AFTER_S + 4)

        one.hear()
        await one.later(0.1)
        assert one.used == list(ENDS)
        now = one.node.kernel.tables["IPv4"].content
        # The slots of a draw may be in another order.
        assert {name: sorted(found) for name, found in now.items()} == {
            name: sorted(was) for name, was in fresh.items()
        }
        assert {name: sorted(map(str, found.values())) for name, found in now.items()} == {
            name: sorted(map(str, was.values())) for name, was in fresh.items()
        }
        assert one.reasons[-1] == "ServerReturned"
        assert one.world.is_closed


async def test_it_says_why_there_are_no_news() -> None:
    """SVN-125: a server that refuses answers as well. Nothing of what it says acts upon a terminal."""
    async with running("keep") as one:
        one.lose()
        await one.later(1.0)
        assert "no news of Service: Service: 403 ?[2Jforbidden" in one.keeper.report().lines
        await one.later(AFTER_S)
        assert one.events[0].message.startswith("no API server gives news of Services (Service: 403 ?[2Jforbidden); ")
        one.keeper.lost("EndpointSlice", "429")
        assert "no news of EndpointSlice: 429" in one.keeper.report().lines
        one.hear()
        await one.later(0.2)
        assert not [line for line in one.keeper.report().lines if line.startswith("no news")]


async def test_nothing_is_asked_before_the_silence_has_lasted_and_nothing_with_keep() -> None:
    """SVN-125."""
    async with running() as one:
        one.lose()
        await one.later(AFTER_S - 0.2)
        assert (one.world.asked, one.keeper.is_alone) == ([], False)
    async with running("keep") as kept:
        kept.lose()
        await kept.later(AFTER_S + 5)
        assert (kept.world.asked, kept.keeper.is_alone) == ([], True)
        assert kept.reasons == ["ServersSilent"]


async def test_fewer_checks_are_a_matter_of_a_reload() -> None:
    """SVN-121."""
    settings = [OutageSettings("judge", AFTER_S)]
    async with running(ends=[f"10.1.0.{one}" for one in range(1, 200)]) as one:
        one.keeper._settings = lambda: settings[0]
        one.lose()
        await one.later(AFTER_S + 3)
        settings[0] = OutageSettings("judge", AFTER_S, 1.0)
        one.keeper.reloaded()
        before = len(one.world.asked)
        await one.later(10.0)
        assert len(one.world.asked) - before <= 11


async def test_switched_off_it_ends_at_once() -> None:
    made = Outage("off")
    await asyncio.wait_for(made.keeper.run(), 1.0)

    assert made.keeper.report().mode == "off"


async def test_a_network_that_lies_of_all_leaves_all_of_them() -> None:
    """SVN-124: a firewall that resets, one direction lost, servers that are slow."""
    for lie in ("refused", "silent", "unreachable", "unknown"):
        async with running() as one:
            one.world.everything = lie  # type: ignore[assignment]
            one.lose()
            await one.later(AFTER_S + 6)
            assert one.used == list(ENDS), lie


async def test_keys_that_choose_among_few_never_choose_none() -> None:
    """SVN-124: with a key for each node, and with a least number in the zone that only the dead make full."""
    here, near = {"ip": "10.1.0.1", "nodeName": "here"}, {"ip": "10.1.0.2", "nodeName": "here"}
    ends = [here, near, {"ip": "10.1.0.3", "nodeName": "there"}]
    keys = {"kepd.dev/topology-keys": "kubernetes.io/hostname"}
    for least, dead, used in (("1", (1,), [2]), ("1", (1, 2), [1, 2]), ("2", (1,), [2])):
        meta = {"annotations": {**keys, "kepd.dev/topology-min-endpoints": least}}
        async with running(ends=ends, meta=meta) as one:
            assert one.used == ["10.1.0.1", "10.1.0.2"]
            one.lose()
            await one.later(AFTER_S + 1)
            one.world.answers.update({f"10.1.0.{number}": "refused" for number in dead})
            await one.later(3.0)
            assert one.used == [f"10.1.0.{number}" for number in used], (least, dead)


async def test_no_lie_takes_a_node_away_from_a_load_balancer_but_its_own_dead_endpoint_does() -> None:
    """SVN-124."""
    ends = [{"ip": "10.1.0.1", "nodeName": "here"}, {"ip": "10.1.0.2", "nodeName": "there"}]
    outside = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30999}
    for answers, count in (({"10.1.0.1": "refused"}, 0), ({"10.1.0.1": "refused", "10.1.0.2": "silent"}, 1)):
        async with running(ends=ends, status={"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]}}, **outside) as one:
            ports = one.node.plane.families["IPv4"].desired.health_ports
            assert ports[WEB].local_endpoints == 1
            one.world.answers.update(answers)  # type: ignore[arg-type]
            one.lose()
            await one.later(AFTER_S + 4)
            assert ports[WEB].local_endpoints == count


async def test_what_the_runtime_says_of_a_pod_here_counts_at_once() -> None:
    """SVN-130: and says nothing of the same address elsewhere."""
    ends = [{"ip": "10.1.0.1", "nodeName": "here"}, {"ip": "10.1.0.2", "nodeName": "there"}, "10.1.0.3"]
    async with running(ends=ends) as one:
        one.lose()
        await one.later(AFTER_S + 1)
        one.ends.gone = {bytes((10, 1, 0, 1)): "its container main ended", bytes((10, 1, 0, 2)): "x"}
        one.ends.bell.set()
        await one.later(0.1)
        assert one.used == ["10.1.0.2", "10.1.0.3"]
        assert one.keeper.report().dead[0].why == "its container main ended"
        one.ends.gone = {}
        one.ends.bell.set()
        await one.later(0.1)
        assert one.used == list(ENDS)


async def test_a_node_without_a_file_left_checks_later() -> None:
    """SVN-125."""
    async with running() as one:
        made, fails = one.keeper._make_checks, [OSError(errno.EMFILE, "Too many open files")]

        def make() -> Any:
            if fails:
                raise fails.pop()
            return made()

        one.keeper._make_checks = make
        one.lose()
        await one.later(AFTER_S + 1)
        assert one.world.asked == []
        await one.later(TELL_S + 1)
        assert one.world.asked


async def test_who_fails_to_tell_of_pods_here_is_asked_again() -> None:
    """SVN-130."""
    async with running(ends=[{"ip": "10.1.0.1", "nodeName": "here"}, "10.1.0.3"]) as one:
        one.ends.fails = 2
        one.lose()
        one.ends.bell.set()
        await one.later(AFTER_S + 1 + 2 * TELL_S)
        one.ends.gone = {bytes((10, 1, 0, 1)): "its container main ended"}
        one.ends.bell.set()
        await one.later(0.2)
        assert (one.ends.fails, one.used) == (0, ["10.1.0.3"])


async def test_what_the_api_takes_on_the_way_back_stays_away() -> None:
    """SVN-123: while slices speak and Services do not yet."""
    async with running() as one:
        one.lose()
        await one.later(AFTER_S + 1)
        one.keeper.heard("EndpointSlice")
        one.node.intake.put_slice(make_slice(["10.1.0.1", "10.1.0.4"]))
        one.world.answers["10.1.0.4"] = "silent"
        await one.later(GATHER_S + 3)
        assert one.keeper.report().phase == "returning"
        assert one.used == ["10.1.0.1"]
        one.hear()
        await one.later(0.1)
        assert one.used == ["10.1.0.1", "10.1.0.4"]


async def test_who_has_just_begun_takes_the_snapshot_when_the_first_list_is_doubted() -> None:
    """SVN-129: and tells where none is written."""
    made, taken = Outage("keep"), list[bool]()

    async def take() -> None:
        taken.append(True)

    made.keeper.restore, made.keeper.unwritten = take, lambda: "/x: no space"
    task = asyncio.create_task(made.keeper.run())
    made.keeper.doubts("Service", is_doubted=True)
    await made.node.clock.advance(0.1)
    task.cancel()

    assert (taken, made.keeper.report().phase) == ([True], "returning")
    assert "the snapshot is not written: /x: no space" in made.keeper.report().lines[-1]


async def test_of_many_dead_ones_the_first_by_name_are_shown() -> None:
    """SVN-125: none of the others is put into words."""
    async with running() as one:
        for number in range(2):
            ends = [f"10.{number}.2.{end}" for end in range(1, 121)]
            one.put(f"{'ba'[number]}", f"10.96.0.{20 + number}", ends)
        one.world.everything = "refused"
        one.lose()
        await one.later(AFTER_S + 15)
        report = one.keeper.report()
        assert (report.dead_total, len(report.dead)) == (243, 200)
        assert [one.service for one in report.dead] == ["shop/a"] * 120 + ["shop/b"] * 80


async def test_a_snapshot_is_told_of_until_the_server_has_spoken() -> None:
    """SVN-125."""
    async with running("keep") as one:
        one.keeper.began_with(5.0)
        one.lose()
        await one.later(AFTER_S + 1)
        assert one.keeper.report().snapshot_s == 5.0
        one.hear()
        await one.later(0.1)
        assert one.keeper.report().snapshot_s == 0.0


async def test_a_doubted_list_keeps_judging() -> None:
    """SVN-129."""
    async with running() as one:
        one.lose()
        await one.later(AFTER_S + 1)
        one.world.answers["10.1.0.2"] = "refused"
        await one.later(3.0)
        one.hear()
        one.keeper.doubts("EndpointSlice", is_doubted=True)
        await one.later(1.0)
        assert (one.used, one.keeper.report().phase) == (["10.1.0.1", "10.1.0.3"], "returning")
        one.keeper.doubts("EndpointSlice", is_doubted=False)
        await one.later(0.1)
        assert one.used == list(ENDS)

# SPDX-License-Identifier: Apache-2.0
"""Pulls that others make: they wait like all others, and the slot is theirs until the last rider is done."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from agent.config.sections.images import Images
from agent.images.settings import image_settings
from agent.model.images.pull import CallerPullEnd, PodIdentity, PullGivenUp, PullPolicy, PullRequest, PullsAway
from agent.model.images.state import PullStage
from tests.fakes.clock import FakeClock
from tests.fakes.containerd import FakeContainerd
from tests.fakes.cri import FakeCri
from tests.fakes.state_files import FakeStateFiles
from tests.images.harness import build_plane

A, B, C = (f"r.io/{name}:1" for name in "abc")
SLOTS = {"max_parallel_pulls": 1, "critical_reserve": 0, "size_probe": "off"}


class Rider:
    """A kubelet's pull: when it may go, and how it ends."""

    def __init__(self, puller, image: str, pod: str = "p", fingerprint: str = "public") -> None:
        self.may_go, self.answer = asyncio.Event(), asyncio.get_running_loop().create_future()
        request = PullRequest(image=image, policy=PullPolicy.ALWAYS, pod=PodIdentity(pod, "default", pod))
        self.task = asyncio.ensure_future(puller.run_caller_pull(request, fingerprint, self._carry))

    async def _carry(self) -> CallerPullEnd:
        self.may_go.set()
        return await self.answer

    @property
    def is_pulling(self) -> bool:
        return self.may_go.is_set() and not self.task.done()


@asynccontextmanager
async def running(**images):
    clock = FakeClock()
    settings = image_settings(Images(**{**SLOTS, **images}))
    plane = build_plane(FakeCri(), FakeContainerd(), FakeStateFiles(), clock, settings=settings)
    task = asyncio.ensure_future(plane.puller.run(plane.report))
    await clock.advance(0.1)
    try:
        yield plane, clock
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_one_waits_while_another_has_the_slot() -> None:
    """IMG-S01."""
    async with running() as (plane, clock):
        first, second = Rider(plane.puller, A, "p1"), Rider(plane.puller, B, "p2")
        await clock.advance(1)
        assert (first.is_pulling, second.is_pulling) == (True, False)
        stages = {one.image: one.stage for one in plane.puller.pulls.items.values()}
        assert stages == {A: PullStage.DOWNLOADING, B: PullStage.QUEUED}
        first.answer.set_result(CallerPullEnd(image_id="sha256:a"))
        await clock.advance(1)

        assert (first.task.done(), second.is_pulling) == (True, True)
        assert {one.image: one.stage for one in plane.puller.pulls.items.values()}[A] is PullStage.DONE
        second.answer.set_result(CallerPullEnd(image_id="sha256:b"))
        await second.task


async def test_those_who_want_the_same_ride_together_and_the_last_one_frees_the_slot() -> None:
    """IMG-X08: one that comes later joins too."""
    async with running() as (plane, clock):
        riders = [Rider(plane.puller, A, "p1"), Rider(plane.puller, A, "p2")]
        await clock.advance(1)
        riders.append(Rider(plane.puller, A, "p3"))
        other = Rider(plane.puller, B, "p4")
        await clock.advance(1)
        assert [one.is_pulling for one in riders] == [True] * 3
        for rider in riders[:2]:
            rider.answer.set_result(CallerPullEnd(image_id="sha256:a"))
        await clock.advance(1)
        assert not other.is_pulling
        riders[2].answer.set_result(CallerPullEnd(image_id="sha256:a"))
        await clock.advance(1)

        assert other.is_pulling
        other.answer.set_result(CallerPullEnd())
        await other.task


async def test_other_credentials_are_another_flight() -> None:
    """IMG-X08."""
    async with running() as (plane, clock):
        first, second = Rider(plane.puller, A, "p1", "key1"), Rider(plane.puller, A, "p2", "key2")
        await clock.advance(1)

        assert (first.is_pulling, second.is_pulling) == (True, False)
        first.answer.set_result(CallerPullEnd())
        await clock.advance(1)
        second.answer.set_result(CallerPullEnd())
        await second.task


async def test_the_next_credential_of_a_pod_keeps_its_place() -> None:
    """IMG-X06: within five seconds, not after."""
    for pause_s, expected in ((1.0, True), (6.0, False)):
        async with running() as (plane, clock):
            early, blocker = Rider(plane.puller, A, "early"), None
            await clock.advance(1)
            early.answer.set_result(CallerPullEnd(error="unauthorized"))
            await early.task
            blocker = Rider(plane.puller, C, "blocker")
            await clock.advance(0.5)
            other = Rider(plane.puller, B, "other")
            await clock.advance(pause_s)
            again = Rider(plane.puller, A, "early", "key2")
            await clock.advance(0.1)
            blocker.answer.set_result(CallerPullEnd())
            await clock.advance(0.1)

            assert (again.is_pulling, other.is_pulling) == (expected, not expected)
            for one in (again, other):
                one.answer.set_result(CallerPullEnd())
            await clock.advance(0.1)


async def test_what_was_fetched_ahead_meanwhile_needs_no_slot_where_the_pod_asks_for_no_fresh_one() -> None:
    """IMG-X07, IMG-S06: a kubelet's pull does not say its policy; pods that are followed tell it."""
    async with running() as (plane, clock):
        fetched = asyncio.Event()

        async def fetching(_image, _auth) -> None:
            await fetched.wait()

        plane.intake._runtime.registry.add(A)
        plane.intake._runtime.while_pulling = fetching
        plane.puller.caller_pulls._pods.replace([("known", 0, A, PullPolicy.IF_NOT_PRESENT)])
        ahead = PullRequest(image=A, policy=PullPolicy.IF_NOT_PRESENT, is_prefetch=True)
        prefetch = asyncio.ensure_future(plane.puller.request(ahead))
        await clock.advance(1)
        other, known = Rider(plane.puller, B, "x"), Rider(plane.puller, A, "known")
        fresh = Rider(plane.puller, A, "y", "key")
        await clock.advance(1)
        assert [one.is_pulling for one in (other, known, fresh)] == [False] * 3
        fetched.set()
        assert (await prefetch).is_ok
        await clock.advance(1)

        assert [one.is_pulling for one in (other, known, fresh)] == [True, True, False]
        stages = [one.stage for one in plane.puller.pulls.items.values()]
        assert sorted(stages) == [PullStage.DONE, PullStage.DONE, PullStage.DOWNLOADING, PullStage.QUEUED]
        for one in (known, other, fresh):
            one.answer.set_result(CallerPullEnd(image_id="sha256:a"))
            await one.task
        await clock.advance(1)
        assert {one.stage for one in plane.puller.pulls.items.values()} == {PullStage.DONE}
        assert plane.told.reasons() == ["Pulling", "Pulled"]  # of the prefetch; a kubelet tells its own


async def test_pods_that_are_known_have_their_priority() -> None:
    """IMG-X07: a kubelet's pull carries none; pods that are followed tell it, and all others have 0."""
    async with running() as (plane, clock):
        plane.puller.caller_pulls._pods.replace([("urgent", 1_000_000, C, PullPolicy.ALWAYS)])
        first, second, urgent = (Rider(plane.puller, image, pod) for image, pod in ((A, "a"), (B, "b"), (C, "urgent")))
        await clock.advance(1)
        first.answer.set_result(CallerPullEnd())
        await clock.advance(1)

        assert (urgent.is_pulling, second.is_pulling) == (True, False)
        for one in (urgent, second):
            one.answer.set_result(CallerPullEnd())
            await one.task


async def test_who_gives_up_leaves_the_line_or_the_slot() -> None:
    """IMG-X05."""
    async with running() as (plane, clock):
        first, second, third = (Rider(plane.puller, image, image) for image in (A, B, C))
        await clock.advance(1)
        second.task.cancel()
        first.task.cancel()
        await clock.advance(1)

        assert third.is_pulling
        third.answer.set_result(CallerPullEnd())
        await third.task


async def test_a_pod_that_is_gone_and_a_person_end_a_ride() -> None:
    """IMG-S17, IMG-X04: waiting or under way."""
    async with running() as (plane, clock):
        first, second = Rider(plane.puller, A, "p1"), Rider(plane.puller, B, "p2")
        await clock.advance(1)
        plane.puller.pod_gone("p2")
        (running_id,) = [one.id for one in plane.puller.pulls.items.values() if one.image == A]
        assert plane.puller.cancel(running_id)
        await clock.advance(1)
        with pytest.raises(PullGivenUp, match="its pod is gone"):
            await second.task
        with pytest.raises(PullGivenUp, match="the pull was cancelled"):
            await first.task
        third = Rider(plane.puller, C, "p3")
        await clock.advance(1)

        assert third.is_pulling
        third.answer.set_result(CallerPullEnd())
        await third.task


async def test_without_a_queue_nobody_waits() -> None:
    """IMG-X12: before it runs, when it ends, and for names it cannot read."""
    clock = FakeClock()
    plane = build_plane(FakeCri(), FakeContainerd(), FakeStateFiles(), clock, settings=image_settings(Images()))
    with pytest.raises(PullsAway):
        await Rider(plane.puller, A).task
    async with running() as (plane, clock):
        with pytest.raises(PullsAway):
            await Rider(plane.puller, "Not/A Name").task
        Rider(plane.puller, A, "p1").answer.cancel()
        first, waiting = Rider(plane.puller, B, "p2"), Rider(plane.puller, C, "p3")
        await clock.advance(1)
    with pytest.raises(PullsAway):
        await waiting.task
    first.task.cancel()


async def test_kepd_s_own_pulls_stand_in_the_same_line() -> None:
    """IMG-S01."""
    async with running() as (plane, clock):
        kubelet = Rider(plane.puller, A, "p1")
        await clock.advance(1)
        own = asyncio.ensure_future(plane.puller.request(PullRequest(image=B, policy=PullPolicy.IF_NOT_PRESENT)))
        await clock.advance(1)
        assert not own.done()
        kubelet.answer.set_result(CallerPullEnd())
        await clock.advance(1)

        assert own.done()

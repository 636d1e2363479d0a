# SPDX-License-Identifier: Apache-2.0
"""Health of devices as drivers in processes of their own tell it: true, false, too much, never, and no more."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.model.devices.plugin import ToldHealth
from agent.model.runtime.error import Unavailable
from kepd_devices.plan.health import MOST_DEVICES, BadHealth, HealthTable
from kepd_devices.run.drivers.driver_health import DriverHealth
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.view import DeviceView
from packages.devices.tests.fakes import LateClock
from packages.devices.tests.test_claims import held, shared_pod
from packages.devices.tests.test_pod_status import state_of
from packages.devices.tests.test_registry import DRIVER, Drivers
from tests.fakes.jumping import jumps

__all__ = ["jumps"]


def told(device: str, status: str = "Healthy", **more: Any) -> ToldHealth:
    return ToldHealth(pool="here", device=device, status=status, **more)


@pytest.fixture
async def drivers(short_path: Path) -> AsyncIterator[Drivers]:
    made = Drivers(short_path)
    await made.begin()
    objects = made.claims.objects
    (one,) = objects.slices
    made.claims.take(replace(objects, slices=(replace(one, spec=replace(one.spec, devices=one.spec.devices[:1])),)))
    yield made
    await made.end()


def go_on(drivers: Drivers) -> None:
    (drivers.folder / "go-on").touch()


def view(drivers: Drivers) -> DeviceView:
    return DeviceView(drivers.claims, {}, drivers.registry)


async def states(drivers: Drivers) -> dict[str, tuple[str, str]]:
    return {one.name.rpartition("/")[2]: (one.state, one.message) async for _, one in view(drivers).devices("")}


def status(drivers: Drivers) -> str:
    return view(drivers).with_devices(state_of(shared_pod("one"))).containers[0].devices[0].health


async def known(drivers: Drivers, wanted: str) -> None:
    await drivers.until(lambda: wanted in drivers.registry.drivers[DRIVER].health.problem, wanted)


class TestTable:
    """What counts of what is told."""

    def test_what_is_not_told_again_is_not_known(self) -> None:
        """DVX-6: after the time that the driver names, or after half a minute."""
        table = HealthTable()
        table.take([told("a", timeout_s=60), told("b", "Unhealthy", message="hot"), told("c", timeout_s=-1)], 100)

        assert [table.of(("here", one), 129).status for one in "abc"] == ["Healthy", "Unhealthy", "Healthy"]
        assert [table.of(("here", one), 131).status for one in "abcd"] == ["Healthy", "Unknown", "Unknown", "Unknown"]
        assert table.of(("here", "b"), 129).message == "hot"
        assert list(table.unhealthy(129)) == [("here", "b")]

    def test_no_driver_tells_what_holds_for_ever(self) -> None:
        """DVX-6: a time that is none is half a minute."""
        table = HealthTable()
        table.take([told("a", timeout_s=1e12)], 100)

        assert [table.of(("here", "a"), at_s).status for at_s in (129, 131)] == ["Healthy", "Unknown"]

    def test_only_a_change_to_unhealthy_or_back_is_one(self) -> None:
        table = HealthTable()
        seen = [
            table.take([told("a", one), told("b")], 100)
            for one in ("Unknown", "Healthy", "Unhealthy", "Unhealthy", "Unknown")
        ]

        assert seen == [[], [], [("here", "a")], [], [("here", "a")]]

    def test_it_is_bounded_over_all_messages(self) -> None:
        """DVV-11: what is not known any more makes room."""
        table = HealthTable()
        table.take([told(f"a{number}") for number in range(MOST_DEVICES)], 100)
        with pytest.raises(BadHealth, match="more than 4096 devices"):
            table.take([told("b")], 100)
        table.take([told("b")], 200)

        assert table.of(("here", "b"), 200).status == "Healthy"


class Failing:
    """A stream that fails, and says when it was asked."""

    def __init__(self, clock: LateClock) -> None:
        self.clock = clock
        self.asked_s: list[float] = []

    async def health(self) -> AsyncIterator[list[ToldHealth]]:
        self.asked_s.append(self.clock.ahead_s)
        if len(self.asked_s) == 8:
            self.clock.ahead_s += 100
        for _ in self.asked_s:
            raise Unavailable("NodeWatchResources", "away", "UNAVAILABLE")
        yield []


async def test_a_stream_that_fails_is_begun_anew_after_growing_pauses() -> None:
    """DVX-6: at most a minute, and soon where it lasted."""

    class Clock(LateClock):
        async def sleep(self, duration_s: float) -> None:
            self.ahead_s += duration_s
            await asyncio.sleep(0)

    clock = Clock()
    stream = Failing(clock)
    health = DriverHealth(DRIVER, clock, lambda _driver, _keys: None, lambda: None)
    health.follow(stream)
    while len(stream.asked_s) < 10:
        await asyncio.sleep(0)
    await health.close()

    pauses = [round(after - before) for before, after in zip(stream.asked_s, stream.asked_s[1:], strict=False)]
    assert pauses[:9] == [1, 2, 4, 8, 16, 32, 60, 101, 2]
    assert health.problem == ""


async def test_an_unhealthy_device_is_shown_told_and_given_to_nobody(drivers: Drivers) -> None:
    """DVX-1, DVX-4 to DVX-6: who has it goes on with it."""
    drivers.start(health=[{"gpu-0": "HEALTHY"}, "wait", {"gpu-0": "UNHEALTHY"}, "wait", {"gpu-0": "HEALTHY"}])
    await drivers.registered()
    assert await held(drivers.claims, shared_pod("one")) == ""
    await drivers.until(lambda: status(drivers) == "Healthy", "healthy")
    news: list[bool] = []
    drivers.claims.changed = lambda: news.append(True)
    go_on(drivers)
    await drivers.until(lambda: status(drivers) == "Unhealthy", "unhealthy")
    await drivers.until(lambda: "DeviceUnhealthy" in drivers.reasons, "told")
    shown = await states(drivers)
    metrics = DeviceMetrics()
    metrics.devices = view(drivers).count_devices
    figures = {tuple(one.labels.values()): one.value for it in metrics.families() for one in it.samples}
    await drivers.claims.release("uid-one")
    why = await held(drivers.claims, shared_pod("two"))
    explained = await view(drivers).explain("default", "gpus", is_pod=False)
    news.clear()
    go_on(drivers)
    await drivers.until(lambda: news, "those that wait are told")
    again = await held(drivers.claims, shared_pod("two"))

    (event,) = [one for one in drivers.told if one.reason == "DeviceUnhealthy"]
    assert event.message == (
        "device gpu.example.com/here/gpu-0, which claim default/gpus has, is unhealthy: too hot?[31m"
    )
    assert (event.namespace, event.object_name) == ("default", "gpus")
    assert shown["gpu-0"] == ("unhealthy", "too hot?[31m")
    assert figures[DRIVER, "unhealthy"] == 1
    assert "1 unhealthy" in why
    assert [one.reason for it in explained.requests for one in it.devices] == ["unhealthy"]
    assert "for 1 device, their driver would have to tell that they are well" in explained.changes
    assert again == ""


@pytest.mark.parametrize(
    ("acts", "complaint"),
    [
        (["flood"], "it tells of 10000 devices at once; expected at most 4096"),
        (["garbage"], "it tells of device 'here/?[31mgpu', which is no name"),
        (["end"], "it ended its stream"),
        (["refuse"], "no sensor?[31m"),
    ],
)
async def test_what_cannot_be_is_told_and_hurts_nothing_else(drivers: Drivers, acts: list[str], complaint: str) -> None:
    """DVF-5, DVF-6, DVV-11: on the board and in the list of drivers; claims are prepared all the same."""
    drivers.start(health=[*acts, {"gpu-0": "UNHEALTHY"}])
    await drivers.registered()
    await known(drivers, complaint)
    listed = view(drivers).drivers()[0].last_error
    assert await held(drivers.claims, shared_pod("one")) == ""
    await drivers.until(lambda: complaint in drivers.board.line("device-drivers").message, "told on the board")
    await drivers.until(lambda: status(drivers) == "Unhealthy", "asked again")

    assert complaint in listed
    assert "\x1b" not in drivers.board.line("device-drivers").message
    assert drivers.registry.drivers[DRIVER].health.problem == ""
    assert drivers.calls().count("health") == 2


async def test_a_driver_that_says_nothing_more_is_not_believed_for_long(drivers: Drivers) -> None:
    """DVX-6: it hangs, and its devices are not known."""
    drivers.start(health=[{"gpu-0": "UNHEALTHY"}], timeout=1)
    await drivers.registered()
    await drivers.until(lambda: drivers.registry.unhealthy(), "told")
    await drivers.until(lambda: not drivers.registry.unhealthy(), "stale")

    assert await held(drivers.claims, shared_pod("one")) == ""
    assert status(drivers) == "Unknown"


async def test_a_driver_that_flickers_is_read_and_told_of_rarely(drivers: Drivers) -> None:
    """DVF-5: one event, ten changes a second at most, and others are served meanwhile."""
    drivers.start(health=["flicker", {"gpu-0": "HEALTHY"}])
    await drivers.registered()
    news: list[bool] = []
    drivers.claims.changed = lambda: news.append(True)
    began_s = drivers.clock.now_s()
    # It is given while it is well; who asks while it is not asks again.
    await drivers.until(lambda: news, "flickers")
    while await held(drivers.claims, shared_pod("one")):
        await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    seconds = drivers.clock.now_s() - began_s

    assert drivers.reasons.count("DeviceUnhealthy") <= 1
    # Preparations ring too.
    assert len(news) <= 10 * seconds + 5


async def test_a_driver_that_dies_is_asked_anew_when_it_is_back(drivers: Drivers) -> None:
    """DVX-6: by whoever registers next, at once."""
    first = drivers.start(health=[{"gpu-0": "UNHEALTHY"}, "wait", "die"])
    await drivers.registered()
    await drivers.until(lambda: drivers.registry.unhealthy(), "told")
    go_on(drivers)
    first.wait()
    for one in (f"{DRIVER}.calls", f"{DRIVER}.sock", f"r/{DRIVER}-reg.sock"):
        (drivers.folder / one).unlink(missing_ok=True)
    await drivers.until(lambda: not drivers.registry.drivers[DRIVER].instances, "away")
    still = drivers.registry.unhealthy()
    drivers.start(health=[{"gpu-0": "HEALTHY"}])
    await drivers.until(lambda: not drivers.registry.unhealthy(), "well")

    assert len(still) == 1
    assert drivers.calls()[:1] != []


async def test_who_does_not_offer_health_is_not_asked(drivers: Drivers) -> None:
    """DVX-6."""
    drivers.start()
    await drivers.registered()
    assert await held(drivers.claims, shared_pod("one")) == ""

    assert status(drivers) == "Unknown"
    assert drivers.registry.drivers[DRIVER].health.problem == ""
    assert "health" not in drivers.calls()


async def test_nothing_goes_on_when_the_registry_ends(drivers: Drivers) -> None:
    """DVM-1: no stream, and no task of one."""
    process: subprocess.Popen[bytes] = drivers.start(health=[{"gpu-0": "HEALTHY"}])
    await drivers.registered()
    await drivers.until(lambda: "health" in drivers.calls(), "asked")
    drivers.task.cancel()
    await asyncio.wait([drivers.task])

    assert process.poll() is None
    assert [one.get_name() for one in asyncio.all_tasks() if "health of" in one.get_name()] == []

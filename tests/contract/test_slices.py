# SPDX-License-Identifier: Apache-2.0
"""Slices of systemd: the fake and the driver on a real bus do the same.

The other end of the bus is a double (tests/logind.py): the real systemd is asked in the virtual machine (tests/vm).
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.slices.driver import SystemdSlices
from tests.contract.fake_slices import FakeSlices
from tests.logind import LogindDouble

UNIT = "kepd-burstable-podab_c.slice"


@pytest.fixture(params=["fake", "bus"])
async def both(request: pytest.FixtureRequest, short_path: Path) -> AsyncIterator[tuple[Any, Callable[[], Any]]]:
    """The slices, and what systemd has of them."""
    if request.param == "fake":
        fake = FakeSlices()
        yield fake, lambda: fake.held
        return
    with LogindDouble(short_path) as double:
        slices = SystemdSlices(double.address)
        yield slices, lambda: double.systemd.slices
        await slices.close()


async def test_a_slice_has_what_it_was_given_last(both: tuple[Any, Callable[[], Any]]) -> None:
    """RES-09: the second time it is there already."""
    slices, held = both
    await slices.hold(UNIT, [("CPUWeight", 4), ("MemoryMax", 64 << 20)])
    await slices.hold(UNIT, [("CPUWeight", 4), ("MemoryMax", 32 << 20)])

    assert held() == {UNIT: {"CPUWeight": 4, "MemoryMax": 32 << 20}}


async def test_a_slice_that_ends_is_gone_and_one_that_is_not_there_is_fine(both: tuple[Any, Callable[[], Any]]) -> None:
    slices, held = both
    await slices.hold(UNIT, [("CPUWeight", 4)])
    await slices.stop(UNIT)
    await slices.stop(UNIT)
    await slices.stop("kepd-besteffort-podnone.slice")

    assert held() == {}


async def test_a_slice_that_ended_is_made_again(both: tuple[Any, Callable[[], Any]]) -> None:
    slices, held = both
    await slices.hold(UNIT, [("CPUWeight", 4)])
    await slices.stop(UNIT)
    await slices.hold(UNIT, [("CPUWeight", 4)])

    assert held() == {UNIT: {"CPUWeight": 4}}


async def test_what_stands_is_not_asked_for_again_but_where_it_was_lost(short_path: Path) -> None:
    """RES-09: a pod's containers come and go, its slice stays."""
    with LogindDouble(short_path) as double:
        slices = SystemdSlices(double.address)
        await slices.hold(UNIT, [("TasksMax", 50)])
        double.systemd.slices[UNIT].clear()
        await slices.hold(UNIT, [("TasksMax", 50)])
        assert double.systemd.slices[UNIT] == {}
        await slices.hold(UNIT, [("TasksMax", 50)], anew=True)
        await slices.close()

        assert double.systemd.slices[UNIT] == {"TasksMax": 50}


async def test_a_bus_that_was_started_anew_is_found_again(short_path: Path) -> None:
    """What was said over the old connection is said again: its other end may be another."""
    with LogindDouble(short_path) as double:
        slices = SystemdSlices(double.address)
        await slices.hold(UNIT, [("TasksMax", 50)])
        double.stop()
        double.stop_bus()
        with pytest.raises(OSError, match="system bus"):
            await slices.hold(UNIT, [("TasksMax", 60)])
        double.start_bus()
        double.start()
        await slices.hold(UNIT, [("TasksMax", 60)])
        await slices.close()

        assert double.systemd.slices == {UNIT: {"TasksMax": 60}}

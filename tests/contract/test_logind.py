# SPDX-License-Identifier: Apache-2.0
"""logind: what the shutdown of a node relies on holds for the fake, and for the driver on a real bus.

The other end of the bus is a double (tests/logind.py): the real logind needs systemd as PID 1.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.logind.driver import Logind
from tests.fake_logind import FakeLogind
from tests.logind import LogindDouble

WITHIN_S = 30.0


class Both:
    """The driver or the fake, and what logind itself sees and does."""

    def __init__(self, logind: Any, double: Any) -> None:
        self.logind = logind
        self.double = double

    def announce(self, *, is_preparing: bool) -> None:
        self.double.announce(is_preparing=is_preparing)

    def restart(self) -> None:
        if isinstance(self.double, LogindDouble):
            self.double.stop()
            self.double.start()
        else:
            self.double.restart()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not condition():
                await asyncio.sleep(0.01)


@contextmanager
def fake() -> Any:
    logind = FakeLogind()
    yield Both(logind, logind)


@contextmanager
def real(folder: Path) -> Any:
    with LogindDouble(folder) as double:
        yield Both(Logind(double.address, double.drop_ins), double)


@pytest.fixture(params=["fake", "bus"])
async def both(request: pytest.FixtureRequest, short_path: Path) -> AsyncIterator[Both]:
    with fake() if request.param == "fake" else real(short_path) as made:
        yield made
        made.logind.drop_lock()
        await made.logind.close()


async def test_a_lock_is_held_until_it_is_dropped(both: Both) -> None:
    """NSD-01."""
    await both.logind.connect()
    await both.logind.take_lock()
    assert both.double.is_locked
    await both.logind.take_lock()
    both.logind.drop_lock()
    await both.until(lambda: not both.double.is_locked)
    both.logind.drop_lock()
    await both.logind.take_lock()

    assert both.double.is_locked


async def test_a_lock_outlives_its_connection(both: Both) -> None:
    """A bus that is started anew is no reason to let the node go down."""
    await both.logind.connect()
    await both.logind.take_lock()
    await both.logind.close()

    assert both.double.is_locked


async def test_news_begin_with_what_is_and_go_on_with_what_changes(both: Both) -> None:
    await both.logind.connect()
    async with asyncio.timeout(WITHIN_S), aclosing(both.logind.news()) as news:
        heard = [await anext(news)]
        for is_preparing in (True, False, True):
            both.announce(is_preparing=is_preparing)
            heard.append(await anext(news))

    assert heard == [False, True, False, True]


async def test_whoever_comes_during_a_shutdown_hears_of_it_and_gets_no_lock(both: Both) -> None:
    await both.logind.connect()
    both.announce(is_preparing=True)
    await both.logind.connect()
    async with asyncio.timeout(WITHIN_S), aclosing(both.logind.news()) as news:
        assert await anext(news) is True
        with pytest.raises(OSError, match=r"org\.freedesktop\.login1 refused Inhibit"):
            await both.logind.take_lock()


async def test_a_logind_that_is_started_anew_ends_the_news(both: Both) -> None:
    """It has forgotten every lock, so one has to be taken again."""
    await both.logind.connect()
    async with asyncio.timeout(WITHIN_S), aclosing(both.logind.news()) as news:
        await anext(news)
        both.restart()
        with pytest.raises(ConnectionError, match="systemd-logind ended or was restarted"):
            await anext(news)
    await both.logind.connect()
    both.logind.drop_lock()
    await both.logind.take_lock()

    assert both.double.is_locked


async def test_the_longest_delay_can_be_raised(both: Both) -> None:
    """NSD-01."""
    await both.logind.connect()
    assert await both.logind.longest_delay_s() == 5
    await both.logind.raise_longest_delay(90.0)

    assert await both.logind.longest_delay_s() == 90


async def test_a_machine_that_ends_its_units_says_so_also_without_a_connection(both: Both) -> None:
    """FP-31: logind itself may have ended by then."""
    assert not await both.logind.is_going_down()
    both.double.is_stopping = True

    assert await both.logind.is_going_down()


async def test_without_a_connection_every_call_says_so(both: Both) -> None:
    for call in (both.logind.take_lock, both.logind.longest_delay_s, lambda: anext(both.logind.news())):
        with pytest.raises(ConnectionError, match="not connected to the system bus"):
            await call()


class TestTheDriver:
    """What only a real bus can do."""

    async def test_a_bus_that_is_not_there(self, short_path: Path) -> None:
        with pytest.raises(OSError, match="no connection to the system bus"):
            await Logind(f"unix:path={short_path}/none").connect()

    async def test_a_bus_that_breaks_ends_the_news(self, short_path: Path) -> None:
        with LogindDouble(short_path) as double:
            logind = Logind(double.address, double.drop_ins)
            await logind.connect()
            async with asyncio.timeout(WITHIN_S), aclosing(logind.news()) as news:
                await anext(news)
                double.stop()
                double.stop_bus()
                with pytest.raises(ConnectionError):
                    await anext(news)
            await logind.close()

    async def test_a_bus_without_logind_says_who_is_missing(self, short_path: Path) -> None:
        with LogindDouble(short_path) as double:
            double.stop()
            logind = Logind(double.address, double.drop_ins)
            await logind.connect()
            with pytest.raises(OSError, match=r"org\.freedesktop\.login1 refused Get: .*org\.freedesktop\.login1"):
                await logind.longest_delay_s()
            await logind.close()

    async def test_the_drop_in_is_one_file_that_says_whose_it_is(self, short_path: Path) -> None:
        with LogindDouble(short_path) as double:
            logind = Logind(double.address, double.drop_ins)
            await logind.connect()
            await logind.raise_longest_delay(29.5)
            await logind.raise_longest_delay(40.0)
            asked = double.manager.asked
            await logind.take_lock()
            logind.drop_lock()
            await logind.close()

        (path,) = double.drop_ins.iterdir()
        assert path.read_text() == ("# Written by kepd: what pods.shutdown needs.\n[Login]\nInhibitDelayMaxSec=40\n")
        assert asked == [("shutdown", "kepd", "pods end in their order", "delay")]

    async def test_a_drop_in_that_cannot_be_written_names_the_file(self, short_path: Path) -> None:
        with LogindDouble(short_path) as double:
            (short_path / "file").write_text("")
            logind = Logind(double.address, short_path / "file" / "logind.conf.d")
            await logind.connect()
            with pytest.raises(OSError, match=r"99-kepd\.conf cannot be written: Not a directory"):
                await logind.raise_longest_delay(40.0)
            await logind.close()

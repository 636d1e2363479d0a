# SPDX-License-Identifier: Apache-2.0
"""Clock and service manager: what the rest relies on holds for the real ones and for the fakes."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from agent.drivers.pressure.driver import KernelPressure
from agent.drivers.systemd.driver import ServiceManager, activated_socket
from tests.contract.fake_pressure import FakePressure
from tests.fakes.clock import FakeClock
from tests.host.fake_service_manager import FakeServiceManager


@pytest.fixture(params=["real", "fake"])
def clock(request: pytest.FixtureRequest) -> Any:
    return SystemClock() if request.param == "real" else FakeClock()


async def pass_time(clock: Any, duration_s: float) -> None:
    if isinstance(clock, FakeClock):
        await clock.advance(duration_s)
    else:
        await asyncio.sleep(duration_s)


async def test_sleepers_wake_in_the_order_of_their_times(clock: Any) -> None:
    woken: list[str] = []

    async def sleeper(name: str, duration_s: float) -> None:
        await clock.sleep(duration_s)
        woken.append(name)

    before_s, wall_s = clock.now_s(), clock.wall_s()
    async with asyncio.TaskGroup() as group:
        for name, duration_s in (("late", 0.06), ("at once", 0.0), ("soon", 0.03)):
            group.create_task(sleeper(name, duration_s))
        await pass_time(clock, 0.1)

    assert woken == ["at once", "soon", "late"]
    assert clock.now_s() - before_s >= 0.06
    assert clock.wall_s() > wall_s


async def test_a_cancelled_sleeper_harms_nobody(clock: Any) -> None:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(clock.sleep(0.02))
        await asyncio.sleep(0)
        task.cancel()
        await pass_time(clock, 0.05)

    assert task.cancelled()


class Manager:
    """A manager under test, and what it was told in words."""

    def __init__(self, manager: Any, told: Callable[[], list[str]]) -> None:
        self.manager = manager
        self.told = told


@pytest.fixture(params=["real", "real abstract", "fake"])
def manager(request: pytest.FixtureRequest, short_path: Path) -> Iterator[Manager]:
    if request.param == "fake":
        fake = FakeServiceManager(watchdog_s=30.0)
        yield Manager(fake, lambda: fake.messages)
        return
    name = f"@kepd-test-{os.getpid()}" if "abstract" in request.param else str(short_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind(name.replace("@", "\0", 1) if name.startswith("@") else name)
        inbox.setblocking(False)

        def told() -> list[str]:
            messages = []
            while True:
                try:
                    messages.append(inbox.recv(4096).decode())
                except BlockingIOError:
                    return messages

        real = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())})
        yield Manager(real, told)


def test_the_words_of_the_protocol(manager: Manager) -> None:
    manager.manager.ready("up")
    manager.manager.status("busy")
    manager.manager.reloading()
    manager.manager.alive()
    manager.manager.extend_timeout(2.0)
    manager.manager.stopping()
    words = [message.partition("=")[0] for message in manager.told()]

    assert words == ["READY", "STATUS", "RELOADING", "WATCHDOG", "EXTEND_TIMEOUT_USEC", "STOPPING"]
    assert manager.manager.watchdog_s == 30.0


def test_without_a_manager_or_for_another_process_there_is_nothing_to_do() -> None:
    alone = ServiceManager({})
    alone.ready("nobody hears")
    other = ServiceManager({"NOTIFY_SOCKET": "/nonexistent", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"})
    other.alive()

    assert alone.watchdog_s is None
    assert other.watchdog_s is None
    assert activated_socket({"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "api"}, "api") is None


def test_pressure_is_told_in_the_kernels_words(tmp_path: Path) -> None:
    """IMG-N02: the same words by the fake, by this kernel, and none by a kernel that has no such files."""
    told = KernelPressure().texts()
    words = [line.split("=")[0] for line in "".join(FakePressure().texts()).splitlines()]

    assert KernelPressure(tmp_path).texts() == ("", "")
    assert told == ("", "") or [line.split("=")[0] for line in "".join(told).splitlines()] == words

# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the size probe: registries on loopback, a clock that stands still, and the driver."""

from collections.abc import AsyncIterator

import pytest

from agent.drivers.registry.driver import RegistrySizes
from tests.drivers.registry.registry_server import RegistryServer, serving
from tests.fakes.clock import FakeClock

QUICK = {"connect_s": 0.5, "probe_s": 1.0}


@pytest.fixture
async def registry() -> AsyncIterator[RegistryServer]:
    """A registry."""
    async with serving() as running:
        yield running


@pytest.fixture
async def stranger() -> AsyncIterator[RegistryServer]:
    """Another one; another port makes it another host for credentials."""
    async with serving() as running:
        yield running


@pytest.fixture
def clock() -> FakeClock:
    """Time for who rests how long; deadlines run on real time."""
    return FakeClock()


@pytest.fixture
async def sizes(clock: FakeClock) -> AsyncIterator[RegistrySizes]:
    """The driver of an amd64 machine."""
    driver = RegistrySizes(machine="x86_64", clock=clock, **QUICK)
    yield driver
    await driver.close()

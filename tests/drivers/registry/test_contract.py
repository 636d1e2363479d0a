# SPDX-License-Identifier: Apache-2.0
"""What whoever asks for sizes may count on, with a registry on loopback."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from agent.drivers.registry.driver import RegistrySizes
from agent.images.ports import SizeProbe
from agent.model.images.credential import Credential, SecretText
from tests.drivers.registry.registry_server import RegistryServer, manifest_of
from tests.fakes.clock import FakeClock

LOGIN = Credential(username="paul", password=SecretText("right"))
OTHER = Credential(username="paul", password=SecretText("wrong"))
IMAGE_BYTES = 5_010


class World:
    """A registry with `open:1`, and whoever asks it."""

    def __init__(self, clock: FakeClock, registry: RegistryServer) -> None:
        self._driver = RegistrySizes(machine="x86_64", clock=clock)
        self._registry = registry
        registry.put("open", "1", manifest_of(10, 5_000))
        self.address = registry.address
        self.probe: SizeProbe = self._driver

    def lock(self) -> None:
        self._registry.asks, self._registry.login = "bearer", ("paul", "right")

    def break_down(self, *, is_broken: bool) -> None:
        self._registry.fault = self._broken if is_broken else None

    @staticmethod
    async def _broken(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    async def close(self) -> None:
        await self._driver.close()


@pytest.fixture
async def world(clock: FakeClock, registry: RegistryServer) -> AsyncIterator[World]:
    made = World(clock, registry)
    yield made
    await made.close()


async def test_size_of_an_open_image(world: World) -> None:
    assert await world.probe.size_bytes(f"{world.address}/open:1", None) == IMAGE_BYTES
    assert await world.probe.size_bytes(f"{world.address}/open:1", LOGIN) == IMAGE_BYTES


async def test_unknown_image_has_no_size_and_costs_the_others_nothing(world: World) -> None:
    assert await world.probe.size_bytes(f"{world.address}/none:1", None) is None
    assert await world.probe.size_bytes(f"{world.address}/open:1", None) == IMAGE_BYTES


@pytest.mark.parametrize("name", ["", "UPPER/case", "a b", "registry.test/x:"])
async def test_name_that_is_none_has_no_size(world: World, name: str) -> None:
    assert await world.probe.size_bytes(name, None) is None


async def test_closed_image_is_told_to_who_has_the_login(world: World) -> None:
    world.lock()

    assert await world.probe.size_bytes(f"{world.address}/open:1", LOGIN) == IMAGE_BYTES


@pytest.mark.parametrize("credential", [None, OTHER])
async def test_refusal_makes_the_registry_rest(world: World, clock: FakeClock, credential: Credential | None) -> None:
    world.lock()
    assert await world.probe.size_bytes(f"{world.address}/open:1", credential) is None
    assert await world.probe.size_bytes(f"{world.address}/open:1", LOGIN) is None
    await clock.advance(60)

    assert await world.probe.size_bytes(f"{world.address}/open:1", LOGIN) == IMAGE_BYTES


async def test_broken_registry_rests_and_is_asked_again(world: World, clock: FakeClock) -> None:
    world.break_down(is_broken=True)
    assert await world.probe.size_bytes(f"{world.address}/open:1", None) is None
    world.break_down(is_broken=False)
    assert await world.probe.size_bytes(f"{world.address}/open:1", None) is None
    await clock.advance(60)

    assert await world.probe.size_bytes(f"{world.address}/open:1", None) == IMAGE_BYTES


async def test_after_close_there_is_no_size(world: World) -> None:
    await world.close()

    assert await world.probe.size_bytes(f"{world.address}/open:1", None) is None

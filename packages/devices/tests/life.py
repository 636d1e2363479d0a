# SPDX-License-Identifier: Apache-2.0
"""A driver registers, a pod gets its devices and gives them back, and a device of the configuration is reset."""

from pathlib import Path
from typing import Any

from agent.drivers.clock.driver import SystemClock
from agent.model.devices.plugin import ClaimAnswer, PluginInfo, PluginPeer, PluginSocket
from kepd_devices.attach.unit import count_by
from kepd_devices.run.drivers.registry import PluginRegistry
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.view import DeviceView
from packages.devices.tests.test_claims import NodeOfLives, shared_pod
from packages.devices.tests.test_own_drivers import DRIVER, Configured, record, script
from packages.devices.tests.written import CLASS
from tests.lives.figures import Watched


class _Connection:
    is_connected = True

    def __init__(self, observe: Any) -> None:
        self._observe = observe

    async def prepare(self, claims: Any, limit_s: float) -> dict[str, ClaimAnswer]:
        self._observe("NodePrepareResources", "OK", limit_s / 1000)
        return {one.uid: ClaimAnswer() for one in claims}

    unprepare = prepare

    async def close(self) -> None:
        """Nothing to close."""


class _Sockets:
    def look(self) -> list[PluginSocket]:
        return [PluginSocket("/r/gpu.example.com-reg.sock", (1, 1))]

    async def peer(self, path: str) -> PluginPeer:
        del path
        return PluginPeer(0)

    async def info(self, path: str) -> PluginInfo:
        del path
        return PluginInfo(type="DRAPlugin", name="gpu.example.com", versions=("v1.DRAPlugin",))

    async def notify(self, path: str, error: str = "") -> None:
        del path, error

    def connect(self, endpoint: str, version: str, observe: Any) -> _Connection:
        del endpoint, version
        return _Connection(observe)


async def devices_life(folder: Path) -> set[str]:
    """What moved."""
    node = NodeOfLives()
    node.texts = (*node.texts, CLASS)
    claims = await node.manager()
    claims._drivers.clear()
    metrics: DeviceMetrics = claims.metrics
    registry = PluginRegistry(
        _Sockets(), claims, SystemClock(), lambda: 1.0, node.told.append, observe=metrics.called
    )  # fmt: skip
    count_by(metrics, DeviceView(claims, {}, registry))
    watched = Watched(metrics.families)
    watched.look()
    published = node.driver.published
    await registry.look()
    claims.slices = lambda: tuple(published)  # type: ignore[method-assign]
    await claims.hold(shared_pod("one"))
    watched.look()
    await claims.release("uid-one")
    own = Configured("/dev/ttyUSB0", reset={"command": [script(folder, "true")]})
    driver = await own.driver()
    driver._metrics = metrics
    await driver.unprepare([record(DRIVER, "ttyusb0")])
    # As where a kubelet gives a device that is reset just then.
    with metrics.held("reset"):
        watched.look()
    return watched.moved

# SPDX-License-Identifier: Apache-2.0
"""The plane as a whole, over what it watches."""

import asyncio
from pathlib import Path
from typing import Any

from agent.drivers.clock.driver import SystemClock
from agent.drivers.folder_watch import FolderWatch
from agent.model.component import Board, State
from kepd_devices.manifest.documents import Reader
from kepd_devices.manifest.reading import device_reading
from kepd_devices.run.cdi_directories import CdiDirectories
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.host_devices import HostDevices
from kepd_devices.run.own_devices import ConfiguredDevices
from kepd_devices.run.plane import DevicePlane
from kepd_devices.run.pod_devices import PodDevices
from packages.devices.tests.fakes import FakeCdi
from packages.devices.tests.test_claims import NodeOfLives, held, shared_pod
from packages.devices.tests.test_own_drivers import DRIVER, Nodes, names, rules, script
from packages.devices.tests.written import CLAIM, CLASS
from tests.fakes.manifests import FakeManifestDirectory
from tests.fakes.state_files import FakeStateFiles

OURS = f"{CLAIM.replace('count: 2', 'count: 1')}---\n{CLASS}".replace("gpu.example.com", DRIVER)
WITHIN_S = 40.0


async def until(condition: Any) -> None:
    for _ in range(int(WITHIN_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {WITHIN_S} s")


async def test_a_node_that_appears_is_a_device_soon(tmp_path: Path) -> None:
    """DVD-20: long before kepd would look anyway, also in a directory that was not there."""
    dev = tmp_path / "dev"
    dev.mkdir()
    host = Nodes()
    given = rules({"match": {"glob": "/dev/snd/by-path/*"}})
    devices = ConfiguredDevices("devices.kepd.dev", "here", lambda: given, host, tuple)
    driver = LocalDriver(devices, FakeCdi(), FakeStateFiles(), lambda _: None)
    manager = await NodeOfLives(0).manager()
    below = HostDevices(dev)
    watch = FolderWatch(dev, 0, 0o755, lambda: below.directories(given))
    plane = DevicePlane(
        manager=manager, pod_devices=PodDevices(manager, None), cdi=CdiDirectories([], tmp_path), locals_=[driver],
        manifests=FakeManifestDirectory({}), clock=SystemClock(), tell=lambda _: None,
        changed_nodes=watch.changed,
    )  # fmt: skip
    board = Board(lambda: 0.0)
    task = asyncio.create_task(plane.run(board.add("devices", State.STARTING)))
    await until(lambda: driver.name in manager.drivers)
    assert names(driver) == {}
    host.paths.append("/dev/ttyA")
    (dev / "ttyA").touch()
    await until(lambda: names(driver) == {"ttya": []})
    host.paths.clear()
    (dev / "ttyA").unlink()
    await until(lambda: names(driver) == {})
    for folder in (dev / "snd", dev / "snd" / "by-path"):
        folder.mkdir()
    await until(lambda: str(dev / "snd" / "by-path") in map(str, watch._watches))
    host.paths.append("/dev/snd/by-path/a")
    (dev / "snd" / "by-path" / "a").touch()
    await until(lambda: names(driver) == {"a": []})

    task.cancel()
    await asyncio.wait([task])
    watch.close()


async def test_a_device_whose_check_fails_goes_to_no_pod(tmp_path: Path) -> None:
    """DVD-26: the plane asks by itself, and what gives devices knows the answer."""
    host, flag = Nodes("/dev/ttyA"), tmp_path / "well"
    given = rules({
        "match": {"glob": "/dev/tty*"},
        "health": {"command": [script(tmp_path, f"[ -e {flag} ]")], "period": "1s"},
    })  # fmt: skip
    devices = ConfiguredDevices(DRIVER, "here", lambda: given, host, tuple)
    driver = LocalDriver(devices, FakeCdi(), FakeStateFiles(), lambda _: None)
    node = NodeOfLives(0)
    manager = await node.manager()
    manifests = FakeManifestDirectory({"/m": OURS.encode()})
    manifests.readings = [device_reading(Reader("here"))]
    plane = DevicePlane(
        manager=manager, pod_devices=PodDevices(manager, None), cdi=CdiDirectories([], tmp_path), locals_=[driver],
        manifests=manifests, clock=SystemClock(),
        tell=lambda _: None, changed_nodes=lambda _: asyncio.sleep(600),
    )  # fmt: skip
    board = Board(lambda: 0.0)
    task = asyncio.create_task(plane.run(board.add("devices", State.STARTING)))
    await until(lambda: devices.unhealthy and manager.objects.claims)
    why = await held(manager, shared_pod("one"))
    flag.touch()
    await until(lambda: not devices.unhealthy)
    then = await held(manager, shared_pod("one"))
    task.cancel()
    await asyncio.wait([task])

    assert "taint devices.kepd.dev/unhealthy" in why
    assert then == ""

# SPDX-License-Identifier: Apache-2.0
"""Health of kepd's own devices, and devices of several nodes: section 5.2, DVD-26, DVD-27."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.drivers.clock.driver import SystemClock
from kepd_devices.plan.records import Stage
from kepd_devices.run.device_checks import DeviceChecks
from kepd_devices.run.drivers.local_driver import LocalDriver
from kepd_devices.run.own_devices import FAKE_PERIOD_S
from kepd_devices.run.view import DeviceView
from packages.devices.tests.test_claims import NodeOfLives
from packages.devices.tests.test_own_drivers import DRIVER, Configured, TestFake, names, record, script

WITHIN_S = 40.0
SICK = "devices.kepd.dev/unhealthy"
SERIAL: dict[str, Any] = {"match": {"glob": "/dev/tty*", "group": "{serial}"}, "name": "modem-{serial}",
                          "attributes": {"serial": {"sysfs": "serial"}}}  # fmt: skip


async def until(condition: Callable[[], Any]) -> None:
    for _ in range(int(WITHIN_S / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {WITHIN_S} s")


@asynccontextmanager
async def checked(driver: LocalDriver, node: Configured) -> AsyncIterator[list[str]]:
    """What is changed meanwhile, one by one."""
    changes: list[str] = []
    checks = DeviceChecks([driver], lambda: node.held, SystemClock(), lambda: changes.append("changed"))
    task = asyncio.create_task(checks.run())
    try:
        yield changes
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_device_that_its_command_calls_sick_is_given_to_nobody_until_it_is_well(tmp_path: Path) -> None:
    """DVD-26: who has it is told once and goes on; the other device is not touched."""
    flag = tmp_path / "sick"
    health = script(tmp_path, f'[ "$DEVICE_NAME $1" != "ttyusb0 /dev/ttyUSB0" ] || [ ! -e {flag} ] || exit 4')
    node = Configured("/dev/ttyUSB0", "/dev/ttyUSB1", health={"command": [health, "{path}"], "period": "1s"})
    driver = await node.driver()
    node.held = [record(DRIVER, "ttyusb0").at(DRIVER, Stage.PREPARED)]
    flag.touch()
    async with checked(driver, node) as changes:
        await until(lambda: changes)
        sick = names(driver)
        manager = await NodeOfLives(0).manager()
        manager.add_driver(driver)
        seen = [one async for _, one in DeviceView(manager, {DRIVER: driver}, None).devices("")]
        await asyncio.sleep(1.5)
        told = [(one.reason, one.object_name) for one in node.told]
        flag.unlink()
        await until(lambda: len(changes) == 2)

    assert sick == {"ttyusb0": [SICK], "ttyusb1": []}
    assert [(one.name.rpartition("/")[2], one.state) for one in seen] == [("ttyusb0", "unhealthy"), ("ttyusb1", "free")]
    assert seen[0].message == f"{health} ended with exit code 4"
    assert told == [("DeviceUnhealthy", "c")]
    assert names(driver) == {"ttyusb0": [], "ttyusb1": []}


async def test_a_check_that_hangs_is_ended_and_the_device_is_sick(tmp_path: Path) -> None:
    """DVD-26: with all that it started; others are asked meanwhile."""
    pid = tmp_path / "pid"
    health = script(tmp_path, f'[ "$DEVICE_NAME" = ttyusb1 ] && exit 1; sleep 600 & echo $! > {pid}; wait')
    given = {"command": [health], "period": "1h", "timeout": "500ms"}
    node = Configured("/dev/ttyUSB0", "/dev/ttyUSB1", health=given)
    driver = await node.driver()
    async with checked(driver, node) as changes:
        await until(lambda: changes)
        first = dict(driver.devices.unhealthy)
        await until(lambda: len(changes) == 2)

    assert list(first) == ["ttyusb1"]
    assert driver.devices.unhealthy["ttyusb0"] == f"{health} did not end within 0.5 s"
    state = Path(f"/proc/{pid.read_text().strip()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"  # noqa: ASYNC240


async def test_what_a_check_prints_is_harmless_and_in_no_event(tmp_path: Path) -> None:
    """DVD-26, DVF-6: it is cut, and apart from what the reset printed."""
    health = script(tmp_path, "printf 'worn \\033[31m\\377\\000'; head -c 9000000 /dev/zero; exit 1")
    node = Configured("/dev/ttyUSB0", health={"command": [health]})
    node.held = [record(DRIVER, "ttyusb0").at(DRIVER, Stage.PREPARED)]
    driver = await node.driver()
    driver.commands.printed[f"{DRIVER}/ttyusb0"] = "it printed: reset"
    async with checked(driver, node) as changes:
        await until(lambda: changes)

    printed = driver.commands.printed[f"health of {DRIVER}/ttyusb0"]
    assert printed.startswith("it printed: worn ?[31m")
    assert printed.isprintable()
    assert len(printed) < 4200
    assert driver.commands.printed[f"{DRIVER}/ttyusb0"] == "it printed: reset"
    assert not any("worn" in one.message for one in node.told)


async def test_a_program_that_others_may_write_makes_the_device_sick(tmp_path: Path) -> None:
    """DVD-23, DVD-26: a doubt is no health."""
    node = Configured("/dev/ttyUSB0", health={"command": [script(tmp_path, "true", 0o777)]})
    driver = await node.driver()

    assert await driver.check("ttyusb0")
    assert "can be written by others than root" in driver.devices.unhealthy["ttyusb0"]


async def test_a_device_that_goes_is_not_asked_and_comes_back_as_well(tmp_path: Path) -> None:
    """DVD-26: what was known was of the one that went; without a command there is nothing to ask."""
    node = Configured("/dev/ttyUSB0", health={"command": [script(tmp_path, "exit 1")]})
    driver = await node.driver()
    await driver.check("ttyusb0")
    node.host.paths.clear()
    await driver.look(())
    node.host.paths.append("/dev/ttyUSB0")
    await driver.look(())

    assert names(driver) == {"ttyusb0": []}
    assert (await Configured("/dev/ttyUSB0").driver()).devices.probes() == {}


@pytest.mark.parametrize("times", [0, 2])
async def test_the_fake_device_is_sick_as_often_as_parameters_ask(times: int) -> None:
    """DVD-31: `fail: {health: 2}` fails two checks, then it is well, and nobody asks any more."""
    driver, _ = TestFake().driver()
    asked = {"apiVersion": "fake.kepd.dev/v1alpha1", "kind": "FakeClaimParameters", "spec": {"fail": {"health": times}}}
    held = record("fake.kepd.dev", "fake-1", config=[asked])
    await driver.prepare([held])
    found = []
    while driver.devices.probes():
        assert driver.devices.probes() == {"fake-1": FAKE_PERIOD_S}
        await driver.check("fake-1")
        found.append(names(driver)["fake-1"])

    assert found == ([[SICK], [SICK], []] if times else [])


async def test_nodes_of_one_group_are_one_device() -> None:
    """DVD-27: a container gets all of them; one without a serial number is none."""
    node = Configured("/dev/ttyUSB0", "/dev/ttyUSB1", "/dev/ttyUSB2", "/dev/ttyUSB3", **SERIAL)
    node.host.serials = {"/dev/ttyUSB0": "A", "/dev/ttyUSB2": "A", "/dev/ttyUSB1": "B"}
    driver = await node.driver()
    await driver.prepare([record(DRIVER, "modem-a")])

    assert names(driver) == {"modem-a": [], "modem-b": []}
    (device,) = node.spec.devices
    assert [one.path for one in device.container_edits.device_nodes] == ["/dev/ttyUSB0", "/dev/ttyUSB2"]
    assert "gives no name for /dev/ttyUSB3, which has no serial" in str(driver.devices.findings[0])  # type: ignore[attr-defined]


async def test_a_claim_has_all_nodes_of_its_device_or_a_sick_one() -> None:
    """DVD-27: one of two that vanishes is as if the device did, until both are there, wherever."""
    node = Configured("/dev/ttyUSB0", "/dev/ttyUSB1", **SERIAL)
    node.host.serials = {f"/dev/ttyUSB{number}": "A" for number in range(4)}
    driver = await node.driver()
    node.held = [record(DRIVER, "modem-a").at(DRIVER, Stage.PREPARED)]
    node.host.paths.remove("/dev/ttyUSB1")
    await driver.look(node.held)
    half = names(driver)
    node.host.paths.append("/dev/ttyUSB3")
    await driver.look(node.held)

    assert half == {"modem-a": ["devices.kepd.dev/missing"]}
    assert names(driver) == {"modem-a": []}
    (told,) = node.told
    assert "was /dev/ttyUSB0 (c 1:3), /dev/ttyUSB1 (c 1:3) and is /dev/ttyUSB0 (c 1:3), /dev/ttyUSB3" in told.message

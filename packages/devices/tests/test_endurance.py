# SPDX-License-Identifier: Apache-2.0
"""Many pods, few devices, drivers and kepd that go and come: never two holders, and all are served in the end."""

import random

import pytest

from agent.model.devices.problem import DevicesNotReleased
from agent.model.pods.pod import PodSpec
from kepd_devices.run.claims import DeviceClaims
from packages.devices.tests.test_claims import NodeOfLives, held
from packages.devices.tests.test_pod_claims import pod
from packages.devices.tests.written import POD, TEMPLATE

PODS, DEVICES, STEPS = 50, 10, 400


def make_pod(number: int) -> PodSpec:
    text = POD.replace(", {name: shared, resourceClaimName: gpus}", "").replace(", {name: shared, request: gpu}", "")
    return pod(text.replace("4711", f"uid-{number}").replace("name: web", f"name: web-{number}"))


class Life:
    """Steps drawn from a seed: the same seed is the same life."""

    def __init__(self, seed: int) -> None:
        self.luck = random.Random(seed)
        self.node = NodeOfLives(DEVICES)
        self.node.texts = (TEMPLATE,)
        self.pods = [make_pod(number) for number in range(PODS)]
        self.running: set[int] = set()
        self.served: set[int] = set()

    def check(self, manager: DeviceClaims) -> None:
        """No device is in two records, and what a driver has ready is in one."""
        devices = [(one.pool, one.device) for record in manager.records.values() for one in record.results]
        assert len(devices) == len(set(devices))
        assert len(self.node.driver.ready) <= DEVICES
        assert self.node.driver.ready.keys() <= manager.records.keys()

    async def step(self, manager: DeviceClaims) -> DeviceClaims:
        match self.luck.choice(("begin", "begin", "begin", "end", "end", "driver", "kepd", "reconcile")):
            case "begin":
                number = self.luck.randrange(PODS)
                if not await held(manager, self.pods[number]):
                    self.running.add(number)
                    self.served.add(number)
            case "end" if self.running:
                await self.end(manager, self.luck.choice(sorted(self.running)))
            case "driver":
                self.node.driver.why_away = "" if self.node.driver.why_away else "away"
            case "kepd":
                manager = await self.node.manager()
            case "reconcile":
                living = {self.pods[number].uid for number in self.running}
                await manager.reconcile(lambda: living)
        self.check(manager)
        return manager

    async def end(self, manager: DeviceClaims, number: int) -> None:
        try:
            await manager.release(self.pods[number].uid)
        except DevicesNotReleased:
            return
        self.running.discard(number)


@pytest.mark.parametrize("seed", range(8))
async def test_no_device_ever_has_two_holders_and_all_are_served_in_the_end(seed: int) -> None:
    """DVM-26, DVM-40."""
    life = Life(seed)
    manager = await life.node.manager()
    for _ in range(STEPS):
        manager = await life.step(manager)
    life.node.driver.why_away = ""
    for number in range(PODS):
        for other in sorted(life.running):
            await life.end(manager, other)
        await manager.reconcile(set)
        assert await held(manager, life.pods[number]) == ""
        life.running, life.served = {number}, life.served | {number}
        life.check(manager)
    await life.end(manager, PODS - 1)

    assert len(life.served) == PODS
    assert (manager.records, life.node.driver.ready, life.node.disk.files) == ({}, {}, {})

# SPDX-License-Identifier: Apache-2.0
"""The devices of kepd's own drivers: those that the configuration names, and fake ones."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from agent.model.finding import Finding
from kepd_devices.cdi.spec import Edits
from kepd_devices.local.claim_files import ClaimFileRefused, ResultEdits, own_results
from kepd_devices.local.configured import LocalDevice, configured_edits, configured_slices, find_devices
from kepd_devices.local.fake import FAKE, fake_edits, fake_slices, spec_of
from kepd_devices.local.pool_rules import Command, Health, PoolRule, seconds
from kepd_devices.manifest.objects import Result, Slice
from kepd_devices.plan.records import ClaimRecord
from kepd_devices.run.host_devices import HostDevices

FAKE_PERIOD_S = 10.0


class OwnDevices(Protocol):
    """The devices of one of kepd's drivers. What has no use of a step inherits the body."""

    driver: str
    unhealthy: dict[str, str]
    """Why, by device."""

    def slices(self) -> Sequence[Slice]: ...

    def edits(self, record: ClaimRecord) -> tuple[Edits, list[ResultEdits]]:
        """Raises Refused."""

    def command(self, result: Result, what: str) -> tuple[Command, Mapping[str, str]] | None:  # noqa: ARG002
        """What is run to prepare or reset a device, with the words that it may use."""
        return None

    def has_others(self, device: str, uid: str) -> bool:  # noqa: ARG002
        """Claims beside this one that go on with the device."""
        return False

    def is_lost(self, device: str) -> bool:  # noqa: ARG002
        """Nothing is known of it any more, while devices are reset after use."""
        return False

    @property
    def quarantined(self) -> frozenset[str]:
        return frozenset()

    def probes(self) -> Mapping[str, float]:
        """Which devices are asked whether they are well, and the seconds from one time to the next."""

    def probe(self, device: str) -> tuple[Command | Health, Mapping[str, str]] | None:
        """The command that asks, with its words. Raises Refused."""

    def judge(self, device: str, why: str) -> bool:
        """What came of it, nothing where it is well; whether that is new."""

    def quarantine(self, device: str) -> None:
        """It is given to nobody."""
        del device

    def free(self, device: str) -> None:
        """It may be given again."""
        del device

    async def rehearse(self, record: ClaimRecord, what: str) -> None:
        """Fails where a claim asks for that. Raises Refused."""


class FakeDevices(OwnDevices):
    driver = FAKE

    def __init__(self, node: str, count: int, hang_s: float, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._node = node
        self._count = count
        self._slices = fake_slices(node, count)
        # How many checks of a device are still to fail.
        self._sick: dict[str, int] = {}
        self.unhealthy: dict[str, str] = {}
        self._hang_s = hang_s
        self._sleep = sleep
        # How often a call was to fail already, by claim and call.
        self._failed: dict[tuple[str, str], int] = {}

    def slices(self) -> Sequence[Slice]:
        return self._slices

    def edits(self, record: ClaimRecord) -> tuple[Edits, list[ResultEdits]]:
        return fake_edits(record, self._node)

    def probes(self) -> dict[str, float]:
        return {name: FAKE_PERIOD_S for name, times in self._sick.items() if times or name in self.unhealthy}

    def probe(self, device: str) -> None:
        if self._sick.get(device, 0) > 0:
            self._sick[device] -= 1
            raise ClaimFileRefused("fails its check, as the parameters of its claim ask")

    def judge(self, device: str, why: str) -> bool:
        was = self.unhealthy.pop(device, "")
        if why:
            self.unhealthy[device] = why
        self._slices = fake_slices(self._node, self._count, self.unhealthy)
        return bool(was) != bool(why)

    async def rehearse(self, record: ClaimRecord, what: str) -> None:
        failing = spec_of(record).fail
        if what == "prepare" and self._is_due(record.uid, "hang", failing.hang):
            await self._sleep(self._hang_s)
        if self._is_due(record.uid, what, getattr(failing, what)):
            raise ClaimFileRefused(f"fails to {what} claim {record.key}, as its parameters ask")
        for result in own_results(record, FAKE):
            self._sick[result.device] = failing.health if what == "prepare" else 0

    def _is_due(self, uid: str, what: str, times: int) -> bool:
        done = self._failed.get((uid, what), 0)
        if done < times:
            self._failed[uid, what] = done + 1
        return done < times


class ConfiguredDevices(OwnDevices):
    """Devices of the rules; `records` are those of claims that have any."""

    def __init__(
        self, driver: str, node: str, rules: Callable[[], Sequence[PoolRule]], host: HostDevices,
        records: Callable[[], Iterable[ClaimRecord]],
    ) -> None:  # fmt: skip
        self.driver = driver
        self._node = node
        self._rules = rules
        self._host = host
        self._records = records
        self._devices: dict[str, LocalDevice] = {}
        self._slices: tuple[Slice, ...] = ()
        self._quarantined: set[str] = set()
        self.unhealthy: dict[str, str] = {}
        self._generation = 1
        # Devices that claims have and that are another node since the last look: what they were, and are.
        self.moved: dict[str, tuple[str, str]] = {}
        self.findings: tuple[Finding, ...] = ()

    async def look(self) -> bool:
        """Whether anything changed."""
        rules = self._rules()
        seen = await asyncio.to_thread(self._host.look, rules)
        found, findings = find_devices(rules, seen)
        self.findings = tuple(findings)
        held = {one.device for record in self._records() for one in own_results(record, self.driver)}
        for name in held:
            known = self._devices.get(name)
            # Of a group that a claim has, each node has to be there.
            if known is not None and (name not in found or len(found[name].nodes) < len(known.nodes)):
                found[name] = msgspec.structs.replace(known, is_missing=True)
        self.moved = {name: pair for name in sorted(held & found.keys()) if (pair := self._moved(name, found[name]))}
        if found.keys() != self._devices.keys():
            self._generation += 1
        self._devices = found
        asked = self.probes()
        self.unhealthy = {name: why for name, why in self.unhealthy.items() if name in asked}
        return self._render()

    def _moved(self, name: str, now: LocalDevice) -> tuple[str, str] | None:
        known = self._devices.get(name)
        return (known.place, now.place) if known is not None and known.place != now.place else None

    def _render(self) -> bool:
        before, known = self._slices, set(self._quarantined)
        self._slices = configured_slices(
            self.driver, self._node, self._devices, self._generation, known, self.unhealthy
        )
        return before != self._slices

    def slices(self) -> Sequence[Slice]:
        return self._slices

    def edits(self, record: ClaimRecord) -> tuple[Edits, list[ResultEdits]]:
        return configured_edits(record, self.driver, self._devices)

    def command(self, result: Result, what: str) -> tuple[Command, Mapping[str, str]] | None:
        device = self._devices.get(result.device)
        if device is None:
            return None
        command = device.rule.reset if what == "reset" else device.rule.prepare
        return (command, device.words) if command is not None else None

    def has_others(self, device: str, uid: str) -> bool:
        others = (one for one in self._records() if one.uid != uid and not one.is_ending)
        return any(one.device == device for record in others for one in own_results(record, self.driver))

    def is_lost(self, device: str) -> bool:
        return device not in self._devices and any(one.reset is not None for one in self._rules())

    def quarantine(self, device: str) -> None:
        self._quarantined.add(device)
        self._render()

    def free(self, device: str) -> None:
        self._quarantined.discard(device)
        self._render()

    def probes(self) -> dict[str, float]:
        """One that is not there needs no command to be unhealthy."""
        return {
            name: seconds(one.rule.health.period) or 0.0
            for name, one in self._devices.items()
            if one.rule.health is not None and not one.is_missing
        }

    def probe(self, device: str) -> tuple[Health, Mapping[str, str]] | None:
        found = self._devices.get(device)
        return (found.rule.health, found.words) if found is not None and found.rule.health is not None else None

    def judge(self, device: str, why: str) -> bool:
        was = self.unhealthy.pop(device, "")
        if why and device in self.probes():
            self.unhealthy[device] = why
        self._render()
        return bool(was) != (device in self.unhealthy)

    async def rehearse(self, record: ClaimRecord, what: str) -> None:
        """Nothing fails on request."""

    @property
    def quarantined(self) -> frozenset[str]:
        return frozenset(self._quarantined)

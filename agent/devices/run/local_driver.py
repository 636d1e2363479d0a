# SPDX-License-Identifier: Apache-2.0
"""kepd's own drivers, in one process with the manager: the fake one, and that of devices named in the configuration.

    prepare    the commands of its devices → the CDI file of the claim → the answer
    unprepare  the CDI file away → the reset of each device → the answer; a device that cannot be reset is quarantined

The answer follows from the claim and the devices alone, so what is asked again is answered as before. Never: keeps a
record; the manager's says what was begun.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
import structlog

from agent.devices.cdi.spec import Edits
from agent.devices.local.claim_files import (
    Refused,
    ResultEdits,
    answer,
    claim_spec,
    encode_spec,
    file_name,
    own_results,
    uid_of_file,
)
from agent.devices.local.configured import (
    LocalDevice,
    configured_edits,
    configured_slices,
    find_devices,
)
from agent.devices.local.fake import FAKE, class_for, fake_edits, fake_slices, spec_of
from agent.devices.local.pool_rules import Command, Health, PoolRule, filled, seconds
from agent.devices.manifest.objects import DeviceClass, Result, Slice
from agent.devices.plan.answers import Answers
from agent.devices.plan.health import unhealthy_event
from agent.devices.plan.reasons import DeviceId
from agent.devices.plan.records import ClaimRecord, Stage
from agent.devices.ports import CdiPlace, RecordFiles
from agent.devices.run.commands import END_S, CommandFailed, DeviceCommands
from agent.devices.run.host_devices import HostDevices
from agent.devices.run.metrics import DeviceMetrics
from agent.model.devices.plugin import ClaimAnswer
from agent.model.event import Event
from agent.model.finding import Finding
from agent.model.refused import Refused as NotThere

log = structlog.get_logger(plane="devices")

QUARANTINE = "quarantine"
FAKE_PERIOD_S = 10.0


class OwnDevices(Protocol):
    """The devices of one of kepd's drivers."""

    @property
    def driver(self) -> str: ...

    def slices(self) -> Sequence[Slice]: ...

    def edits(self, record: ClaimRecord) -> tuple[Edits, list[ResultEdits]]:
        """Raises Refused."""

    def command(self, result: Result, what: str) -> tuple[Command, Mapping[str, str]] | None:
        """What is run to prepare or reset a device, with the words that it may use."""

    def has_others(self, device: str, uid: str) -> bool:
        """Claims beside this one that go on with the device."""

    def is_lost(self, device: str) -> bool:
        """Nothing is known of it any more, while devices are reset after use."""

    @property
    def quarantined(self) -> frozenset[str]: ...

    @property
    def unhealthy(self) -> Mapping[str, str]:
        """Why, by device."""

    def probes(self) -> Mapping[str, float]:
        """Which devices are asked whether they are well, and the seconds from one time to the next."""

    def probe(self, device: str) -> tuple[Command | Health, Mapping[str, str]] | None:
        """The command that asks, with its words. Raises Refused."""

    def judge(self, device: str, why: str) -> bool:
        """What came of it, nothing where it is well; whether that is new."""

    def quarantine(self, device: str) -> None: ...

    def free(self, device: str) -> None: ...

    async def rehearse(self, record: ClaimRecord, what: str) -> None:
        """Fails where a claim asks for that. Raises Refused."""


class LocalDriver:
    def __init__(
        self,
        devices: OwnDevices,
        cdi: CdiPlace,
        files: RecordFiles,
        tell: Callable[[Event], None],
        metrics: DeviceMetrics | None = None,
        commands: DeviceCommands | None = None,
    ) -> None:
        self._metrics = metrics or DeviceMetrics()
        self.commands = commands or DeviceCommands()
        self.devices = devices
        self._cdi = cdi
        self._files = files
        self._tell = tell

    @property
    def name(self) -> str:
        return self.devices.driver

    @property
    def why_away(self) -> str:
        return ""

    def slices(self) -> Sequence[Slice]:
        return self.devices.slices()

    def classes(self) -> Sequence[DeviceClass]:
        return (class_for(self.name),)

    async def restore(self, records: Iterable[ClaimRecord]) -> None:
        """Restore missing CDI files at start, and delete unknown ones."""
        for name in await self._files.read_folder(QUARANTINE):
            if name.startswith(f"{self.name}."):
                self.devices.quarantine(name.removeprefix(f"{self.name}.").removesuffix(".json"))
        begun = {one.uid: one for one in records if self.name in one.drivers}
        for name in await self._cdi.names():
            uid = uid_of_file(self.name, name)
            if uid and uid not in begun:
                await self._cdi.remove(name)
        await self._write_again(begun.values())

    async def _write_again(self, records: Iterable[ClaimRecord]) -> None:
        for record in records:
            if record.drivers[self.name].stage is Stage.PREPARED:
                try:
                    await self._write(record, *self.devices.edits(record))
                except (Refused, OSError) as error:
                    log.warning("claim_file_not_restored", claim=record.key, driver=self.name, error=str(error))

    async def look(self, records: Iterable[ClaimRecord]) -> bool:
        """Whether anything changed. A device that comes back as another node is the same for its claims."""
        if not isinstance(self.devices, ConfiguredDevices):
            return False
        changed = await self.devices.look()
        moved = self.devices.moved
        for name, (before, now) in moved.items():
            text = f"device {name} of {self.name} was {before} and is {now}; containers that run have the old node"
            self._say("DeviceMoved", text)
        theirs = [one for one in records if any(it.device in moved for it in own_results(one, self.name))]
        await self._write_again(theirs)
        return changed

    def extra_s(self, claims: Sequence[ClaimRecord], *, is_prepare: bool) -> float:
        """All of them one after the other, with all their tries."""
        results = [result for one in claims for result in own_results(one, self.name)]
        found = [self.devices.command(one, "prepare" if is_prepare else "reset") for one in results]
        commands = [one[0] for one in found if one is not None]
        return sum((one.retries + 1) * ((seconds(one.timeout) or 0.0) + END_S) for one in commands)

    async def prepare(self, claims: Sequence[ClaimRecord]) -> Answers:
        return {one.uid: await self._prepare(one) for one in claims}

    async def _prepare(self, record: ClaimRecord) -> ClaimAnswer:
        try:
            await self.devices.rehearse(record, "prepare")
            whole, edits = self.devices.edits(record)
            for result in own_results(record, self.name):
                if (found := self.devices.command(result, "prepare")) is not None:
                    await self._run(record, result, *found)
            await self._write(record, whole, edits)
        except (Refused, CommandFailed, OSError) as error:
            return ClaimAnswer(error=str(error))
        return answer(self.name, record.uid, edits)

    async def _write(self, record: ClaimRecord, whole: Edits, edits: Sequence[ResultEdits]) -> None:
        spec = claim_spec(self.name, record.uid, whole, edits)
        if spec is not None:
            await self._cdi.write(file_name(self.name, record.uid), encode_spec(spec))

    async def unprepare(self, claims: Sequence[ClaimRecord]) -> Answers:
        return {one.uid: await self._unprepare(one) for one in claims}

    async def _unprepare(self, record: ClaimRecord) -> ClaimAnswer:
        try:
            await self.devices.rehearse(record, "unprepare")
            await self._cdi.remove(file_name(self.name, record.uid))
            for result in own_results(record, self.name):
                if result.admin_access or self.devices.has_others(result.device, record.uid):
                    continue
                if self.devices.is_lost(result.device):
                    await self._keep_back(result.device, "it was not there when its claim ended")
                if (found := self.devices.command(result, "reset")) is not None:
                    await self._reset(record, result, *found)
        except (Refused, OSError) as error:
            return ClaimAnswer(error=str(error))
        return ClaimAnswer()

    async def _reset(self, record: ClaimRecord, result: Result, command: Command, words: Mapping[str, str]) -> None:
        """Raises OSError where a quarantine cannot be written down: then the device is not free yet."""
        for attempt in range(command.retries + 1):
            try:
                await self._run(record, result, command, words)
            except CommandFailed as error:
                why = str(error)
                log.warning("device_reset_failed", device=result.device, driver=self.name, attempt=attempt, error=why)
            else:
                self._metrics.reset(self.name, "ok")
                return
        self._metrics.reset(self.name, "failed")
        self._say("DeviceResetFailed", f"device {result.device} of {self.name} could not be reset: {why}")
        if command.on_failure == "quarantine":
            await self._keep_back(result.device, why)

    async def _keep_back(self, device: str, why: str) -> None:
        """Raises OSError."""
        name = f"{QUARANTINE}/{self.name}.{device}.json"
        await self._files.write(name, msgspec.json.encode({"device": device, "why": why}))
        self.devices.quarantine(device)
        text = f"device {device} of {self.name} is given to nobody until it is reset: {why}"
        self._say("DeviceQuarantined", text)

    async def reset(self, device: str) -> None:
        """Of a device in quarantine, on request. Raises Refused of the model."""
        if device not in self.devices.quarantined:
            raise NotThere("precondition", f"device {device} of {self.name} is not in quarantine")
        found = self.devices.command(Result(driver=self.name, device=device), "reset")
        if found is None:
            raise NotThere("precondition", f"device {device} of {self.name} is not there, or has no reset any more")
        command, words = found
        try:
            await self._command(command, words, _facts(device, words), device)
        except CommandFailed as error:
            self._metrics.reset(self.name, "failed")
            printed = self.commands.printed.get(f"{self.name}/{device}", "")
            text = "; ".join(filter(None, (str(error), printed)))
            raise NotThere("precondition", f"device {device} stays in quarantine: {text}") from error
        self._metrics.reset(self.name, "ok")
        await self._files.remove(f"{QUARANTINE}/{self.name}.{device}.json")
        self.devices.free(device)
        log.info("device_freed", device=device, driver=self.name)

    async def _run(self, record: ClaimRecord, result: Result, command: Command, words: Mapping[str, str]) -> None:
        """Raises CommandFailed."""
        metadata = record.claim.metadata
        environment = {
            **_facts(result.device, words),
            "CLAIM_UID": metadata.uid,
            "CLAIM_NAMESPACE": metadata.namespace,
            "CLAIM_NAME": metadata.name,
        }
        await self._command(command, words, environment, result.device)

    async def _command(
        self,
        command: Command | Health,
        words: Mapping[str, str],
        environment: Mapping[str, str],
        device: str,
        of: str = "",
    ) -> None:
        argv = [filled(one, words) for one in command.command]
        await self.commands.run(argv, environment, seconds(command.timeout) or 0.0, f"{of}{self.name}/{device}")

    async def check(self, device: str) -> bool:
        """Whether its health is another one now: asked of its command, beside whatever uses it."""
        why = ""
        try:
            found = self.devices.probe(device)
            if found is not None:
                command, words = found
                await self._command(command, words, _facts(device, words), device, "health of ")
        except (CommandFailed, Refused) as error:
            why = str(error)
        return self.devices.judge(device, why)

    def tell_unhealthy(self, record: ClaimRecord, device: str) -> None:
        result = next(one for one in own_results(record, self.name) if one.device == device)
        where = DeviceId(self.name, result.pool, device)
        self._tell(unhealthy_event(record, where, self.devices.unhealthy[device]))

    def _say(self, reason: str, text: str) -> None:
        self._tell(Event(id="", is_warning=True, reason=reason, message=text, plane="devices"))


def _facts(device: str, words: Mapping[str, str]) -> dict[str, str]:
    return {"DEVICE_NAME": device, "DEVICE_PATH": words.get("path", "")}


class FakeDevices:
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

    def command(self, result: Result, what: str) -> None:
        del result, what

    def has_others(self, device: str, uid: str) -> bool:
        del device, uid
        return False

    def is_lost(self, device: str) -> bool:
        del device
        return False

    @property
    def quarantined(self) -> frozenset[str]:
        return frozenset()

    def quarantine(self, device: str) -> None:
        del device

    def free(self, device: str) -> None:
        del device

    def probes(self) -> dict[str, float]:
        return {name: FAKE_PERIOD_S for name, times in self._sick.items() if times or name in self.unhealthy}

    def probe(self, device: str) -> None:
        if self._sick.get(device, 0) > 0:
            self._sick[device] -= 1
            raise Refused("fails its check, as the parameters of its claim ask")

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
            raise Refused(f"fails to {what} claim {record.key}, as its parameters ask")
        for result in own_results(record, FAKE):
            self._sick[result.device] = failing.health if what == "prepare" else 0

    def _is_due(self, uid: str, what: str, times: int) -> bool:
        done = self._failed.get((uid, what), 0)
        if done < times:
            self._failed[uid, what] = done + 1
        return done < times


class ConfiguredDevices:
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

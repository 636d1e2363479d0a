# SPDX-License-Identifier: Apache-2.0
"""kepd's own drivers, in one process with the manager: the fake one, and that of devices named in the configuration.

    prepare    the commands of its devices → the CDI file of the claim → the answer
    unprepare  the CDI file away → the reset of each device → the answer; a device that cannot be reset is quarantined

The answer follows from the claim and the devices alone, so what is asked again is answered as before. Never: keeps a
record; the manager's says what was begun.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import structlog

from agent.model.devices.plugin import ClaimAnswer
from agent.model.event import Event
from agent.model.refused import Refused as NotThere
from agent.model.text.records import RecordFiles
from kepd_devices.cdi.spec import Edits
from kepd_devices.local.claim_files import (
    ClaimFileRefused,
    ResultEdits,
    answer,
    claim_spec,
    encode_spec,
    file_name,
    own_results,
    uid_of_file,
)
from kepd_devices.local.fake import class_for
from kepd_devices.local.pool_rules import Command, Health, filled, seconds
from kepd_devices.manifest.objects import DeviceClass, Result, Slice
from kepd_devices.plan.answers import Answers
from kepd_devices.plan.health import unhealthy_event
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.records import ClaimRecord, Stage
from kepd_devices.ports import CdiPlace
from kepd_devices.run.commands import END_S, CommandFailed, DeviceCommands
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.own_devices import ConfiguredDevices, OwnDevices

log = structlog.get_logger(plane="devices")

QUARANTINE = "quarantine"


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
                except (ClaimFileRefused, OSError) as error:
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
        except (ClaimFileRefused, CommandFailed, OSError) as error:
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
        except (ClaimFileRefused, OSError) as error:
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
        except (CommandFailed, ClaimFileRefused) as error:
            why = str(error)
        return self.devices.judge(device, why)

    def tell_unhealthy(self, record: ClaimRecord, device: str) -> None:
        result = next(one for one in own_results(record, self.name) if one.device == device)
        where = DeviceId(self.name, result.pool, device)
        self._tell(unhealthy_event(record, where, self.devices.unhealthy[device]))

    def _say(self, reason: str, text: str) -> None:
        self._tell(Event(is_warning=True, reason=reason, message=text, plane="devices"))


def _facts(device: str, words: Mapping[str, str]) -> dict[str, str]:
    return {"DEVICE_NAME": device, "DEVICE_PATH": words.get("path", "")}

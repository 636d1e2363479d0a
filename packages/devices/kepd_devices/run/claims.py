# SPDX-License-Identifier: Apache-2.0
"""Gives devices to the pods of this node: allocates claims, has drivers prepare them, and takes them back after the
last pod.

    hold(pod)     search → record → drivers prepare → devices in the record
    edits(pod)    what a container gets, from the record alone
    release(pod)  the last pod of a claim: drivers unprepare → the record goes

What is done to one claim is done by one task at a time; searches are work for a desk. plan/steps.py says what comes
next, so a kepd that starts anew goes on where the records show. Never: decides which device.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

import msgspec
import structlog
from msgspec.structs import replace

from agent.model.clock import Clock
from agent.model.desk import Desk
from agent.model.devices.container_devices import CLAIMS_NOTE, NO_DEVICES, ContainerDevices
from agent.model.devices.plugin import PreparedDevice
from agent.model.devices.problem import DevicesNotReady, DevicesNotReleased
from agent.model.event import Event
from agent.model.pods.pod import ContainerSpec, PodSpec
from agent.model.refused import Refused
from agent.model.runtime.features import RuntimeFeatures
from agent.model.text.records import RecordFiles
from kepd_devices.manifest.objects import Allocation, Claim, ClaimStatus
from kepd_devices.manifest.pod_claims import ClaimOfPod, NotThere, claims_of_pod, with_uid
from kepd_devices.plan.claim_rules import CLAIM_ERROR, UNALLOCATABLE, check_admin, check_given
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.records import (
    MOST_HOLDERS,
    ClaimRecord,
    Holder,
    Stage,
    devices_of,
    encode_record,
    has_request,
    holds_all,
    ids_of,
    is_meant,
    new_record,
    record_name,
)
from kepd_devices.plan.search import Question
from kepd_devices.plan.steps import Forget, Leave, Mark, Prepare, Unprepare, plan
from kepd_devices.plan.unrecorded import Unrecorded, note_of, unrecorded
from kepd_devices.ports import CdiPlace, PodsOfNode
from kepd_devices.run.drivers.driver_calls import answers_of
from kepd_devices.run.known_devices import KnownDevices, ManagerSettings
from kepd_devices.run.metrics import DeviceMetrics
from kepd_devices.run.record_folder import BAD_FOLDER, read_records
from kepd_devices.run.resolved_cdi import ResolvedCdi
from kepd_devices.run.searches import Searches

log = structlog.get_logger(plane="devices")

MOST_SEARCHES = 5
FAILED_PREPARE = "FailedPrepareDynamicResources"


class DeviceClaims(KnownDevices):
    def __init__(
        self,
        files: RecordFiles,
        cdi: CdiPlace,
        clock: Clock,
        settings: Callable[[], ManagerSettings],
        tell: Callable[[Event], None],
        metrics: DeviceMetrics | None = None,
        *,
        pods: PodsOfNode | None = None,
        desks: Sequence[Desk] = (),
    ) -> None:
        self.metrics = metrics or DeviceMetrics()
        super().__init__(clock, settings, tell, pods.devices_changed if pods is not None else lambda: None)
        self._files = files
        self.cdi = cdi
        self.resolved = ResolvedCdi(cdi, clock, settings).resolved
        # Devices that their drivers report as unhealthy; no new pod gets them.
        self.unhealthy: Callable[[], frozenset[DeviceId]] = frozenset
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._search = asyncio.Lock()
        self.searches = Searches(clock, desks)
        self._loaded = asyncio.Event()
        self.records: dict[str, ClaimRecord] = {}
        # Records that nobody can read, by file: what they hold is not known, so nothing is given.
        self.unreadable: dict[str, str] = {}
        # By pod, what its running containers carry about claims.
        self.noted: Callable[[], Mapping[str, Collection[str]]] = pods.noted if pods is not None else dict
        # Claims that a person said to forget, though a pod runs with them.
        self._disowned: set[str] = set()
        # What failed last, and when, by uid of the claim.
        self.problems: dict[str, tuple[str, float]] = {}

    async def load(self) -> None:
        self.records, self.unreadable = await read_records(self._files)
        self._loaded.set()

    def unrecorded(self) -> list[Unrecorded]:
        """What containers have and no record tells."""
        return unrecorded(self.noted(), self.records.keys() | self._disowned)

    def doubts(self) -> list[str]:
        """While there are any, nothing is given: what is not known to be free is not."""
        return [*(self.unreadable[name] for name in sorted(self.unreadable)), *map(str, self.unrecorded())]

    async def hold(self, pod: PodSpec) -> None:
        """All claims of a pod are prepared for it when this returns. Raises DevicesNotReady."""
        if not pod.spec.resource_claims:
            return
        await self._loaded.wait()
        if not self._has_read:
            raise DevicesNotReady(UNALLOCATABLE, "the manifests of claims are being read")
        try:
            claims = claims_of_pod(pod, self._objects)
        except NotThere as error:
            # What it holds already is not taken away with the manifest.
            if not holds_all(self.records.values(), pod, self._settings().boot_id):
                raise DevicesNotReady(UNALLOCATABLE, str(error)) from error
            claims = []
        held = [one.uid for one in self.records.values() if one.held_by(pod.uid)]
        uids = sorted({*held, *(one.claim.metadata.uid for one in claims)})
        async with self._alone_with(uids):
            errors = await self._settle([uid for uid in held if self._is_leftover(uid)], gone=())
            if errors:
                raise DevicesNotReady(FAILED_PREPARE, "; ".join(dict.fromkeys(errors.values())))
            if not holds_all(self.records.values(), pod, self._settings().boot_id):
                await self._allocate(pod, claims)
                uids = [one.uid for one in self.records.values() if one.held_by(pod.uid)]
            errors = await self._settle(uids, gone=())
        if errors:
            raise DevicesNotReady(FAILED_PREPARE, "; ".join(dict.fromkeys(errors.values())))

    def _is_leftover(self, uid: str) -> bool:
        """Of an end, or of a boot, before this one; what is of it has to go first."""
        record = self.records.get(uid)
        return record is not None and record.is_leftover(self._settings().boot_id)

    async def _allocate(self, pod: PodSpec, claims: Sequence[ClaimOfPod]) -> None:
        """All of them or none: what was found counts if nobody got devices meanwhile. Raises DevicesNotReady."""
        for _ in range(MOST_SEARCHES):
            seen = frozenset(self.records)
            missing = [one for one in claims if one.claim.metadata.uid not in seen]
            found = await self._found(pod, missing)
            async with self._search:
                if self.records.keys() <= seen:
                    return await self._take_found(pod, claims, found)
        raise DevicesNotReady(UNALLOCATABLE, "other pods got devices again and again while it was searched for these")

    async def _take_found(self, pod: PodSpec, claims: Sequence[ClaimOfPod], found: Sequence[ClaimRecord]) -> None:
        new: list[ClaimRecord] = []
        for one in claims:
            if (known := self.records.get(one.claim.metadata.uid)) is not None:
                self._check_room(known, pod.uid)
                new.append(known.with_holder(Holder(pod.uid, pod.namespace, pod.name, one.entries)))
        for record in (*new, *found):
            await self._save_first(record)
        for record in found:
            devices = ", ".join(f"{one.driver}/{one.pool}/{one.device}" for one in record.results)
            self._say(record, "ClaimAllocated", f"got {devices or 'no devices, as it asks for none'}")

    def _check_room(self, known: ClaimRecord, uid: str) -> None:
        if self._is_leftover(known.uid):
            raise DevicesNotReady(UNALLOCATABLE, f"claim {known.key} is being given back")
        if known.held_by(uid) is None and len(known.holders) >= MOST_HOLDERS:
            raise DevicesNotReady(UNALLOCATABLE, f"claim {known.key} is held by {MOST_HOLDERS} pods already")

    async def _found(self, pod: PodSpec, missing: Sequence[ClaimOfPod]) -> list[ClaimRecord]:
        if not missing:
            return []
        settings = self._settings()
        if doubts := self.doubts():
            raise DevicesNotReady(CLAIM_ERROR, "; ".join(doubts))
        for one in missing:
            if any(it.key == one.claim.key for it in self.records.values()):
                text = f"claim {one.claim.key} has changed, and the old claim is still in use"
                raise DevicesNotReady(UNALLOCATABLE, text)
            check_admin(one.claim, settings.admin_namespaces)
        given = [one for one in missing if one.claim.status.allocation is not None]
        if given:
            check_given(self.question(tuple(one.claim for one in given)))
            rest = [one for one in missing if one not in given]
            return [*(self._recorded(pod, one, one.claim) for one in given), *await self._found(pod, rest)]
        began_s = self._clock.now_s()
        answer = await self.searches.search(pod.uid, self.question(tuple(one.claim for one in missing)))
        outcome = "error" if answer.error else "waits" if answer.allocations is None else "allocated"
        self.metrics.allocated(outcome, self._clock.now_s() - began_s, answer.tried)
        if answer.error:
            raise DevicesNotReady(CLAIM_ERROR, answer.error)
        if answer.allocations is None:
            left = sorted({one.spec.driver for one in self._published() if self.has_left(one.spec.driver)})
            away = f"; driver-away: devices of {', '.join(left)} do not count until it is back" if left else ""
            raise DevicesNotReady(UNALLOCATABLE, f"{answer.stuck}{away}")
        found = []
        for one, allocated in zip(missing, answer.allocations, strict=True):
            status = ClaimStatus(allocation=msgspec.convert(allocated, Allocation))
            found.append(self._recorded(pod, one, replace(one.claim, status=status)))
        return found

    def _recorded(self, pod: PodSpec, one: ClaimOfPod, claim: Claim) -> ClaimRecord:
        holder = Holder(pod.uid, pod.namespace, pod.name, one.entries)
        record = new_record(claim, is_made=one.is_made, boot_id=self._settings().boot_id, holder=holder)
        return replace(record, since_s=self._clock.wall_s())

    def question(self, claims: tuple[Claim, ...]) -> Question:
        asked = {one.metadata.uid for one in claims}
        existing = [one.claim for one in self.records.values() if one.uid not in asked]
        existing += [one for one in self._trusted() if one.metadata.uid not in {*asked, *self.records}]
        return Question(
            node=self._settings().node,
            slices=self.slices(),
            classes=self.classes(),
            existing=tuple(existing),
            claims=claims,
            unhealthy=self.unhealthy(),
        )

    def _trusted(self) -> list[Claim]:
        """Claims of manifests that have devices already, by their status."""
        return [with_uid(one) for one in self._objects.claims.values() if one.status.allocation is not None]

    async def release(self, uid: str) -> None:
        """The pod holds nothing any more. Raises DevicesNotReleased."""
        await self._loaded.wait()
        self.searches.forget(uid)
        uids = sorted(one.uid for one in self.records.values() if one.held_by(uid))
        if not uids:
            return
        async with self._alone_with(uids):
            errors = await self._settle(uids, gone=(uid,))
        if errors:
            raise DevicesNotReleased("; ".join(dict.fromkeys(errors.values())))

    async def reconcile(self, pods: Callable[[], Collection[str]]) -> None:
        """What pods hold that are there no more is given back, of each claim by itself: a driver may take long."""
        await self._loaded.wait()
        await asyncio.gather(*(self._reconcile(uid, record.key, pods) for uid, record in self.records.items()))

    async def _reconcile(self, uid: str, key: str, pods: Callable[[], Collection[str]]) -> None:
        async with self._alone_with([uid]):
            holders, living = self.records[uid].holders if uid in self.records else (), pods()
            gone = tuple(one.uid for one in holders if one.uid not in living)
            errors = await self._settle([uid], gone) if gone or self._is_leftover(uid) else {}
        for text in errors.values():
            log.warning("claim_not_given_back", claim=key, error=text)

    async def _settle(self, uids: Sequence[str], gone: Sequence[str]) -> dict[str, str]:
        """Carry out what is planned for these claims until nothing is left, or something fails; what failed, by
        claim."""
        boot_id = self._settings().boot_id
        while True:
            records = [self.records[uid] for uid in uids if uid in self.records]
            pods = {holder.uid for one in records for holder in one.holders} - set(gone)
            steps = plan(records, pods, boot_id)
            calls = [step for step in steps if isinstance(step, Prepare | Unprepare)]
            writes = [step for step in steps if isinstance(step, Leave | Mark | Forget)]
            errors: dict[str, str] = {}
            for step in writes:
                try:
                    await self._write(step)
                except OSError as error:
                    errors[step.uid] = f"the record of claim {self.records[step.uid].key} cannot be written: {error}"
            if not writes:
                for told in await asyncio.gather(*(self._call(step) for step in calls)):
                    errors.update(told)
            if errors or not steps:
                return errors

    async def _write(self, step: Leave | Mark | Forget) -> None:
        record = self.records[step.uid]
        match step:
            case Leave(pods=pods):
                await self._save_anyway(record.without_holders(pods))
            case Mark(driver=driver, stage=Stage.PREPARING):
                await self._save_first(self._at(record, driver, Stage.PREPARING))
            case Mark(driver=driver, stage=stage):
                await self._save_anyway(self._at(record, driver, stage))
            case Forget():
                await self._files.remove(record_name(step.uid))
                del self.records[step.uid]
                self.problems.pop(step.uid, None)
                self._say(record, "ClaimReleased", "gave its devices back")
                self.changed()

    def _at(
        self, record: ClaimRecord, driver: str, stage: Stage, devices: tuple[PreparedDevice, ...] | None = None
    ) -> ClaimRecord:
        return replace(record.at(driver, stage, devices), since_s=self._clock.wall_s())

    async def forget(self, uid: str) -> None:
        """Drop the record at an operator's request. Raises Refused."""
        name = f"{uid}.json"
        if name in self.unreadable:
            await self._files.remove(f"{BAD_FOLDER}/{name}")
            del self.unreadable[name]
            log.warning("claim_record_forgotten", record=name)
        elif uid in self.records:
            async with self._alone_with([uid]):
                record = self.records[uid]
                await self._write(Forget(uid))
                log.warning("claim_record_forgotten", claim=record.key, record=name)
        elif any(one.uid == uid for one in self.unrecorded()):
            self._disowned.add(uid)
            log.warning("claim_disowned", uid=uid)
        else:
            raise Refused(
                "not_found", f"no claim with uid {uid} has a record here; `kepctl get claims -o wide` has them"
            )
        self.changed()

    async def _save_first(self, record: ClaimRecord) -> None:
        """What is not on the disk is not begun. Who is interrupted here does not know what the disk has, and takes it
        for written."""
        before = self.records.get(record.uid)
        self.records[record.uid] = record
        try:
            await self._files.write(record_name(record.uid), encode_record(record))
        except OSError as error:
            if before is None:
                del self.records[record.uid]
            else:
                self.records[record.uid] = before
            text = f"the record of claim {record.key} cannot be written: {error}"
            raise DevicesNotReady(FAILED_PREPARE, text) from error

    async def _save_anyway(self, record: ClaimRecord) -> None:
        """A full disk keeps no pod from ending; who starts anew asks once more."""
        self.records[record.uid] = record
        try:
            await self._files.write(record_name(record.uid), encode_record(record))
        except OSError as error:
            log.warning("claim_record_not_saved", claim=record.key, error=str(error))

    async def _call(self, step: Prepare | Unprepare) -> dict[str, str]:
        """Ask one driver; what failed, by claim."""
        asked = [self.records[uid] for uid in step.uids]
        is_prepare = isinstance(step, Prepare)
        driver, limit_s = self._drivers.get(step.driver), self._settings().call_limit_s
        answers = await answers_of(driver, step.driver, asked, limit_s, is_prepare=is_prepare)
        errors: dict[str, str] = {}
        for uid, answer in answers.items():
            if answer.error:
                errors[uid] = answer.error
                self.problems[uid] = (answer.error, self._clock.wall_s())
                continue
            self.problems.pop(uid, None)
            stage = Stage.PREPARED if is_prepare else Stage.RELEASED
            devices = answer.devices if is_prepare else ()
            await self._save_anyway(self._at(self.records[uid], step.driver, stage, devices))
        return errors

    async def edits(self, pod: PodSpec, container: ContainerSpec, runtime: RuntimeFeatures) -> ContainerDevices:
        """What a container gets of the devices of its pod. Raises DevicesNotReady."""
        uses = container.fields.resources.claims
        if not uses:
            return NO_DEVICES
        await self._loaded.wait()
        ids: dict[str, None] = {}
        notes: list[str] = []
        for use in uses:
            record = next((one for one in self.records.values() if is_meant(one, pod.uid, use.name)), None)
            if record is None:
                raise DevicesNotReady(FAILED_PREPARE, f"pod claim {use.name} is not held by the pod")
            if (
                use.request
                and not any(True for _ in devices_of(record, use.request))
                and not has_request(record, use.request)
            ):
                text = f"claim {record.key} has no request {use.request}"
                raise DevicesNotReady(CLAIM_ERROR, text)
            ids.update(dict.fromkeys(ids_of(record, use.request)))
            notes.append(note_of(record.key, record.uid))
        note = ((CLAIMS_NOTE, ",".join(dict.fromkeys(notes))),)
        return replace(await self.resolved(list(ids), runtime), notes=note)

    @asynccontextmanager
    async def _alone_with(self, uids: Sequence[str]) -> AsyncIterator[None]:
        """In one order for all, so that nobody waits in a ring."""
        async with AsyncExitStack() as stack:
            for uid in sorted(uids):
                await stack.enter_async_context(self._locks.setdefault(uid, asyncio.Lock()))
            yield

    def _say(self, record: ClaimRecord, reason: str, text: str) -> None:
        self._tell(
            Event(
                is_warning=False,
                reason=reason,
                message=f"claim {record.key} {text}",
                plane="devices",
                namespace=record.claim.metadata.namespace,
                object_name=record.claim.metadata.name,
            )
        )

# SPDX-License-Identifier: Apache-2.0
"""kepd's own driver beside a kubelet: it publishes slices to the API server, and the kubelet asks it.

    run
    ├── serve      the kubelet's calls: claim from the API server → record → CDI file → answer; and back
    ├── register   once slices are written: the socket on which the kubelet finds it
    └── publish    slices, again when devices change or somebody changes them

The API server is needed to publish and to prepare. What was prepared is unprepared, and health is told, without it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from agent.model.clock import Clock, rung
from agent.model.component import Report
from agent.model.devices.plugin import ClaimAnswer, ClaimReference, DeviceHealth
from agent.model.text.records import RecordFiles
from kepd_devices.local.configured import MISSING, QUARANTINED
from kepd_devices.manifest.objects import Allocation, Claim, Metadata, Slice
from kepd_devices.plan.answers import told
from kepd_devices.plan.publishing import document, publication
from kepd_devices.plan.records import (
    FOLDER,
    ClaimRecord,
    Holder,
    Stage,
    decode_record,
    encode_record,
    new_record,
    record_name,
)
from kepd_devices.run.device_checks import DeviceChecks
from kepd_devices.run.drivers.local_driver import LocalDriver

log = structlog.get_logger(plane="devices")

LOOK_S, SETTLE_S = 30.0, 0.5
HEALTH_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


Work = Callable[[ClaimReference], Awaitable[ClaimAnswer]]


class ClusterAway(Exception):
    """The API server did not do it; the text says what and why."""


class Cluster(Protocol):
    """The API server. Calls raise ClusterAway."""

    async def claim(self, namespace: str, name: str) -> Claim | None: ...

    async def node_uid(self) -> str: ...

    async def slices(self, driver: str) -> list[Slice]: ...

    async def write_slice(self, document: Mapping[str, Any], *, is_new: bool) -> None: ...

    async def delete_slice(self, name: str) -> None: ...


class Sockets(Protocol):
    """Both raise OSError."""

    def serving(self, driver: "KubeletDriver", now_s: Callable[[], float]) -> AbstractAsyncContextManager[None]: ...

    def registering(self, told: Callable[[bool, str], None]) -> AbstractAsyncContextManager[None]: ...


class KubeletDriver:
    def __init__(
        self,
        local: LocalDriver,
        sockets: Sockets,
        cluster: Cluster,
        files: RecordFiles,
        clock: Clock,
        node: str,
        *,
        changed_nodes: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        """`changed_nodes` waits until /dev may have changed, or for a time."""
        self._changed_nodes = changed_nodes or clock.sleep
        self.local = local
        self._sockets = sockets
        self._cluster = cluster
        self._files = files
        self._clock = clock
        self._node = node
        self._locks: dict[str, asyncio.Lock] = {}
        self._begun: dict[tuple[str, str], asyncio.Task[ClaimAnswer]] = {}
        self._changed = asyncio.Event()
        self._registered = ""
        self._problem = ""
        self.records: dict[str, ClaimRecord] = {}
        self._checks = DeviceChecks((local,), self.records.values, clock, self._changed.set)

    async def run(self, report: Report) -> None:
        """Until cancelled."""
        await self.local.commands.begin()
        await self._load()
        await self.local.look(())
        await self.local.restore(self.records.values())
        try:
            async with self._sockets.serving(self, self._clock.wall_s), asyncio.TaskGroup() as group:
                group.create_task(self._follow_devices(), name="device-driver-look")
                group.create_task(self._checks.run(), name="device-driver-health")
                await self._publish_until_written(report)
                async with self._sockets.registering(self._told):
                    while True:
                        await self._publish()
                        self._report(report)
                        await rung(self._changed, self._clock, self._clock.now_s() + LOOK_S)
        finally:
            begun = list(self._begun.values())
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)

    async def _load(self) -> None:
        for name, content in (await self._files.read_folder(FOLDER)).items():
            try:
                record = decode_record(content)
            except ValueError as error:
                log.error("claim_record_unreadable", record=name, error=str(error))
                continue
            self.records[record.uid] = record

    def _report(self, report: Report) -> None:
        if self._problem:
            report.degraded(self._problem)
        else:
            count = sum(len(one.spec.devices or ()) for one in self.local.slices())
            text = f"{count} devices, {len(self.records)} claims"
            registered = self._registered or "no kubelet has asked yet"
            report.ready("; ".join([text, registered, *self.local.commands.problems]))

    def _told(self, is_registered: bool, error: str) -> None:  # as the kubelet says it
        self._registered = "registered" if is_registered else f"the kubelet refuses it: {told(error)}"
        self._changed.set()
        log.info("driver_answered_by_kubelet", driver=self.local.name, registered=is_registered, error=told(error))

    async def _publish_until_written(self, report: Report) -> None:
        pause_s = FIRST_PAUSE_S
        while not await self._publish():
            self._report(report)
            await self._clock.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _publish(self) -> bool:
        """Whether the API server has the slices as they are. What changes meanwhile is for the next time."""
        self._changed.clear()
        wanted = self.local.slices()
        try:
            there = await self._cluster.slices(self.local.name)
            plan = publication(wanted, there)
            known = {one.metadata.name for one in there}
            uid = await self._cluster.node_uid() if plan.writes else ""
            for one in plan.writes:
                await self._cluster.write_slice(document(one, uid), is_new=one.metadata.name not in known)
            for name in plan.deletes:
                await self._cluster.delete_slice(name)
        except ClusterAway as error:
            self._problem = f"slices are not published: {error}"
            log.warning("slices_not_published", driver=self.local.name, error=str(error))
            return False
        if plan.writes or plan.deletes:
            log.info("slices_published", driver=self.local.name, written=len(plan.writes), deleted=len(plan.deletes))
        self._problem = ""
        return True

    async def _follow_devices(self) -> None:
        while True:
            await self._changed_nodes(LOOK_S)
            await self._clock.sleep(SETTLE_S)
            if await self.local.look(self.records.values()):
                self._changed.set()
            self._checks.ring()

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, ClaimAnswer]:
        return {one.uid: await self._to_its_end(one, self._prepare) for one in claims}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, ClaimAnswer]:
        return {one.uid: await self._to_its_end(one, self._unprepare) for one in claims}

    async def _to_its_end(self, one: ClaimReference, work: Work) -> ClaimAnswer:
        """Also where the kubelet waits no longer: a reset may take more time than it has. It asks again."""
        key = (one.uid, work.__name__)
        if (task := self._begun.get(key)) is None:
            task = self._begun[key] = asyncio.create_task(self._alone(one, work))
            task.add_done_callback(lambda _: self._begun.pop(key))
        return await asyncio.shield(task)

    async def _alone(self, one: ClaimReference, work: Work) -> ClaimAnswer:
        async with self._locks.setdefault(one.uid, asyncio.Lock()):
            found = await work(one)
        if one.uid not in self.records:
            self._locks.pop(one.uid, None)
        return found

    async def _prepare(self, reference: ClaimReference) -> ClaimAnswer:
        """What is prepared is answered as before."""
        name = self.local.name
        known = self.records.get(reference.uid)
        if known is not None and known.drivers[name].stage is Stage.PREPARED:
            return ClaimAnswer(known.drivers[name].devices)
        try:
            record = known or await self._read(reference)
            await self._save(record.at(name, Stage.PREPARING))
            (answer,) = (await self.local.prepare([record])).values()
            if not answer.error:
                await self._save(record.at(name, Stage.PREPARED, answer.devices))
        except (ClusterAway, OSError, ValueError) as error:
            return ClaimAnswer(error=str(error))
        return answer

    async def _read(self, reference: ClaimReference) -> ClaimRecord:
        """The claim as the API server has it. Raises ClusterAway, and ValueError for one that is not meant."""
        key = f"{reference.namespace}/{reference.name}"
        claim = await self._cluster.claim(reference.namespace, reference.name)
        if claim is None:
            raise ValueError(f"claim {key} is not there")
        if claim.metadata.uid != reference.uid:
            raise ValueError(f"claim {key} has uid {claim.metadata.uid}, and was asked for as {reference.uid}")
        allocation = claim.status.allocation
        results = allocation.devices.results if allocation is not None else ()
        own = tuple(one for one in results if one.driver == self.local.name and one.pool == self._node)
        if allocation is None or not own:
            raise ValueError(f"claim {key} has no devices of {self.local.name} on this node")
        devices = replace(allocation.devices, results=own)
        status = replace(claim.status, allocation=Allocation(devices=devices), reserved_for=None, devices=None)
        metadata = Metadata(name=reference.name, namespace=reference.namespace, uid=reference.uid)
        holder = Holder("", reference.namespace, reference.name)
        return new_record(replace(claim, metadata=metadata, status=status), is_made=False, boot_id="", holder=holder)

    async def _unprepare(self, reference: ClaimReference) -> ClaimAnswer:
        """Of what is not known there is nothing to give back."""
        uid = reference.uid
        record = self.records.get(uid)
        if record is None:
            return ClaimAnswer()
        try:
            record = record.at(self.local.name, Stage.UNPREPARING)
            await self._save(record)
            (answer,) = (await self.local.unprepare([record])).values()
            if not answer.error:
                await self._files.remove(record_name(uid))
                del self.records[uid]
                self._changed.set()
        except OSError as error:
            return ClaimAnswer(error=str(error))
        return answer

    async def _save(self, record: ClaimRecord) -> None:
        await self._files.write(record_name(record.uid), encode_record(record))
        self.records[record.uid] = record

    async def health(self) -> AsyncIterator[list[DeviceHealth]]:
        """All devices at once, again and again: a kubelet that hears nothing takes them for unknown."""
        while True:
            yield self._health()
            await self._clock.sleep(HEALTH_S)

    def _health(self) -> list[DeviceHealth]:
        """One that a claim has and that was not there since kepd began is in no slice."""
        listed = [
            DeviceHealth(one.spec.pool.name, device.name, not bad, bad)
            for one in self.local.slices()
            for device in one.spec.devices or ()
            for kept in ["; ".join(it.key for it in device.taints if it.key in (MISSING, QUARANTINED))]
            for bad in [kept or self.local.devices.unhealthy.get(device.name, "")]
        ]
        lost = sorted(self.held() - {one.device for one in listed})
        return [*listed, *(DeviceHealth(self._node, one, is_healthy=False, message=MISSING) for one in lost)]

    def held(self) -> frozenset[str]:
        return frozenset(one.device for record in self.records.values() for one in record.results)

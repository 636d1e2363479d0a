# SPDX-License-Identifier: Apache-2.0
"""What is written down of a claim that has devices: who holds it, what it got, and how far each driver is.

    absent → allocated → preparing → prepared → unpreparing → released → absent

A record is on the disk before anything that it speaks of is done, so that whoever starts anew knows what was begun.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from agent.model.devices.plugin import PreparedDevice
from agent.model.pods.pod import PodSpec
from agent.model.text.json_text import decode_json
from kepd_devices.manifest.objects import Claim, Result

VERSION = 1
MOST_HOLDERS = 256
FOLDER = "claims"


class Stage(StrEnum):
    """How far a driver is with a claim."""

    ALLOCATED = "allocated"
    PREPARING = "preparing"
    PREPARED = "prepared"
    UNPREPARING = "unpreparing"
    RELEASED = "released"


BEGUN = (Stage.PREPARING, Stage.PREPARED, Stage.UNPREPARING)


class DriverPart(msgspec.Struct, frozen=True):
    stage: Stage = Stage.ALLOCATED
    devices: tuple[PreparedDevice, ...] = ()


class Holder(msgspec.Struct, frozen=True):
    """A pod, and the names by which it calls the claim."""

    uid: str
    namespace: str
    name: str
    entries: tuple[str, ...] = ()


class ClaimRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`claim` has its allocation in its status."""

    version: int = VERSION
    claim: Claim
    is_made: bool = False
    boot_id: str = ""
    # When its stage changed last, by the wall.
    since_s: float = 0.0
    holders: tuple[Holder, ...] = ()
    drivers: Mapping[str, DriverPart] = {}

    @property
    def uid(self) -> str:
        return self.claim.metadata.uid

    @property
    def key(self) -> str:
        return self.claim.key

    @property
    def results(self) -> tuple[Result, ...]:
        allocation = self.claim.status.allocation
        return allocation.devices.results if allocation is not None else ()

    @property
    def is_ending(self) -> bool:
        """Its devices are being given back: nobody can hold it any more."""
        return any(one.stage in (Stage.UNPREPARING, Stage.RELEASED) for one in self.drivers.values())

    @property
    def stage(self) -> Stage:
        """The least of its drivers; who needs none is prepared."""
        order = list(Stage)
        stages = [one.stage for one in self.drivers.values()]
        if self.is_ending:
            return Stage.UNPREPARING
        return min(stages, key=order.index, default=Stage.PREPARED)

    def is_leftover(self, boot_id: str) -> bool:
        """Of an end, or of a boot, before this one."""
        return self.is_ending or self.boot_id != boot_id

    def held_by(self, uid: str) -> Holder | None:
        return next((one for one in self.holders if one.uid == uid), None)

    def with_holder(self, holder: Holder) -> "ClaimRecord":
        others = tuple(one for one in self.holders if one.uid != holder.uid)
        return replace(self, holders=(*others, holder))

    def without_holders(self, uids: Sequence[str]) -> "ClaimRecord":
        return replace(self, holders=tuple(one for one in self.holders if one.uid not in uids))

    def at(self, driver: str, stage: Stage, devices: tuple[PreparedDevice, ...] | None = None) -> "ClaimRecord":
        known = self.drivers.get(driver, DriverPart())
        part = DriverPart(stage, known.devices if devices is None else devices)
        return replace(self, drivers={**self.drivers, driver: part})


def new_record(claim: Claim, *, is_made: bool, boot_id: str, holder: Holder) -> ClaimRecord:
    """For a claim with its allocation."""
    record = ClaimRecord(claim=claim, is_made=is_made, boot_id=boot_id, holders=(holder,))
    drivers = dict.fromkeys(sorted({one.driver for one in record.results}), DriverPart())
    return replace(record, drivers=drivers)


def record_name(uid: str) -> str:
    return f"{FOLDER}/{uid}.json"


def encode_record(record: ClaimRecord) -> bytes:
    return msgspec.json.encode(record)


def decode_record(content: bytes) -> ClaimRecord:
    """Raises ValueError."""
    found = decode_json(content, ClaimRecord)
    if found.version != VERSION:
        raise ValueError(f"is of version {found.version}; this kepd reads {VERSION}")
    if not found.uid:
        raise ValueError("names no claim")
    return found


def devices_of(record: ClaimRecord, request: str = "") -> Iterator[PreparedDevice]:
    """Of one request, or of all, in the order of the allocation and then of the driver."""
    for result in record.results:
        main = result.request.partition("/")[0]
        if request and main != request:
            continue
        for device in record.drivers.get(result.driver, DriverPart()).devices:
            is_same = (device.pool, device.device) == (result.pool, result.device)
            is_share = not device.share_id or device.share_id == (result.share_id or "")
            if is_same and is_share and (not device.requests or main in device.requests):
                yield device


def ids_of(record: ClaimRecord, request: str = "") -> list[str]:
    """CDI ids, each once."""
    return list(dict.fromkeys(one for device in devices_of(record, request) for one in device.cdi_ids))


def is_meant(record: ClaimRecord, pod: str, entry: str) -> bool:
    holder = record.held_by(pod)
    return holder is not None and entry in holder.entries


def has_request(record: ClaimRecord, request: str) -> bool:
    return any(one.name == request for one in record.claim.spec.devices.requests)


def holds_all(records: Collection[ClaimRecord], pod: PodSpec, boot_id: str) -> bool:
    """It keeps what it has, whatever the manifests say by now."""
    held = [one.held_by(pod.uid) for one in records if not one.is_leftover(boot_id)]
    found = {entry for holder in held if holder is not None for entry in holder.entries}
    return {one.name for one in pod.spec.resource_claims} <= found

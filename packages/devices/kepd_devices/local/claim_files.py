# SPDX-License-Identifier: Apache-2.0
"""The CDI file of one claim: one device for each result, named for claim, request and place.

It follows from the record and the devices of this node alone, so that a file that was lost is written again as it was.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from agent.model.devices.plugin import ClaimAnswer, PreparedDevice
from kepd_devices.cdi.spec import NO_EDITS, CdiDevice, CdiSpec, Edits, version_needed
from kepd_devices.manifest.objects import Result
from kepd_devices.plan.records import ClaimRecord

CLASS = "claim"


class ClaimFileRefused(Exception):
    """The driver cannot prepare this claim, whatever is done again."""


class ResultEdits(msgspec.Struct, frozen=True):
    result: Result
    edits: Edits


def own_results(record: ClaimRecord, driver: str) -> list[Result]:
    return [one for one in record.results if one.driver == driver]


def file_name(driver: str, uid: str) -> str:
    return f"{driver}-{CLASS}_{uid}.json"


def uid_of_file(driver: str, name: str) -> str:
    """Of a file that is the driver's own; else nothing."""
    head, tail = f"{driver}-{CLASS}_", ".json"
    is_own = name.startswith(head) and name.endswith(tail)
    return name[len(head) : -len(tail)] if is_own else ""


def device_name(uid: str, result: Result, place: int) -> str:
    return f"{uid}-{result.request.partition('/')[0]}-{place}"


def claim_spec(driver: str, uid: str, whole: Edits, devices: Sequence[ResultEdits]) -> CdiSpec | None:
    """None for a claim that changes nothing in a container."""
    listed = tuple(_devices(uid, devices))
    if not listed:
        return None
    found = CdiSpec(cdi_version="0.3.0", kind=f"{driver}/{CLASS}", container_edits=whole, devices=listed)
    return replace(found, cdi_version=version_needed(found)[0])


def _devices(uid: str, devices: Sequence[ResultEdits]) -> Iterator[CdiDevice]:
    for place, one in enumerate(devices):
        if one.edits != NO_EDITS:
            yield CdiDevice(name=device_name(uid, one.result, place), container_edits=one.edits)


def encode_spec(spec: CdiSpec) -> bytes:
    """With what is needed even where it is the default."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def answer(driver: str, uid: str, devices: Sequence[ResultEdits]) -> ClaimAnswer:
    return ClaimAnswer(
        tuple(
            PreparedDevice(
                requests=(one.result.request.partition("/")[0],),
                pool=one.result.pool,
                device=one.result.device,
                cdi_ids=(f"{driver}/{CLASS}={device_name(uid, one.result, place)}",) if one.edits != NO_EDITS else (),
                share_id=one.result.share_id or "",
            )
            for place, one in enumerate(devices)
        )
    )

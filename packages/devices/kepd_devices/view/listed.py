# SPDX-License-Identifier: Apache-2.0
"""Devices, claims and drivers as lists: from slices and records alone."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from agent.model.devices.report import (
    ClaimDriverReport,
    ClaimExplanationReport,
    ClaimReport,
    DeviceReport,
    ExplainedDeviceReport,
    ExplainedRequestReport,
)
from agent.model.quantity import Quantity
from kepd_devices.local.configured import MISSING, QUARANTINED
from kepd_devices.manifest.objects import Claim, DeviceOfSlice, Slice
from kepd_devices.manifest.pod_claims import with_uid
from kepd_devices.plan.health import NOT_KNOWN, UNHEALTHY, DeviceHealth
from kepd_devices.plan.holdings import Holdings
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.pools import PoolNode, gather
from kepd_devices.plan.reasons import DeviceId
from kepd_devices.plan.records import ClaimRecord, Stage, devices_of
from kepd_devices.plan.unrecorded import Unrecorded
from kepd_devices.view.explained import Explanation

GIVEN = (Stage.UNPREPARING, Stage.RELEASED)
# What says more than that a device is unhealthy.
KEPT = ("gone", "quarantined")
Problems = Mapping[str, tuple[str, float]]


def device_reports(
    slices: Sequence[Slice],
    records: Iterable[ClaimRecord],
    node: PoolNode,
    health: Callable[[DeviceId], DeviceHealth] = lambda _device: NOT_KNOWN,
) -> Iterator[DeviceReport]:
    """In the order of their names. Also devices that a claim has and nobody publishes any more."""
    records = list(records)
    holders: dict[DeviceId, list[ClaimRecord]] = defaultdict(list)
    for record in records:
        for one in record.results:
            holders[DeviceId(one.driver, one.pool, one.device)].append(record)
    pools = gather(slices, node)
    holdings = Holdings([one.claim for one in records], pools)
    offers = {one.id: one for pool in pools for one in pool.offers}
    for found in sorted({*offers, *holders}):
        report = _device(found, offers.get(found), holders.get(found, []), holdings)
        if report.state not in KEPT and (told := health(found)).status == UNHEALTHY:
            report = replace(report, state="unhealthy", message=told.message)
        yield report


def _device(found: DeviceId, offer: Offer | None, holders: list[ClaimRecord], holdings: Holdings) -> DeviceReport:
    ids = [one for record in holders for device in devices_of(record) for one in device.cdi_ids if _is(device, found)]
    given = holdings.given(found)
    return DeviceReport(
        name=str(found),
        state=_state(offer, holders, found),
        claims=tuple(sorted({one.key for one in holders})),
        pods=tuple(sorted({f"{one.namespace}/{one.name}" for record in holders for one in record.holders})),
        since_s=max((one.since_s for one in holders), default=0.0),
        attributes=tuple(_attributes(offer.device)) if offer is not None else (),
        capacity=tuple(_left(offer, given)) if offer is not None else (),
        cdi_ids=tuple(dict.fromkeys(ids)),
    )


def _is(device: object, found: DeviceId) -> bool:
    return (getattr(device, "pool", ""), getattr(device, "device", "")) == (found.pool, found.device)


def _state(offer: Offer | None, holders: list[ClaimRecord], found: DeviceId) -> str:
    taints = {one.key: one.effect for one in offer.taints} if offer is not None else {}
    if offer is None or MISSING in taints:
        return "gone"
    if QUARANTINED in taints:
        return "quarantined"
    stages = [one.drivers[found.driver].stage for one in holders if found.driver in one.drivers]
    if not stages:
        return "tainted" if any(effect in ("NoSchedule", "NoExecute") for effect in taints.values()) else "free"
    if any(one in GIVEN for one in stages):
        return "resetting"
    if any(one is not Stage.PREPARED for one in stages):
        return "preparing"
    return f"shared {len(holders)}" if offer.is_shared else "held"


def _left(offer: Offer, given: Mapping[str, Quantity]) -> Iterator[str]:
    """As the driver writes it, where nothing of it is given."""
    for name, room in sorted(offer.rooms.items()):
        taken = given.get(name)
        left = offer.device.capacity[name].value if taken is None else Quantity(nanos=room.value.nanos - taken.nanos)
        yield f"{name}={left}"


def _attributes(device: DeviceOfSlice) -> Iterator[str]:
    for name, one in sorted(device.attributes.items()):
        for value in one.scalars.values():
            yield f"{name}={str(value).lower() if isinstance(value, bool) else value}"
        for values in one.lists.values():
            yield f"{name}={','.join(map(str, values))}"


def plugin_reports(
    resource: str, devices: Iterable[str], healthy: Container[str], held: Mapping[str, str]
) -> Iterator[DeviceReport]:
    """`held` are pods by the devices that they have."""
    for device in sorted({*devices, *held}):
        pod = held.get(device, "")
        state = "held" if pod else "free" if device in healthy else "unhealthy"
        state = state if device in healthy or not pod else "unhealthy"
        yield DeviceReport(name=f"{resource}/{device}", state=state, pods=(pod,) if pod else ())


def claim_reports(
    records: Iterable[ClaimRecord],
    claims: Iterable[Claim],
    unreadable: Iterable[str],
    problems: Problems,
    adopted: Sequence[Unrecorded] = (),
) -> Iterator[ClaimReport]:
    """Those of records, those of manifests that nobody holds, those that pods have without a record, and records that
    cannot be read."""
    held = sorted(records, key=lambda one: one.key)
    known = {one.key for one in held} | {one.claim for one in adopted}
    for record in held:
        text, at_s = problems.get(record.uid, ("", 0.0))
        yield ClaimReport(
            namespace=record.claim.metadata.namespace,
            name=record.claim.metadata.name,
            uid=record.uid,
            state=str(record.stage),
            devices=tuple(f"{one.driver}/{one.pool}/{one.device}" for one in record.results),
            pods=tuple(f"{one.namespace}/{one.name}" for one in record.holders),
            since_s=record.since_s,
            drivers=tuple(ClaimDriverReport(name, str(part.stage)) for name, part in sorted(record.drivers.items())),
            last_error=text,
            failed_s=at_s,
            is_made=record.is_made,
        )
    uids = {one.uid for one in held}
    for claim in sorted(claims, key=lambda one: one.key):
        metadata = with_uid(claim).metadata
        if claim.key not in known:
            yield ClaimReport(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, state="unallocated")
        elif metadata.uid not in uids and any(one.key == claim.key for one in held):
            text = "pods that start now wait until the claim as it was is free"
            yield ClaimReport(
                namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, state="stale", last_error=text
            )
    for lost in adopted:
        namespace, _, name = lost.claim.rpartition("/")
        yield ClaimReport(
            namespace=namespace, name=name, uid=lost.uid, state="adopted", pods=(lost.pod,), last_error=str(lost)
        )
    for name in sorted(unreadable):
        yield ClaimReport(namespace="", name=name, uid=name.removesuffix(".json"), state="unreadable")


def explanation_report(found: Explanation) -> ClaimExplanationReport:
    requests = tuple(
        ExplainedRequestReport(
            claim=claim.key,
            name=request.name,
            wants=request.wants,
            devices=tuple(ExplainedDeviceReport(str(one.device), str(one.reason)) for one in request.verdicts),
        )
        for claim in found.claims
        for request in claim.requests
    )
    return ClaimExplanationReport(outcome=found.outcome, end=found.end, requests=requests, changes=found.changes)

# SPDX-License-Identifier: Apache-2.0
"""The fake device: no hardware and no node, variables alone. It shows what claims do."""

import hashlib
from collections.abc import Container
from typing import Literal
from uuid import UUID

import msgspec

from kepd_devices.cdi.spec import Edits
from kepd_devices.local.claim_files import ClaimFileRefused, ResultEdits, own_results
from kepd_devices.local.configured import UNHEALTHY
from kepd_devices.local.parameters import parameters_for, strictly
from kepd_devices.manifest.objects import (
    Attribute,
    CelSelector,
    ClassSpec,
    DeviceClass,
    DeviceOfSlice,
    Metadata,
    Pool,
    Selector,
    Slice,
    SliceSpec,
    Taint,
)
from kepd_devices.plan.records import ClaimRecord

FAKE = "fake.kepd.dev"
PARAMETERS = f"{FAKE}/v1alpha1"
MOST_FAKES, MOST_PARTS = 128, 16


class Failing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first `times` calls of a kind fail."""

    prepare: int = 0
    unprepare: int = 0
    hang: int = 0
    health: int = 0


class FakeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    split: int = 1
    fail: Failing = Failing()


class FakeParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    api_version: Literal["fake.kepd.dev/v1alpha1"]
    kind: Literal["FakeClaimParameters"]
    spec: FakeSpec = FakeSpec()


def class_for(driver: str) -> DeviceClass:
    """All devices of one driver."""
    selector = Selector(cel=CelSelector(expression=f"device.driver == '{driver}'"))
    return DeviceClass(metadata=Metadata(name=driver), spec=ClassSpec(selectors=(selector,)))


def fake_slices(node: str, count: int, unhealthy: Container[str] = ()) -> tuple[Slice, ...]:
    sick = (Taint(key=UNHEALTHY, effect="NoSchedule"),)
    devices = tuple(
        DeviceOfSlice(
            name=name, attributes={"index": Attribute(whole=number)}, taints=sick if name in unhealthy else ()
        )
        for number in range(count)
        for name in [f"fake-{number}"]
    )
    pool = Pool(name=node, generation=1, resource_slice_count=1)
    spec = SliceSpec(driver=FAKE, pool=pool, node_name=node, devices=devices)
    return (Slice(metadata=Metadata(name=f"{node}-{FAKE}"), spec=spec),) if devices else ()


def spec_of(record: ClaimRecord) -> FakeSpec:
    """The last one counts: that of the claim comes after that of the class. Raises Refused."""
    found = FakeSpec()
    for result in own_results(record, FAKE):
        for given in parameters_for(record, FAKE, result):
            found = strictly(given, FakeParameters, FAKE).spec
    if not 1 <= found.split <= MOST_PARTS:
        raise ClaimFileRefused(f"parameters for {FAKE}: split is {found.split}; expected 1 to {MOST_PARTS}")
    return found


def fake_edits(record: ClaimRecord, node: str) -> tuple[Edits, list[ResultEdits]]:
    """Raises Refused."""
    parts = spec_of(record).split
    whole = Edits(env=(f"DRA_RESOURCE_DRIVER_NAME={FAKE}", f"FAKE_NODE_NAME={node}"))
    found = []
    for place, result in enumerate(own_results(record, FAKE)):
        numbers = range(place * parts, (place + 1) * parts)
        env = tuple(f"FAKE_DEVICE_{number}={_fake_uuid(record.uid, number)}" for number in numbers)
        found.append(ResultEdits(result, Edits(env=env)))
    return whole, found


def _fake_uuid(uid: str, number: int) -> str:
    return f"FAKE-{UUID(bytes=hashlib.sha256(f'{uid}/{number}'.encode()).digest()[:16], version=4)}"

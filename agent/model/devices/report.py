# SPDX-License-Identifier: Apache-2.0
"""What people see of devices, claims and drivers."""

import msgspec


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    claims: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    since_s: float = 0.0
    attributes: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    cdi_ids: tuple[str, ...] = ()
    message: str = ""


class ClaimDriverReport(msgspec.Struct, frozen=True):
    name: str
    stage: str


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str = ""
    state: str
    devices: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    since_s: float = 0.0
    drivers: tuple[ClaimDriverReport, ...] = ()
    last_error: str = ""
    failed_s: float = 0.0
    is_made: bool = False


class DriverReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    versions: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    slices: int = 0
    devices: int = 0
    why_away: str = ""
    last_error: str = ""


class CdiReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a CDI id stands for, and what a runtime is given for it."""

    id: str
    file: str
    cdi_version: str
    edits: tuple[str, ...] = ()
    runtime: str = ""
    given: tuple[str, ...] = ()
    refusal: str = ""


class ExplainedDeviceReport(msgspec.Struct, frozen=True):
    device: str
    reason: str


class ExplainedRequestReport(msgspec.Struct, frozen=True, kw_only=True):
    claim: str
    name: str
    wants: str
    devices: tuple[ExplainedDeviceReport, ...] = ()


class ClaimExplanationReport(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is allocated, waits or error; `end` how the search ended."""

    outcome: str
    end: str
    requests: tuple[ExplainedRequestReport, ...] = ()
    changes: tuple[str, ...] = ()

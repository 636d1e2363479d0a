# SPDX-License-Identifier: Apache-2.0
"""Opaque configuration of a claim for one of kepd's own drivers: strict, the class first, then the claim."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from agent.model.finding import shown
from kepd_devices.local.claim_files import ClaimFileRefused
from kepd_devices.manifest.objects import Result
from kepd_devices.plan.records import ClaimRecord

Read = TypeVar("Read", bound=msgspec.Struct)


def parameters_for(record: ClaimRecord, driver: str, result: Result) -> Iterator[Mapping[str, Any]]:
    """What concerns one result: entries without requests concern all."""
    allocation = record.claim.status.allocation
    main = result.request.partition("/")[0]
    for entry in allocation.devices.config if allocation is not None else ():
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if not isinstance(opaque, Mapping) or opaque.get("driver") != driver:
            continue
        requests = entry.get("requests") or ()
        if requests and main not in requests and result.request not in requests:
            continue
        given = opaque.get("parameters")
        if not isinstance(given, Mapping):
            raise ClaimFileRefused(f"parameters for {driver} are {shown(given)}; expected an object")
        yield given


def strictly(given: Mapping[str, Any], kind: type[Read], driver: str) -> Read:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ClaimFileRefused(f"parameters for {driver}: {str(error).replace('`', '')}") from error

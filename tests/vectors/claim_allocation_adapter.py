# SPDX-License-Identifier: Apache-2.0
"""Runs the cases of claim-allocation.json: objects of resource.k8s.io in, allocations, refusals or faults out; and its
expressions, each about one device. DVA-10 to DVA-102, DVM-21, DVV-10.

Owns: decoding a case, and comparing amounts by value and shares as random. Never: knows a case by its id.
"""

from collections.abc import Iterator

import msgspec

from agent.model.quantity import parse_quantity
from kepd_devices.cel.program import program
from kepd_devices.cel.tree import Unreadable
from kepd_devices.cel.values import EvaluationFailed
from kepd_devices.manifest.claim_faults import claim_faults, class_faults
from kepd_devices.manifest.objects import Claim, DeviceClass, DeviceOfSlice, Pool, Slice, SliceSpec
from kepd_devices.manifest.slice_faults import slice_faults
from kepd_devices.plan.offers import Offer
from kepd_devices.plan.pools import PoolNode
from kepd_devices.plan.reasons import CannotAllocate
from kepd_devices.plan.results import allocations
from kepd_devices.plan.search import Question, search


def cases(document: dict) -> Iterator[tuple[str, str, dict, dict]]:
    for case in document.get("cases", ()):
        yield case["id"], "allocation", case["input"], case["expected"]
    for case in document.get("cel", ()):
        yield case["id"], "expression", case, case["expected"]


def check(kind: str, given: dict, expect: dict) -> None:
    if kind == "expression":
        assert _expression(given) == ({"matches": expect["matches"]} if "matches" in expect else set(expect) - {"text"})
        return
    slices = tuple(msgspec.convert(item, Slice) for item in given["slices"])
    classes = tuple(msgspec.convert(item, DeviceClass) for item in given["classes"])
    claims = tuple(msgspec.convert(item, Claim) for item in given["claims"])
    faults = [
        *((f"slice {one.metadata.name}", fault) for one in slices for fault in slice_faults(one)),
        *((f"class {one.metadata.name}", fault) for one in classes for fault in class_faults(one)),
        *((f"claim {one.metadata.name}", fault) for one in claims for fault in claim_faults(one)),
    ]
    found = {(name, fault.field, f"FieldValue{fault.type}") for name, fault in faults}
    assert found == {(one["object"], one["field"], one["type"]) for one in expect.get("invalid", ())}, faults
    if "invalid" not in expect:
        _check_allocation(given, expect, slices, classes, claims)


def _check_allocation(
    given: dict, expect: dict, slices: tuple[Slice, ...], classes: tuple[DeviceClass, ...], claims: tuple[Claim, ...]
) -> None:
    metadata = given["node"]["metadata"]
    question = Question(
        node=PoolNode(name=metadata["name"], labels=metadata.get("labels", {})),
        slices=slices,
        classes={one.metadata.name: one for one in classes},
        existing=tuple(msgspec.convert(item, Claim) for item in given["existing"]),
        claims=claims,
        takes_lists=given.get("listAttributes", False),
        may_bind=True,
    )
    try:
        answer = search(question)
    except CannotAllocate as error:
        assert "error" in expect, error
        assert error.is_of_node is expect.get("onThisNodeOnly", False)
        return
    assert "error" not in expect
    assert (answer.given is not None) is expect["allocated"], answer.stuck
    if answer.given is not None:
        found = [_comparable(one["devices"], one.get("nodeSelector")) for one in allocations(answer, metadata["name"])]
        assert found == [_comparable(one, one.get("nodeSelector")) for one in expect["allocations"]]


def _comparable(devices: dict, selector: dict | None) -> dict:
    results = [
        {
            **{name: value for name, value in one.items() if name not in ("shareID", "share")},
            "share": bool(one.get("share") or one.get("shareID")),
            "consumedCapacity": {name: parse_quantity(text) for name, text in one.get("consumedCapacity", {}).items()},
        }
        for one in devices.get("results", ())
    ]
    return {"results": results, "config": devices.get("config", []), "nodeSelector": selector}


def _expression(given: dict) -> dict | set[str]:
    device = msgspec.convert(given["device"], DeviceOfSlice)
    offer = Offer(Slice(spec=SliceSpec(driver=given["driver"], pool=Pool(name="p"))), device)
    try:
        return {"matches": program(given["expression"]).is_true_of(offer.seen(takes_lists=True))}
    except EvaluationFailed:
        return {"runtimeError"}
    except Unreadable:
        return {"compileError"}
